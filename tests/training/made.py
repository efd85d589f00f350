"""Commands that train, what they log and measure, and a task that what they made decodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ppdbench.cli.main import run
from ppdbench.engine.loading import tensor_fingerprint


def small(rate: str) -> list[str]:
    """Steps of a few short sequences."""
    return ["--sequence", "16", "--batch-size", "4", "--learning-rate", rate, "--split-by", "file"]


def training(what: str, rate: str = "1e-2") -> list[str]:
    """A training beside the model in `./model`."""
    return ["train", what, "--model", "./model", "--text", "text.txt", *small(rate)]


SMALL = small("1e-3")
LAYERSKIP = [*training("layerskip", "1e-3"), "--rotation", "3", "--p-max", "0.3"]
LAYERSKIP += ["--checkpoint-every", "4"]
TRAIN_HEADS = ["train", "heads", "--model", "./model", "--text", "text.txt", "--split-by", "file"]
TWO_STEPS = ["--sequence", "16", "--batch-size", "4", "--steps", "2"]


def blocks(batch: int = 4, length: int = 17) -> torch.Tensor:
    return torch.randint(3, 96, (batch, length), generator=torch.Generator().manual_seed(3))


def learn(objective: Any, text: torch.Tensor, steps: int, rate: float = 1e-2) -> list[float]:
    """Train for so many steps on one text; the losses."""
    optimizer = torch.optim.AdamW(objective.parameters(), lr=rate)
    losses = []
    for step in range(steps):
        loss = objective(text, step, steps)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def assert_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command ends in one line that says so."""
    assert run(words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def log(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "train.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "tokens_per_s"} for line in lines]


def quality(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "quality.json").read_text("utf-8"))
    return found


def assert_goes_on(
    words: list[str],
    home: Path,
    otherwise: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A training with --start leaves what it began with, if its steps change nothing.

    Its text is another: the words to guess are those of the start all the same. `otherwise` are
    options that do not fit what lies there, and what is said about each.
    """
    (home / "other.txt").write_text(40 * "quite other words stand here, zigzag 7 8 9. ", "utf-8")
    assert run([*words, "--steps", "3", "--out", "first"]) == 0
    other = ["other.txt" if word == "text.txt" else word for word in words]
    still = [*other, "--steps", "1", "--learning-rate", "1e-12", "--out", "second"]
    assert run([*still, "--start", "first"]) == 0
    fresh = [*other, "--steps", "1", "--learning-rate", "1e-12", "--out", "fresh"]
    assert run(fresh) == 0
    first, second, from_nothing = (
        load_file(home / name / "addon.safetensors") for name in ("first", "second", "fresh")
    )
    assert first.keys() == second.keys() == from_nothing.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor)
    assert not all(torch.allclose(from_nothing[name], first[name]) for name in first)
    told = json.loads((home / "second" / "training.json").read_text("utf-8"))
    assert told["start"] == tensor_fingerprint(first.items())
    for number, (options, message) in enumerate(otherwise):
        out = ["--out", f"refused-{number}", "--steps", "1", "--start", "first"]
        capsys.readouterr()
        assert_refused([*words, *out, *options.split()], message, capsys)


def write_task(folder: Path, tokens: int = 24) -> list[str]:
    """A task of one short question, which fits a tiny model's context; the words that name it."""
    question = json.dumps({"question": "what is a match?"})
    (folder / "rows.jsonl").write_text(f"{question}\n", "utf-8")
    (folder / "task.yaml").write_text(
        "name: t\nversion: 1\ndescription: d\ndataset: {hub_id: null, config: null, split: x}\n"
        'fields: {question: question}\nid: null\nprompt_text: "{{ question }}"\n'
        "reference: question\n"
        f"max_new_tokens: {tokens}\nbucket: {tokens}\ncontext_field: null\n",
        "utf-8",
    )
    return ["--task", "task.yaml", "--data", "rows.jsonl"]
