"""What local files show to be wrong is told before anything is measured, loaded or fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.engine.folders import check_sizes
from ppdbench.errors import ConfigError
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


@pytest.mark.parametrize("value", [10**9, 0, -1, "many", 2.0, True])
def test_numbers_that_no_model_has_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"num_hidden_layers is .* from 1 to 1000"):
        check_sizes({"num_hidden_layers": value}, "config.json")


@pytest.mark.parametrize("value", [[48, 0], [48, "48"], [], [[48]], [10**9]])
def test_sizes_of_layers_are_whole_numbers_each(value: object) -> None:
    check_sizes({"intermediate_size": [48, 64]}, "config.json")
    with pytest.raises(ConfigError, match="intermediate_size is "):
        check_sizes({"intermediate_size": value}, "config.json")
    with pytest.raises(ConfigError, match="num_hidden_layers is "):
        check_sizes({"num_hidden_layers": [2, 2]}, "config.json")
