"""The decision to compile the passes of a run: because it was asked for, or because it pays.

Compiling takes tens of seconds for each number of rows, once per layer shape and machine;
what it saves is a share of every pass. Short runs stay eager, unless it was done before. A run
goes on as it began: who resumes it, and every rank but the first, does as its header says.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import psutil
import torch

from ppdbench.bench.interleaved import unit_threads
from ppdbench.decoding.decoder import Decoder, Setup
from ppdbench.engine import artefacts
from ppdbench.engine.compiled import MOST_ROWS
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.loading import Loaded
from ppdbench.errors import ConfigError
from ppdbench.machine.cores import confined
from ppdbench.machine.environment import cpu_features
from ppdbench.runs.records import Compilation
from ppdbench.runs.workload import Report

MODES = ("auto", "on", "off")

# Rough on purpose: they only tell runs of seconds from runs of hours.
COMPILE_S = 30.0  # per number of rows
SAVED = 0.3  # of the time of a pass
BYTES_PER_S = 1e10
LAYER_S = 1e-4

DRAFTING = (1, 2)  # rows of a draft model's passes: the newest token, and one it missed


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A request to compile one model's passes of few rows: their numbers of rows, by threads.

    `wider` are those of its methods whose passes have more rows than compiling is good for.
    """

    loaded: Loaded
    counts: Mapping[int, Collection[int]]
    wider: frozenset[int] = frozenset()

    def missing(self) -> int:
        """Count the numbers of rows that nothing is on disk for; a GPU keeps nothing there."""
        if self.loaded.staged.device.type == "cuda":
            return 0
        missing = 0
        for threads, counts in self.counts.items():
            with confined((), threads):
                missing += len(self.loaded.staged.compiled.missing(counts))
        return missing

    def rows(self) -> list[int]:
        """The numbers of rows, all of them."""
        return sorted(set(chain.from_iterable(self.counts.values())))

    def lacks_memory(self) -> str | None:
        """Say why no packed copy of the weights for wider passes can be kept; None if one can."""
        if not self.wider or self.loaded.staged.device.type == "cuda":
            return None
        size, free = self.loaded.staged.weight_bytes(), psutil.virtual_memory().available
        if 2 * size < free:
            return None
        return (
            f"passes of {_listed(self.wider)} rows stay eager and want a copy of the weights of "
            f"their own, {size / 1e9:.1f} GB where {free / 1e9:.1f} GB are free"
        )

    def compile(self) -> None:
        """Do it; wider passes get a copy of the weights of their own where there is room."""
        wider = bool(self.wider) and self.lacks_memory() is None
        for threads, counts in self.counts.items():
            with confined((), threads):
                self.loaded.staged.compile(counts, wider=wider)


def settle(
    mode: str,
    setup: Setup,
    decoders: Mapping[str, Decoder],
    tokens: int,
    report: Report,
    begun: Compilation | None = None,
) -> Compilation:
    """Compile or do not; what the header says of it. `tokens` are all that the run decodes.

    `begun` is what it says already, where this process joins a run or goes on with one.
    """
    check_mode(mode)
    wanted = _wanted(setup, decoders.values())
    if begun is not None:
        _check_joins(begun, wanted, decoders)
    why = _refusal(mode, wanted, decoders, tokens) if begun is None else _as_begun(begun)
    if why is not None:
        return Compilation(mode=mode, rows=[], **why)
    start = time.perf_counter()
    for model in wanted:
        report("compiling", 0, None)
        model.compile()
    setup.share_weights()
    seconds = round(time.perf_counter() - start, 1)
    rows, eager = wanted[0].rows(), sorted(wanted[0].wider)
    return Compilation(mode=mode, rows=rows, eager_rows=eager, seconds=seconds)


def check_mode(mode: str) -> None:
    """Refuse what is no way to compile."""
    if mode not in MODES:
        raise ConfigError(f"--compile {mode}: use {', '.join(MODES)}")


def _wanted(setup: Setup, decoders: Collection[Decoder]) -> list[CompileRequest]:
    """The models of a run, the target first, and which numbers of rows their passes have.

    Greedy decoding, one row a pass, is beside everything, with the threads of a unit and of all.
    """
    ours = [d for d in decoders if not d.foreign]
    threads = torch.get_num_threads()
    counts = {threads: {1}, **{n: {1} for d in ours for n in unit_threads(d)}}
    captured = setup.target.staged.device.type == "cuda"  # whatever their number
    wider = set[int]()
    for decoder in ours:
        if decoder.rows <= MOST_ROWS or captured:
            counts.setdefault(decoder.threads or threads, {1}).add(decoder.rows)
        else:
            wider.add(decoder.rows)
    target = CompileRequest(setup.target, counts, frozenset(wider))
    drafting = {threads: DRAFTING}
    return [target, *(CompileRequest(other, drafting) for other in setup.others.values())]


def _refusal(
    mode: str, wanted: Collection[CompileRequest], decoders: Mapping[str, Decoder], tokens: int
) -> dict[str, Any] | None:
    """Say why passes stay eager, if they do; an error where compiled ones were asked for."""
    if mode == "off":
        return {"why": "not asked for"}
    why = _unfit(wanted) or _spread(decoders)
    if mode == "auto":
        why = (
            why
            or _flat(wanted)
            or _unproven(wanted)
            or next(filter(None, (w.lacks_memory() for w in wanted)), None)
        )
    missing = 0 if why else sum(model.missing() for model in wanted)
    if missing and mode == "auto":
        cost, gain = COMPILE_S * missing, SAVED * tokens * _pass_seconds(next(iter(wanted)).loaded)
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


def _as_begun(begun: Compilation) -> dict[str, Any] | None:
    """Say why passes stay eager, in the words of the run that is resumed."""
    return None if begun.rows else {"why": begun.why}


def _check_joins(
    begun: Compilation, wanted: Collection[CompileRequest], decoders: Mapping[str, Decoder]
) -> None:
    """Refuse to go on eagerly with what began compiled: its times would be of two kinds."""
    if not begun.rows:
        return
    why = _unfit(wanted) or _spread(decoders)
    if why is None and any(model.missing() for model in wanted):
        why = artefacts.why_not()
    if why is not None:
        raise ConfigError(
            f"this run began with compiled passes, which are out of reach here: {why}; go on where "
            "they are not, or begin again with --compile off"
        )


def _unfit(wanted: Collection[CompileRequest]) -> str | None:
    """Say why one of the models cannot be compiled; None if all can."""
    for model in wanted:
        if (why := model.loaded.staged.why_eager()) is not None:
            return f"{model.loaded.spec.name}: {why}"
    return None


def _flat(wanted: Collection[CompileRequest]) -> str | None:
    """Flat passes need no compiling, and compute rows of wide passes as those of narrow ones."""
    path = next(iter(wanted)).loaded.staged.path
    return f"passes run {path.kernels}" if path.kernels.startswith(FLAT) else None


def _unproven(wanted: Collection[CompileRequest]) -> str | None:
    """Refuse where nobody has measured yet what compiling saves: it has to be asked for."""
    staged = [model.loaded.staged for model in wanted]
    if any(model.device.type == "cuda" for model in staged):
        return "on a GPU passes are captured as graphs only with --compile on"
    if "amx_bf16" in (cpu_features() or ()) and any(
        model.dtype == torch.bfloat16 for model in staged
    ):
        return "with AMX, which makes wide products in bfloat16, only with --compile on"
    return None


def _spread(decoders: Mapping[str, Decoder]) -> str | None:
    """Units that load a part of the model for themselves run it as it is."""
    for label, decoder in decoders.items():
        if decoder.units > 1 and not decoder.compiles:
            return f"{label} runs on several units with a device or a start of their own"
    return None


def _pass_seconds(loaded: Loaded) -> float:
    """About how long a pass takes."""
    staged = loaded.staged
    return staged.weight_bytes() / BYTES_PER_S + LAYER_S * staged.n_layers


def _listed(counts: Collection[int]) -> str:
    return " and ".join(map(str, sorted(counts)))
