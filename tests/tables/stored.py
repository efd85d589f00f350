"""Stored decoding runs and probes of guesses whose figures can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppdbench.cli.main import run
from tests import records
from tests.tables.made import write_run

GREEDY_MS = 4.0  # a step of the baseline


def about(name: str, **options: Any) -> dict[str, Any]:
    """What a header says of a method."""
    return {"name": name, "exact": name != "early-exit", "options": options, "loaded": {}}


def sample(task: str, label: str, number: int = 0, **more: Any) -> dict[str, Any]:
    """Nine tokens in four steps of 5 ms: of three drafted tokens per step one is kept, or two.

    Greedy decoding takes as long as the baseline, a step for each token.
    """
    alone = {"accepted": [0] * 8, "proposed": [0] * 8, "step_ms": [GREEDY_MS] * 8}
    return {
        "task": task,
        "method": label,
        "example_id": str(number),
        "verdict": "identical",
        "output_ids": list(range(9)),
        "text": "the cat sat on the mat",
        "references": ["the cat sat on the mat"],
        "accepted": [1, 1, 1, 1],
        "proposed": [3, 3, 3, 1],
        "step_ms": [5.0] * 4,
        "draft_ms": [1.0] * 4,
        "prefill_ms": 10.0,
        "baseline_prefill_ms": 10.0,
        "baseline_step_ms": [GREEDY_MS] * 8,
        "baseline_again_ms": 8 * GREEDY_MS,
        "peak_memory_bytes": 1,
        **({**alone, "draft_ms": [0.0] * 8} if label == "greedy" else {}),
        **more,
    }


def decoded(
    folder: Path,
    methods: Mapping[str, Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    *,
    facts: Mapping[str, Any] | None = None,
    not_run: Mapping[str, str] | None = None,
    target: Mapping[str, Any] | None = None,
    chosen: Mapping[str, Any] | None = None,
    **model: Any,
) -> str:
    """A run of `bench`."""
    return with_header(
        write_run(folder, "bench", samples, **model),
        config={"strict": False, "target": target or {"kind": "greedy"}, "tasks": []},
        methods=methods,
        chosen=chosen,
        facts=facts or {},
        not_run=not_run or {},
    )


def guessed(
    folder: Path,
    ranks: Mapping[str, Mapping[int, Sequence[int]]],
    methods: Mapping[str, Mapping[str, Any]],
    *,
    tasks: Sequence[str] = ("alpaca",),
    facts: Mapping[str, Any] | None = None,
) -> str:
    """A run of `probe --what drafts`: ranks of the true tokens by label and distance."""
    samples = [
        {
            "task": task,
            "method": label,
            "target": "greedy",
            "example_id": "0",
            "output_ids": [1],
            "ranks": {str(distance): list(found) for distance, found in by_distance.items()},
        }
        for task in tasks
        for label, by_distance in ranks.items()
    ]
    path = write_run(folder, "drafts", samples)
    return with_header(path, config={"tasks": list(tasks)}, methods=methods, facts=facts or {})


def with_header(folder: Path, **parts: Any) -> str:
    path = folder / "run.json"
    stored = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(records.header(stored["kind"], **{**stored, **parts})), "utf-8")
    return str(folder)


def table(capsys: Any, name: str, *runs: str, code: int = 0) -> dict[str, Any]:
    """What `ppdbench table` says as JSON."""
    assert run(["table", name, *runs, "--format", "json"]) == code
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content
