"""After-next is trained, saved, loaded, listed, and exact whatever its matrix says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.methods import method
from ppdbench.testing import CAPACITY, MODELS, assert_exact, assert_exact_in_batches, cases
from ppdbench_repeat.after_next.network import load_head

MODEL = MODELS[0]
TRAIN = ["train", "after-next", "--model", MODEL, "--text", "text.txt", "--batch-size", "4"]
TRAIN += ["--sequence", "16", "--steps", "30", "--learning-rate", "3e-2", "--held-out", "text.txt"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a short training on one sentence wrote."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        text = "To guess is to look ahead, and to check is to be sure. " * 20
        (folder / "text.txt").write_text(text, "utf-8")
        assert run([*TRAIN, "--out", "after"]) == 0
    return folder / "after"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    """The model that it was trained for."""
    return load(ModelSpec(name=MODEL, device="cpu"))


def test_training_teaches_it_and_says_what_it_was_worth(trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "train.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    (quality,) = json.loads((trained / "quality.json").read_text("utf-8"))
    assert quality["distance"] == 1
    assert json.loads((trained / "training.json").read_text("utf-8"))["kind"] == "after-next"


def test_what_was_saved_is_loaded(trained: Path, loaded: Loaded) -> None:
    head = load_head(str(trained), loaded)
    assert head.matrix.abs().max() > 0
    assert head.facts["options"] == {"loss": "kl"}


def test_outputs_are_those_of_greedy(trained: Path, loaded: Loaded) -> None:
    make = method("after-next").build({"addon": str(trained)}).prepare
    decoder = make(Setup(loaded, CAPACITY))
    found = [assert_exact(decoder, case, loaded.staged) for case in cases(loaded.staged)]
    assert sum(sum(one.proposed) for one in found)
    for case in cases(loaded.staged):
        assert_exact(decoder, case, loaded.staged, fixed_rows=decoder.rows)
    assert_exact_in_batches(make, loaded)


def test_it_stands_among_the_others(
    trained: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["list", "methods"]) == 0
    assert "after-next" in capsys.readouterr().out
    assert run(["train", "after-next", "--help"]) == 0
    assert "guesses the token after the next one" in capsys.readouterr().out
    words = ["bench", "--model", MODEL, "--task", "gsm8k", "--data", "builtin", "--limit", "2"]
    words += ["--max-new-tokens", "8", "--warmup", "0", "--out", str(tmp_path / "run")]
    words += ["--batch", "1,2"]
    assert run([*words, "--method", f"after-next:addon={trained}", "--format", "json"]) == 0
    samples = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["verdict"] for line in samples} == {"identical"}


def test_a_bad_option_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*TRAIN, "--loss", "mse", "--out", "x"]) == 2
    assert "--loss 'mse': use ce or kl" in capsys.readouterr().err
