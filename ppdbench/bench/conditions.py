"""The conditions of measuring: the noise of greedy decoding, and what else ran meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppdbench.bench.claims import noise_of
from ppdbench.bench.sums import SampleSums
from ppdbench.runs.records import DecodingHeader, DecodingMethod
from ppdbench.stats import Ratio, median

OTHERS = 0.2  # of the cores' time
STOLEN = 0.02
SPREAD = 1.15  # of two times of one example, in the middle of all examples


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of methods that took turns."""

    noise: Ratio | None
    under_load: str | None
    """The disturbance of the times, in words; None on a quiet machine."""

    @classmethod
    def of(cls, methods: Mapping[str, DecodingMethod], sums: Sequence[SampleSums]) -> Conditions:
        """Sum up the conditions of these samples."""
        done = [one for one in sums if not one.failed]
        return cls(noise_of(methods, done), "; ".join([*_watched(done), *_spread(done)]) or None)


def turns_of(header: DecodingHeader) -> dict[str, tuple[int, str]]:
    """Name what each method shares with those that it took turns with: the batch, and the day."""
    added = header.added or {}
    return {label: (of.batch, added.get(label, "")) for label, of in header.methods.items()}


def _watched(done: Sequence[SampleSums]) -> Iterator[str]:
    """Describe what other programs and the host were seen to do."""
    loads = [one.about.load for one in done if one.about.load]
    whole = sum(load.seconds * load.cores for load in loads)
    if not whole:
        return
    cores = max(load.cores for load in loads)
    averages = [load.load_average for load in loads if load.load_average is not None]
    others = sum(load.others_s for load in loads) / whole
    stolen = sum(load.stolen_s for load in loads) / whole
    unit = "core" if cores == 1 else "cores"
    # This run alone has no more threads at work than there are cores.
    if averages and median(averages) > cores + 1:
        yield f"load average {median(averages):.1f} on {cores} {unit}"
    if others > OTHERS:
        yield f"other programs used {100 * others:.0f}% of {cores} {unit}"
    if stolen > STOLEN:
        yield f"the host took {100 * stolen:.0f}% of the processor's time"


def _spread(done: Sequence[SampleSums]) -> Iterator[str]:
    """Describe how unlike two times of the same work were."""
    pairs = [(one.baseline_step_ms, one.again_ms) for one in done]
    ratios = [max(a / b, b / a) for a, b in pairs if a > 0 and b > 0]
    if ratios and median(ratios) > SPREAD:
        yield f"greedy decoding took {median(ratios):.2f} times as long in one of its two runs"
