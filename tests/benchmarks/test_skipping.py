"""The benchmark of a model before and after LayerSkip: what its exits read, and what they gain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import skipping
from ppdbench.cli.main import run
from ppdbench.engine.synthetic import tokenizer
from tests.families import stock_model
from tests.training.made import quality

WORDS = "the cat sat on the mat and 1 2 3 dogs ran over the hill to the sea "
SHORT = ["--sequence", "16", "--held-out-tokens", "200"]
DECODED = ["--dtype", "float32", "--tasks", "gsm8k", "--limit", "1", "--max-new-tokens", "6"]
NAMED = ["--method", "layerskip", "layerskip:exit_layer=1,draft_length=2"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, the same model trained by LayerSkip, and a text not trained on."""
    model = stock_model("llama-mha-tied", vocab_size=300, max_position_embeddings=900)
    model.save_pretrained(tmp_path / "model")
    tokenizer(300, 900).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text(40 * WORDS, "utf-8")
    lines = [json.dumps({"text": n * "a" + WORDS, "prompt_chars": n}) for n in range(9, 29)]
    (tmp_path / "unseen.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["--model", "./model", "--text", "text.txt", "--held-out", "unseen.jsonl", *SHORT]
    words += ["--rotation", "3", "--steps", "6", "--batch-size", "2", "--learning-rate", "1e-2"]
    assert run(["train", "layerskip", *words, "--out", "trained"]) == 0
    return tmp_path


def test_both_models_are_measured_and_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["./trained", "--before", "./model", "--held-out", "unseen.jsonl", *SHORT, *DECODED]
    assert skipping.main([*words, *NAMED, "--save", "kept.json"]) == 0
    content = json.loads(Path("kept.json").read_text("utf-8"))
    measured = quality(home / "trained")
    after = content["exits"]["after"]
    for name in ("layer", "top1", "top3", "loss"):
        assert [each[name] for each in after] == pytest.approx([each[name] for each in measured])
    assert content["exits"]["before"][-1]["loss"] > after[-1]["loss"], "untrained weights"
    for found in content["decoded"].values():
        assert [each["label"] for each in found] == ["greedy", *NAMED[1:]]
        assert all(each["identical"] == each["n_examples"] == 1 for each in found)
    trained = content["training"]
    assert (trained["tokens"], trained["text_tokens"]) == (6 * 2 * 16, text_tokens(home))
    exits, drafts = skipping.sheets(content)
    assert [row[0] for row in exits.rows] == [1, 2, 3, 4]
    assert [row[:2] for row in drafts.rows][-2:] == [(NAMED[2], "before"), (NAMED[2], "after")]
    assert content["machine"].split(",")[0] in capsys.readouterr().out


def text_tokens(home: Path) -> int:
    told: int = json.loads((home / "trained" / "training.json").read_text("utf-8"))["tokens"]
    return told


def test_a_deep_model_shows_a_dozen_exits_the_first_and_the_last_among_them() -> None:
    exits: list[dict[str, float]] = [
        {"layer": n, "top1": 0.5, "top3": 0.6, "loss": 1.0} for n in range(1, 31)
    ]
    training: dict[str, float] = {
        "tokens": 4096,
        "text_tokens": 2048,
        "steps": 2,
        "batch_size": 8,
        "sequence": 256,
    }
    training |= {"learning_rate": 3e-4, "p_max": 0.1, "e_scale": 1.0, "rotation": 15}
    content: dict[str, Any] = {
        "model": "m",
        "exits": {"before": exits, "after": exits},
        "training": training,
        "decoded": {"before": [], "after": []},
        "dtype": "bfloat16",
        "threads": 2,
        "tasks": ["gsm8k"],
        "machine": "a machine",
    }
    shown, _ = skipping.sheets(content)
    assert [row[0] for row in shown.rows] == [1, 4, 6, 9, 12, 14, 17, 19, 22, 25, 27, 30]
    assert any("4,096 tokens" in note and "2.0 times" in note for note in shown.notes)


def test_what_was_not_trained_here_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["./model", "--before", "./model", "--held-out", "unseen.jsonl", *SHORT, *DECODED]
    assert skipping.main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
