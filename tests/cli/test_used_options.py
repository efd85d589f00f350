"""Options that leave the choice to a method are shown as what the method chose."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.report.page.document import page
from ppdbench.report.page.runs import read_runs
from tests.report.page import made

MODEL = "synthetic:layers=6,hidden=32,heads=2,vocab=300"
COMMON = ["--data", "builtin", "--task", "xsum", "--limit", "1", "--max-new-tokens", "3"]
COMMON += ["--warmup", "0", "--compile", "off"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "shown", "not_shown"),
    [
        (["layerskip", "--model", MODEL], "(exit_layer=1 of 6, draft_length=4,", "exit_layer=0"),
        (["early-exit:exit_layer=2", "--model", MODEL], "exit_layer=2 of 6", "exit_layer=2,"),
        (["ppd", "--model", MODEL], "exit_after=3 of 6, k=3, head=the model's own", "head=,"),
        (["draft-verify", "--model", MODEL], "skip=a set in the middle (", "skip=,"),
        (["medusa", "--offline"], "addon=reference, tree=tree.json", "tree=,"),
    ],
)
def test_what_was_used_stands_where_nothing_was_asked(
    words: list[str], shown: str, not_shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run = ["decode", "--method", *words, *COMMON, "--out", "run", "--format", "markdown"]
    assert run(made_run) == 0
    out = capsys.readouterr().out
    assert shown in out
    assert not_shown not in out
    assert shown.strip("(") in page(read_runs(["run"])).text.replace("&#x27;", "'")
    # What was asked stays as it was asked, for other programs.
    assert run(["report", "run", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["used"]
    assert found["options"].keys() >= found["used"].keys()


def test_runs_of_earlier_versions_show_what_they_have(tmp_path: Path) -> None:
    about = made.methods("medusa")
    about["medusa"]["options"] = {"addon": "", "tree": "", "typical": 0.0}
    folder = made.write(
        tmp_path / "old", made.header("decode", methods=about), [made.decoded("medusa")]
    )
    text = page(read_runs([folder])).text
    assert "typical=0.0" in text
    assert "tree=" not in text.partition('id="data"')[0]
