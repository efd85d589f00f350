"""Probes as they are typed, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.cli.main import run
from ppdbench.runs.store import read_run

LAYERS = 3
MODEL = f"synthetic:layers={LAYERS},hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "2", "--max-new-tokens", "8"]


def task_text(prompt: str, **told: Any) -> str:
    """The file of a task that asks questions, with what a test says of it."""
    usual = {
        "name": "asked",
        "version": 1,
        "description": "a question",
        "dataset": {"hub_id": None, "split": "test"},
        "fields": {"question": "question"},
        "id": "id",
        "reference": None,
        "max_new_tokens": 8,
        "bucket": 1,
    }
    return json.dumps({**usual, "prompt_text": prompt, **told})  # YAML, too


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["probe", *SMALL, *map(str, arguments)]) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--format", "json"))


def samples(folder: str | Path) -> list[dict[str, Any]]:
    plain: list[dict[str, Any]] = msgspec.to_builtins(list(read_run(folder).samples))
    return plain


def task_file(folder: Path, name: str = "asked", tokens: int = 8, bucket: int = 4) -> Path:
    path = folder / f"{name}.yaml"
    told = {"name": name, "max_new_tokens": tokens, "bucket": bucket}
    path.write_text(task_text("Q: {{ question }} A:", **told))
    return path


def questions(path: Path, numbers: list[int]) -> Path:
    rows = [{"id": f"q{n}", "question": f"What is {n} plus {n}?"} for n in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
