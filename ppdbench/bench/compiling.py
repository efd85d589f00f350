"""The outcome of `--compile`: a GPU captures passes where that is asked for, a CPU compiles none.

A run goes on as it began: who resumes it, and every rank but the first, does as its header says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ppdbench.decoding.decoder import Decoder, Setup
from ppdbench.errors import ConfigError
from ppdbench.runs.records import Compilation
from ppdbench.runs.workload import Report

MODES = ("auto", "on", "off")

DRAFTING = (1, 2)  # rows of a draft model's passes: the newest token, and one it missed


def settle(
    mode: str,
    setup: Setup,
    decoders: Mapping[str, Decoder],
    report: Report,
    begun: Compilation | None = None,
) -> Compilation:
    """Capture passes or do not; the words of the header about it.

    `begun` is what it says already, where this process joins a run or goes on with one.
    """
    check_mode(mode)
    if begun is not None and not begun.rows:
        return Compilation(mode=mode, rows=[], why=begun.why)
    hindrance = _hindrance(setup, decoders)
    if begun is not None and hindrance is not None:
        raise ConfigError(
            f"this run began with compiled passes, which are out of reach here: {hindrance}; go on "
            "where they are not, or begin again with --compile off and another --out"
        )
    if begun is None and (why := _why_not(mode, setup, hindrance)) is not None:
        return Compilation(mode=mode, rows=[], why=why)
    return _captured(mode, setup, decoders, report)


def check_mode(mode: str) -> None:
    """Refuse what is no way to compile."""
    if mode not in MODES:
        raise ConfigError(f"--compile {mode}: use {', '.join(MODES)}")


def _captured(
    mode: str, setup: Setup, decoders: Mapping[str, Decoder], report: Report
) -> Compilation:
    """Capture the passes of all models; greedy decoding, one row a pass, is beside everything."""
    report("capturing passes", 0, None)
    start = time.perf_counter()
    rows = sorted({1, *(each.rows for each in decoders.values() if not each.foreign)})
    setup.target.staged.capture(rows)
    for other in setup.others.values():
        other.staged.capture(DRAFTING)
    return Compilation(mode=mode, rows=rows, seconds=round(time.perf_counter() - start, 1))


def _why_not(mode: str, setup: Setup, hindrance: str | None) -> str | None:
    """Say why nothing is captured, if nothing is; an error where a GPU is asked to and cannot."""
    if mode == "off":
        return "not asked for"
    if not _on_gpu(setup):
        return f"{hindrance}, where passes run {setup.target.staged.path.kernels}"
    if hindrance is not None and mode == "on":
        raise ConfigError(f"--compile on: {hindrance}; leave it out")
    if hindrance is None and mode == "auto":
        return "on a GPU passes are captured as graphs only with --compile on"
    return hindrance


def _hindrance(setup: Setup, decoders: Mapping[str, Decoder]) -> str | None:
    """Say why passes cannot be captured here; None if they can."""
    if not _on_gpu(setup):
        return "nothing is compiled on a CPU"
    for loaded in (setup.target, *setup.others.values()):
        if (why := loaded.staged.graphs.why_not()) is not None:
            return f"{loaded.spec.name}: {why}"
    for label, decoder in decoders.items():
        if decoder.units > 1:
            return f"{label} runs on several units with a device or a start of their own"
    return None


def _on_gpu(setup: Setup) -> bool:
    return setup.target.staged.device.type == "cuda"
