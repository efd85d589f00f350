"""The attack with bad inputs judges as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attack.base import CommandEnd
from benchmarks.attack.inputs import SHORT, BadInput, attempts, complaint, every_input, judged

BAD = BadInput(("probe", "--limit=0"), ("--limit",))


def test_there_are_hundreds_and_the_short_form_has_a_few_of_all() -> None:
    every = list(every_input())
    assert len(every) > 300
    assert len({bad.words for bad in every}) > 0.95 * len(every)
    assert len(list(attempts(True))) == SHORT


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (CommandEnd(2, "", "ppdbench: --limit 0: use 1 or more\n"), None),
        (CommandEnd(0, "", "ppdbench: --limit 0: use 1 or more\n"), "exit code 0"),
        (CommandEnd(2, "x", "ppdbench: --limit 0: use 1 or more\n"), "1 characters of output"),
        (CommandEnd(2, "", "note: a\nppdbench: --limit 0\n"), "2 lines"),
        (
            CommandEnd(2, "", "ppdbench: unexpected KeyError: --limit; --debug shows\n"),
            "no answer for people",
        ),
        (CommandEnd(2, "", f"ppdbench: --limit {'0' * 900}\n"), "characters"),
        (CommandEnd(2, "", "ppdbench: something is wrong\n"), "does not name"),
    ],
)
def test_an_answer_is_judged_as_a_user_would(said: CommandEnd, why: str | None) -> None:
    found = complaint(BAD, said)
    assert found is None if why is None else found is not None and why in found


def test_a_bad_option_is_survived_and_a_good_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    assert judged(BadInput(("theory", "--p=x"), ("--p",)))(tmp_path / "bad") is None
    (tmp_path / "good").mkdir()
    why = judged(BadInput(("list", "tasks"), ("tasks",)))(tmp_path / "good")
    assert why is not None
    assert "exit code 0" in why
