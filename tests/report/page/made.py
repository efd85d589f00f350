"""Stored runs written by hand, as small as a page about them can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import records
from tests.units import TWO_UNITS, greedy_by_threads

SHA = {"gsm8k": "aaaa", "squad": "bbbb"}


def header(kind: str, /, **changes: Any) -> dict[str, Any]:
    """What run.json says; `changes` are dotted names with `__` for the dots."""
    made: dict[str, Any] = {
        "schema_version": 1,
        "kind": kind,
        "ppdbench": "0.1.0",
        "command": ["ppdbench", kind, "--task", "gsm8k"],
        "started": "2026-01-02T03:04:05+00:00",
        "config": {
            "tasks": ["gsm8k", "squad"],
            "max_new_tokens": 4,
            "strict": False,
            "target": {"kind": "greedy"},
            "ks": [1, 3],
            "bucket": 2,
        },
        "model": {
            "name": "tiny",
            "revision": None,
            "weight_hash": "feed",
            "family": "llama",
            "n_layers": 4,
            "vocab_size": 100,
            "dtype": "float32",
            "device": "cpu",
            "synthetic": False,
        },
        "data": {task: {"metrics": [], "sha256": sha} for task, sha in SHA.items()},
        "environment": {
            "python": "3.11",
            "packages": {"torch": "2.13"},
            "git": {"commit": "c0ffee0123456789", "modified": False},
            "cpu": {"model": "Some CPU", "usable_cores": 2},
            "torch": {"threads": 1},
            "devices": [],
        },
    }
    if kind != "probe":
        made |= {"methods": {}, "not_run": {}, "facts": {}}
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = made
        for parent in parents:
            place = place[parent]
        place[name] = value
    return made


def methods(*names: str, exact: bool = True) -> dict[str, Any]:
    """What run.json says of methods."""
    return {n: {"name": n, "exact": exact, "options": {}, "loaded": {}} for n in names}


def decoded(method: str, example: str = "1", faster: float = 1.0, **changes: Any) -> dict[str, Any]:
    """One example of five tokens in three steps; greedy took four."""
    return {
        "example_id": example,
        "task": "gsm8k",
        "method": method,
        "verdict": "identical",
        "cut_tokens": 0,
        "prompt_ids": [1, 2],
        "references": ["forty-two"],
        "finish": "length",
        "output_ids": [5, 6, 7, 8, 9],
        "text": "abcde",
        "accepted": [1, 0, 0],
        "proposed": [2, 2, 2],
        "rows": [3, 3, 3],
        "prefill_ms": 3.0,
        "step_ms": [4.0 / faster] * 3,
        "draft_ms": [1.0 / faster] * 3,
        "baseline_prefill_ms": 3.0,
        "baseline_step_ms": [3.0] * 4,
        "baseline_again_ms": 12.0 + 0.1 * (int(example) % 3 - 1) if example.isdigit() else 12.0,
        "peak_memory_bytes": 1 << 20,
        **changes,
    }


def probed(example: str = "1", **changes: Any) -> dict[str, Any]:
    """One example of four tokens, known from the third of four layers on but for one."""
    return {
        "example_id": example,
        "task": "gsm8k",
        "method": "probe",
        "target": "greedy",
        "verdict": "identical",
        "cut_tokens": 0,
        "prompt_ids": [1, 2],
        "output_ids": [5, 6, 7, 8],
        "ranks": {"1": [9, 40, 9, 2], "2": [0, 3, 0, 1], "3": [0, 0, 0, 2], "4": [0, 0, 0, 0]},
        **changes,
    }


def write(folder: Path, head: dict[str, Any], samples: list[dict[str, Any]]) -> Path:
    """A run folder."""
    return records.write_run(folder, samples=samples, **head)


def bench(folder: Path, **changes: Any) -> Path:
    """Greedy, a method that is twice as fast and one that is half as fast, on six examples."""
    speeds = {"greedy": 1.0, "swift": 2.0, "slow": 0.5}
    samples = [
        decoded(name, str(n), speed * (1 + 0.01 * n))
        for n in range(1, 7)
        for name, speed in speeds.items()
    ]
    return write(folder, header("bench", methods=methods(*speeds), **changes), samples)


def probe(folder: Path, n: int = 3, **changes: Any) -> Path:
    """A probe run of so many examples."""
    return write(folder, header("probe", **changes), [probed(str(i)) for i in range(n)])


def similarity(folder: Path) -> Path:
    """Cosines of two steps of `hidden-transfer`, one of them below 0."""
    cosines = {"1": {"2": [0.2, 0.4], "4": [0.8, 0.9]}, "2": {"3": [-0.3], "4": [0.5]}}
    sample = {
        "example_id": "1",
        "task": "gsm8k",
        "method": "hidden-transfer",
        "target": "greedy",
        "verdict": "identical",
        "prompt_ids": [1, 2],
        "output_ids": [5, 6, 7, 8],
        "similarity": cosines,
    }
    return write(folder, header("similarity", methods=methods("hidden-transfer")), [sample])


def pipelined(folder: Path) -> Path:
    """A run of `ppd` on two units."""
    extra = {
        "matches": [1, 0, 1, 1, 0],
        "communication_ms": 0.5,
        "greedy_by_threads": greedy_by_threads(4),
        "accepted": [0] * 4,
        "proposed": [0] * 4,
        "rows": [1] * 4,
        "step_ms": [4.0] * 4,
        "draft_ms": [],
    }
    samples = [decoded("ppd", str(n), **extra) for n in range(6)]
    head = header("decode", methods=methods("ppd"), facts={"ppd": TWO_UNITS})
    return write(folder, head, samples)
