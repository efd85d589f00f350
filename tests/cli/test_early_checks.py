"""What local files show to be wrong is told before anything is measured, loaded or fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.machine import bandwidth
from ppdbench.runs import running
from ppdbench.tasks import data

Capture = pytest.CaptureFixture[str]
TINY = "synthetic:layers=2,hidden=32,heads=2,vocab=300"


@pytest.fixture(autouse=True)
def nothing_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured, loaded or fetched")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bandwidth, "measure_bandwidth", refuse)
    monkeypatch.setattr(running, "load", refuse)
    monkeypatch.setattr(data, "_hub_rows", refuse)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["env", "--model", "/nope"], "/nope does not exist"),
        (["probe", "--model", "smolm2"], "unknown model 'smolm2': did you mean smollm2?"),
        (["decode", "--model", "referance"], "did you mean reference?"),
        (["decode", "--method", "jacobi", "--method", "medusa"], "decode runs one method"),
        (["decode", "--method", "all"], "`bench --methods all`"),
        (["decode", "--model", "reference", "--gguf", "a.gguf"], "reference has none"),
        (["env", "--model", TINY, "--method", "speculative:draft_model=/nope"], "draft model"),
        (["decode", "--model", "./nope", "--task", "gsm8k"], "./nope does not exist"),
        (["decode", "--method", "speculative:draft_model=/nope"], "/nope does not exist"),
        (["decode", "--method", "medusa:addon=/nope"], "addon=/nope: no such file or folder"),
        (["bench", "--method", "greedy", "--method", "rest:datastore=/nope"], "datastore=/nope"),
        (["decode", "--data", "hub", "--task", "gsm8k", "--task", "nope.yaml"], "nope.yaml"),
        (["train", "heads", "--model", "/nope", "--text", "/no", "--out", "o"], "/no is neither"),
        (
            [
                "theory",
                *[
                    "--layers",
                    "40",
                    "--exit-after",
                    "20",
                    "--k",
                    "3",
                    "--p",
                    "1",
                    "--simulate",
                    "1000000000000",
                ],
            ],
            "use 19531 or fewer",
        ),
    ],
    ids=lambda words: " ".join(words)[:40] if isinstance(words, list) else None,
)
def test_it_is_told_at_once(words: list[str], said: str, capsys: Capture) -> None:
    assert run(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert list(Path().iterdir()) == []
