"""Tables of profiles for people: where steps spend their time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.report import evidence
from ppdbench.report.sheet import Sheet

Summary = Mapping[str, Any]
SHARES = {
    "draft passes": "draft_pass_share",
    "drafting": "draft_share",
    "pass": "pass_share",
    "rest": "bookkeeping_share",
}


def sheets(summaries: Sequence[Summary]) -> list[Sheet]:
    """The parts of a step and the speed at which it reads; nothing where nobody asked."""
    held = [s for s in summaries if s["profile"] is not None]
    if not held:
        return []
    speed = held[0]["profile"]["bandwidth_bytes_per_s"]
    tasks = len({s["task"] for s in held}) > 1
    rows = tuple(
        (
            f"{s['label']}, {s['task']}" if tasks else s["label"],
            s["profile"]["step_ms"],
            *(s["profile"][share] for share in SHARES.values()),
            s["profile"]["bytes_per_step"] / 1e6,
            s["profile"]["bandwidth_fraction"],
        )
        for s in held
    )
    return [
        Sheet(
            "Where a step spends its time",
            ("method", "ms/step", *SHARES, "MB/step", "of roof"),
            rows,
            notes=(
                "Draft passes, the rest of drafting, the pass that verifies, bookkeeping. Of "
                f"roof: bytes that the passes must read, per time of the step, against "
                f"{speed / 1e9:.1f} GB/s, which was measured; above 100% where weights stay in "
                "the processor's caches.",
                *evidence.added_notes(held),
            ),
            digits={"ms/step": 3, "MB/step": 1, **dict.fromkeys((*SHARES, "of roof"), 1)},
            percent=frozenset({*SHARES, "of roof"}),
            spare=("rest", "drafting", "MB/step"),
        )
    ]
