"""Stored runs made by hand, whose every figure is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ppdbench.check.comparison import Comparison, compare_paths
from ppdbench.check.figures import DECODED, Figure, Outputs
from ppdbench.check.judge import Check
from ppdbench.check.metrics import Rule
from ppdbench.check.snapshot import MethodFacts, Snapshot
from ppdbench.check.thresholds import Thresholds
from tests import records

Sample = dict[str, Any]
Change = Callable[[Sample], None]

MACHINE = {
    "cpu": {"model": "a processor", "features": ["avx2"]},
    "devices": [],
    "torch": {"threads": 1},
    "packages": {"torch": "2.13.0"},
    "variables": {},
}
METHODS = {
    "greedy": {"name": "greedy", "exact": True, "options": {}, "loaded": {}},
    "layerskip": {
        "name": "layerskip",
        "exact": True,
        "options": {"draft_length": 4},
        "loaded": {},
    },
}
INEXACT = {**METHODS, "layerskip": {**METHODS["layerskip"], "exact": False}}
N_EXAMPLES = 8


def bench_header(**changes: Any) -> dict[str, Any]:
    """The header of a bench run of two methods on one task."""
    target = {"kind": "greedy", "top_k": 3, "top_p": 0.95, "temperature": 1.0}
    settings = {"max_new_tokens": 11, "shots": 0, "seed": 0, "strict": False, "target": target}
    return {
        "schema_version": 1,
        "kind": "bench",
        "command": ["ppdbench", "bench", "--task", "squad"],
        "config": settings,
        "model": {"name": "m", "weight_hash": "aa", "dtype": "float32", "device": "cpu"},
        "data": {"squad": {"version": 1, "sha256": "dd", "examples": N_EXAMPLES}},
        "environment": MACHINE,
        "methods": METHODS,
        "not_run": {},
        "facts": {},
        **changes,
    }


def decoded(number: int, method: str) -> Sample:
    """Ten tokens after the first: in ten steps, or in five that took half the time."""
    steps = 10 if method == "greedy" else 5
    drafted = [] if method == "greedy" else [4] * steps
    return {
        "task": "squad",
        "example_id": str(number),
        "method": method,
        "verdict": "identical",
        "output_ids": list(range(number, number + 11)),
        "proposed": drafted or [0] * steps,
        "accepted": [1] * steps if drafted else [0] * steps,
        # Examples are not alike, or no interval would have a width.
        "step_ms": [1.0 + 0.01 * number] * steps,
        "baseline_step_ms": [1.0] * 10,
        "baseline_again_ms": 10.0 + 0.1 * (number % 2),
        "peak_memory_bytes": 100 << 20,
    }


def bench_run(folder: Path, *changes: Change, **header: Any) -> Path:
    """A bench run; each of `changes` may alter every sample."""
    made = bench_header(**header)
    samples = [decoded(n, method) for n in range(N_EXAMPLES) for method in METHODS]
    return _written(folder, made, samples, changes)


def probe_run(folder: Path, *changes: Change, **header: Any) -> Path:
    """A probe run of two layers, of which the first ranks the token 0, 1, 2, ... in turn."""
    settings = {"max_new_tokens": 4, "shots": 0, "seed": 0, "layers": [1, 2], "ks": [1, 3]}
    settings |= {"targets": [{"kind": "greedy"}], "stop_at_eos": False}
    made = {**bench_header(), "kind": "probe", "config": settings, **header}
    samples = [
        {
            "task": "squad",
            "example_id": str(number),
            "method": "probe",
            "target": "greedy",
            "verdict": "identical",
            "output_ids": [number, 1, 2, 3],
            "ranks": {"1": [0, 1, 2, 3], "2": [0, 0, 0, 0]},
            "head_ranks": {"1": [0, 0, 2, 3]},
        }
        for number in range(N_EXAMPLES)
    ]
    return _written(folder, made, samples, changes)


def _written(
    folder: Path, header: dict[str, Any], samples: list[Sample], changes: tuple[Change, ...]
) -> Path:
    for change in changes:
        for sample in samples:
            change(sample)
    kind = header.pop("kind")
    return records.write_run(folder, kind, samples, **header)


def drafting(change: Callable[[Sample], Any], *numbers: int) -> Change:
    """A change of the samples of layerskip, of these examples or all."""

    def apply(sample: Sample) -> None:
        if sample["method"] == "layerskip" and (
            not numbers or int(sample["example_id"]) in numbers
        ):
            sample.update(change(sample))

    return apply


def failed(sample: Sample) -> Sample:
    """What is stored of an example whose decoding broke."""
    return {"verdict": "failed", "output_ids": [], "error": "RuntimeError: no"}


def elsewhere() -> dict[str, Any]:
    """The header's environment on another machine."""
    return {**MACHINE, "cpu": {"model": "another processor", "features": ["avx2"]}}


def bare(kind: str, *labels: str, exact: bool = True) -> Snapshot:
    """A snapshot that says which methods or targets there are, and that each has all rates."""
    methods = [MethodFacts(label, label.split(" (batch")[0], exact, {}, {}) for label in labels]
    rates = [
        Figure("squad", label, metric, ((1.0, 2.0),)) for label in labels for metric in DECODED
    ]
    return Snapshot(
        kind=kind,
        command=(),
        model={},
        settings={},
        machine={},
        data=(),
        methods=() if kind == "probe" else tuple(methods),
        outputs=tuple(Outputs("squad", label, ()) for label in labels),
        figures=() if kind == "probe" else tuple(rates),
        peak_memory_bytes=0,
    )


def compared(
    tmp_path: Path, *changes: Change, rules: dict[str, Rule] | None = None, **header: Any
) -> Comparison:
    """A changed bench run against the plain one."""
    baseline = bench_run(tmp_path / "baseline")
    now = bench_run(tmp_path / "now", *changes, **header)
    return compare_paths(now, baseline, Thresholds(rules=rules or {}))


def checked(found: Comparison, metric: str, subject: str = "layerskip") -> Check:
    """The check of one metric."""
    (check,) = [c for c in found.checks if (c.metric, c.subject) == (metric, subject)]
    return check


def one_accepted_less(sample: Sample) -> Sample:
    """A change of a sample whose first draft was accepted in part."""
    return {"accepted": [0, *sample["accepted"][1:]]}


def two_turns(sample: Sample) -> None:
    """Make conversations of two turns out of single examples."""
    number = int(sample["example_id"])
    question, turn = number // 2, 1 + number % 2
    name = str(question) if turn == 1 else f"{question}/{turn}"
    sample.update(example_id=name, turn=turn, turns=2)


def slower(factor: float) -> Change:
    """A change of layerskip's times."""
    return drafting(lambda s: {"step_ms": [factor * ms for ms in s["step_ms"]]})
