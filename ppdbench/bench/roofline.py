"""The summary of stored profiles: the parts of a method's steps, and how fast they read.

A step that did nothing but read what it must, at the speed that was measured on this machine,
would reach a fraction of 1; weights that stay in the processor's caches can exceed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppdbench.bench.sums import SampleSums

PARTS = ("draft_pass", "draft", "pass", "bookkeeping")
READ = ("draft_pass_bytes", "pass_bytes")


def profile(group: Sequence[SampleSums], bandwidth: float | None) -> dict[str, Any] | None:
    """Means per step over all examples of a method, where they were profiled."""
    profiled = [one for one in group if one.sample.profile]
    steps = sum(one.steps for one in profiled)
    if not steps or bandwidth is None:
        return None
    parts = [one.sample.profile for one in profiled]
    ms = {part: sum(getattr(one, f"{part}_ms") for one in parts) for part in PARTS}
    drafted, verified = (sum(getattr(one, name) for one in parts) for name in READ)
    return {
        "step_ms": sum(ms.values()) / steps,
        **{f"{part}_share": value / sum(ms.values()) for part, value in ms.items()},
        "bytes_per_step": (drafted + verified) / steps,
        "bandwidth_bytes_per_s": bandwidth,
        "draft_bandwidth_fraction": _fraction(drafted, ms["draft_pass"], bandwidth),
        "pass_bandwidth_fraction": _fraction(verified, ms["pass"], bandwidth),
        "bandwidth_fraction": _fraction(drafted + verified, sum(ms.values()), bandwidth),
    }


def _fraction(read: float, ms: float, bandwidth: float) -> float | None:
    return 1e3 * read / ms / bandwidth if read and ms > 0 else None
