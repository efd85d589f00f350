"""Runs that probe: the same ranks and draws in any batch and at any place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.engine.synthetic import tokenizer
from tests.cli.probed import (
    LAYERS,
    parsed,
    printed,
    questions,
    samples,
    task_file,
)
from tests.families import stock_model


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def model_folder(path: Path, **generation: Any) -> Path:
    model = stock_model("llama", vocab_size=300, max_position_embeddings=1024)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(path)
    tokenizer(300, 1024).save_pretrained(path)
    return path


def test_stop_at_eos_ends_an_output_with_its_eos_and_the_default_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    free = model_folder(tmp_path / "free", eos_token_id=299)
    printed(capsys, "--model", free, "--out", "free-run")
    outputs = [sample["output_ids"] for sample in samples("free-run")]
    eos = outputs[0][3]
    ending = model_folder(tmp_path / "ending", eos_token_id=eos)

    printed(capsys, "--model", ending, "--out", "forced")
    assert [sample["output_ids"] for sample in samples("forced")] == outputs

    result = parsed(capsys, "--model", ending, "--out", "stopped", "--stop-at-eos")
    expected = [o[: o.index(eos) + 1] if eos in o else o for o in outputs]
    assert len(expected[0]) <= 4
    stopped = samples("stopped")
    assert [sample["output_ids"] for sample in stopped] == expected
    for sample in stopped:
        assert {len(r) for r in sample["ranks"].values()} == {len(sample["output_ids"])}
    totals = {row["n"] for row in result["rows"] if row["bucket"] == "total"}
    assert totals == {sum(map(len, expected))}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_batching_changes_neither_tokens_nor_ranks_in_float32(
    capsys: pytest.CaptureFixture[str], size: int
) -> None:
    tasks = ["--task", "gsm8k", "--task", "squad", "--limit", "4"]
    printed(capsys, *tasks, "--out", "single")
    printed(capsys, *tasks, "--out", "batched", "--batch-size", size)
    kept = ("task", "example_id", "prompt_ids", "output_ids", "ranks")
    single, batched = (
        [{name: sample[name] for name in kept} for sample in samples(folder)]
        for folder in ("single", "batched")
    )
    assert len({len(sample["prompt_ids"]) for sample in single}) > 1
    assert batched == single


@pytest.mark.parametrize("target", ["top-k", "top-p"])
def test_what_an_example_draws_does_not_depend_on_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    task = task_file(tmp_path)
    outputs = []
    for name, numbers in (("forth", [1, 2, 3]), ("back", [3, 2, 1]), ("alone", [2])):
        data = questions(tmp_path / f"{name}.jsonl", numbers)
        printed(
            *(capsys, "--task", task, "--data", data, "--limit", 3),
            *("--target", target, "--out", name),
        )
        outputs.append({sample["example_id"]: sample["output_ids"] for sample in samples(name)})
    forth, back, alone = outputs
    assert len(forth) == 3
    assert forth == back
    assert alone == {"q2": forth["q2"]}


def test_top_k_of_one_is_greedy(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--out", "a", "--target", "top-k", "--top-k", "1")
    printed(capsys, "--out", "b")
    assert [s["output_ids"] for s in samples("a")] == [s["output_ids"] for s in samples("b")]


def test_the_last_layers_own_choice_is_the_greedy_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed(capsys, "--out", "run", "--show-example", "0")
    sample = samples("run")[0]
    assert sample["predictions"][str(LAYERS)] == sample["output_ids"]
    for layer, ranks in sample["ranks"].items():
        matches = [rank == 0 for rank in ranks]
        pairs = zip(sample["predictions"][layer], sample["output_ids"], strict=True)
        assert matches == [ours == final for ours, final in pairs]
