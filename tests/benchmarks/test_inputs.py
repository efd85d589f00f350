"""The attack with bad inputs judges as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attack.base import Said
from benchmarks.attack.inputs import SHORT, Bad, attempts, complaint, every_input, judged

BAD = Bad(("probe", "--limit=0"), ("--limit",))


def test_there_are_hundreds_and_the_short_form_has_a_few_of_all() -> None:
    every = list(every_input())
    assert len(every) > 300
    assert len({bad.words for bad in every}) > 0.95 * len(every)
    assert len(list(attempts(True))) == SHORT


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (Said(2, "", "ppdbench: --limit 0: use 1 or more\n"), None),
        (Said(0, "", "ppdbench: --limit 0: use 1 or more\n"), "exit code 0"),
        (Said(2, "x", "ppdbench: --limit 0: use 1 or more\n"), "1 characters of output"),
        (Said(2, "", "note: a\nppdbench: --limit 0\n"), "2 lines"),
        (
            Said(2, "", "ppdbench: unexpected KeyError: --limit; --debug shows\n"),
            "no answer for people",
        ),
        (Said(2, "", f"ppdbench: --limit {'0' * 900}\n"), "characters"),
        (Said(2, "", "ppdbench: something is wrong\n"), "does not name"),
    ],
)
def test_an_answer_is_judged_as_a_user_would(said: Said, why: str | None) -> None:
    found = complaint(BAD, said)
    assert found is None if why is None else found is not None and why in found


def test_a_bad_option_is_survived_and_a_good_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    assert judged(Bad(("theory", "--p=x"), ("--p",)))(tmp_path / "bad") is None
    (tmp_path / "good").mkdir()
    why = judged(Bad(("list", "tasks"), ("tasks",)))(tmp_path / "good")
    assert why is not None
    assert "exit code 0" in why
