"""Whether the passes of a run are compiled: because it was asked for, or because it pays.

Compiling takes tens of seconds for each number of rows, once per layer shape and machine;
what it saves is a share of every pass. Short runs stay eager, unless it was done before.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ppdbench.engine import artefacts
from ppdbench.engine.compiled import MOST_ROWS
from ppdbench.engine.loading import Loaded
from ppdbench.errors import ConfigError
from ppdbench.strategies.base import Decoder, Setup
from ppdbench.workload import Report

MODES = ("auto", "on", "off")

# What is to be compiled, the target first: models, and the numbers of rows of their passes.
Models = Sequence[tuple[Loaded, set[int]]]

# Rough on purpose: they only tell runs of seconds from runs of hours.
COMPILE_S = 30.0  # per number of rows
SAVED = 0.3  # of the time of a pass
BYTES_PER_S = 1e10
LAYER_S = 1e-4

DRAFTING = (1, 2)  # rows of a draft model's passes: the newest token, and one it missed


def settle(
    mode: str, setup: Setup, decoders: Mapping[str, Decoder], tokens: int, report: Report
) -> dict[str, Any]:
    """Compile or do not; what the header says of it. `tokens` are all that the run decodes."""
    check_mode(mode)
    wanted = _wanted(setup, decoders.values())
    if (refusal := _refusal(mode, wanted, decoders, tokens)) is not None:
        return {"mode": mode, "rows": [], **refusal}
    start = time.perf_counter()
    for loaded, counts in wanted:
        report("compiling", 0, None)
        loaded.staged.compile(counts)
    setup.share_weights()
    seconds = round(time.perf_counter() - start, 1)
    return {"mode": mode, "rows": sorted(wanted[0][1]), "seconds": seconds}


def check_mode(mode: str) -> None:
    """Refuse what is no way to compile."""
    if mode not in MODES:
        raise ConfigError(f"--compile {mode}: use {', '.join(MODES)}")


def _wanted(setup: Setup, decoders: Collection[Decoder]) -> Models:
    """The models of a run, and which numbers of rows their passes have."""
    rows = {d.rows for d in decoders if not d.foreign}
    target = {1, *(n for n in rows if n <= MOST_ROWS)}
    return [(setup.target, target), *((other, set(DRAFTING)) for other in setup.others.values())]


def _refusal(
    mode: str, wanted: Models, decoders: Mapping[str, Decoder], tokens: int
) -> dict[str, Any] | None:
    """Why passes stay eager, if they do; an error where compiled ones were asked for."""
    if mode == "off":
        return {"why": "not asked for"}
    why = _unfit(wanted) or _spread(decoders) or (_too_wide(decoders) if mode == "auto" else None)
    missing = 0 if why else sum(len(one.staged.compiled.missing(n)) for one, n in wanted)
    if missing and mode == "auto":
        cost, gain = COMPILE_S * missing, SAVED * tokens * _pass_seconds(wanted[0][0])
        if cost > gain:
            why = (
                f"compiling would take about {cost:.0f} s and save about {gain:.0f} s of this "
                "run; --compile on does it once and keeps it"
            )
            return {"why": why, "saves_s": round(gain, 1)}
    if missing:
        why = artefacts.why_not()
    if why is not None and mode == "on":
        raise ConfigError(f"--compile on: {why}; leave it out")
    return None if why is None else {"why": why}


def _unfit(wanted: Models) -> str | None:
    """Why one of the models cannot be compiled, if so."""
    for loaded, _ in wanted:
        if (why := loaded.staged.compiled.why_not()) is not None:
            return f"{loaded.spec.name}: {why}"
    return None


def _spread(decoders: Mapping[str, Decoder]) -> str | None:
    """Compiled passes have the threads that they were made for; units get fewer."""
    for label, decoder in decoders.items():
        if decoder.units > 1:
            return f"{label} runs on several units, with threads of their own"
    return None


def _too_wide(decoders: Mapping[str, Decoder]) -> str | None:
    for label, decoder in decoders.items():
        if decoder.rows > MOST_ROWS and not decoder.foreign:
            return f"{label} runs {decoder.rows} rows at once; beyond {MOST_ROWS} eager is faster"
    return None


def _pass_seconds(loaded: Loaded) -> float:
    """About how long a pass takes."""
    staged = loaded.staged
    return staged.weight_bytes() / BYTES_PER_S + LAYER_S * staged.n_layers
