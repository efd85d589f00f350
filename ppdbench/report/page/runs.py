"""The page's subject: stored runs, each summarized once, under names that tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ppdbench.bench.summary import overall, summarize
from ppdbench.bench.sums import SampleSums, add_up
from ppdbench.errors import ConfigError, DataError
from ppdbench.probe.accuracy import Accuracy, accuracies
from ppdbench.probe.buckets import stored_buckets
from ppdbench.probe.ranks import StoredRanks
from ppdbench.probe.similarity import Similarity, similarities
from ppdbench.probe.summary import Rate, match_rates
from ppdbench.runs.records import FailedSample, Header, Sample, probing
from ppdbench.runs.samples import fewest_examples
from ppdbench.runs.store import StoredRun, read_once, read_run_header, read_whole
from ppdbench.runs.unfinished import unfinished

PROBES = ("probe",)
DECODES = ("decode", "bench")
SWEEPS = ("sweep",)
DRAFTS = ("drafts",)
SIMILARITY = ("similarity",)
KINDS = (*PROBES, *DECODES, *SWEEPS, *DRAFTS, *SIMILARITY)
FLAGGED = ("failed", "mismatch", "tie", "inexact")  # verdicts a reader looks for first


class HeldToGreedy(NamedTuple):
    """The outputs of exact methods that were held against greedy decoding's."""

    judged: int
    identical: int
    ties: int


@dataclass(frozen=True)  # no slots: what is computed once is kept
class Run:
    """A stored run and what is derived from it."""

    name: str
    stored: StoredRun

    @property
    def header(self) -> Header:
        """The content of run.json."""
        return self.stored.header

    @property
    def kind(self) -> str:
        """The command that ran: probe, decode, bench, ..."""
        return self.header.kind

    @property
    def is_decode(self) -> bool:
        """True if methods were timed against greedy."""
        return self.kind in (*DECODES, *SWEEPS)

    @property
    def is_probe(self) -> bool:
        """True if layers were ranked."""
        return self.kind in PROBES

    @cached_property
    def sums(self) -> list[SampleSums]:
        """A decoding run, read once."""
        return add_up(self.stored.samples)

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """Everything finished; of decoding runs without the lists that are in `sums`."""
        return [one.about for one in self.sums] if self.is_decode else list(self.stored.samples)

    @cached_property
    def tasks(self) -> list[str]:
        """Tasks in the order in which they were run."""
        return list(dict.fromkeys(sample.task for sample in self.samples))

    @cached_property
    def fewest_examples(self) -> int:
        """Examples of the task that has the fewest; intervals are only as good as that."""
        return fewest_examples(self.samples)

    @cached_property
    def unfinished(self) -> str | None:
        """A sentence on what is missing."""
        return unfinished(self.header, self.samples)

    @cached_property
    def processes(self) -> str:
        """A note on how many processes shared the machine while it was timed."""
        told = {sample.shared_by for sample in self.samples}
        known = [processes for processes in told if processes is not None]
        return str(max(known)) if len(known) == len(told) else "jobs that came and went"

    @cached_property
    def failed(self) -> list[FailedSample]:
        """Examples without a result."""
        return [sample for sample in self.samples if isinstance(sample, FailedSample)]

    @cached_property
    def done(self) -> list[Sample]:
        """Examples with a result."""
        return [sample for sample in self.samples if not isinstance(sample, FailedSample)]

    @cached_property
    def summaries(self) -> list[dict[str, Any]]:
        """A decoding run by task and method. Quality is left out: scoring takes longer than all
        the rest."""
        return summarize(self.header, self.sums, scores=False)

    @cached_property
    def overall(self) -> list[dict[str, Any]]:
        """A decoding run by method."""
        return overall(self.header, self.sums) if len(self.tasks) > 1 else self.summaries

    @cached_property
    def ranks(self) -> StoredRanks:
        """A probe run's ranks, layer by layer."""
        return StoredRanks(self.done)

    @cached_property
    def rates(self) -> list[Rate]:
        """A probe run's match rates, by bucket and pooled."""
        ks = probing(self.header).config.ks
        return match_rates(self.ranks, ks, stored_buckets(self.header, self.done))

    @cached_property
    def accuracies(self) -> list[Accuracy]:
        """The accuracies of a drafts run's guesses."""
        return accuracies(self.done)

    @cached_property
    def similarities(self) -> list[Similarity]:
        """The closeness of a similarity run's pseudo states to true ones."""
        return similarities(self.done)

    @cached_property
    def held_to_greedy(self) -> HeldToGreedy:
        """Count the outputs of exact methods, those of greedy decoding itself only if alone."""
        exact = [s for s in self.summaries if s["exact"] and s["target"] == "greedy"]
        told = [s for s in exact if s["method"] != "greedy"] or exact
        judged = sum(s["n_examples"] - s["failed"] for s in told)
        return HeldToGreedy(judged, *(sum(s[kind] for s in told) for kind in ("identical", "tie")))

    @cached_property
    def mismatches(self) -> int:
        """Outputs of exact methods that differ from greedy's."""
        if not self.is_decode:
            return 0
        return sum(s["mismatch"] for s in self.summaries if s["exact"])


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """The runs in these folders, in that order."""
    folders = [Path(path) for path in paths]
    twice = [f for f, n in Counter(folder.resolve() for folder in folders).items() if n > 1]
    if twice:
        raise ConfigError(f"run {twice[0]} is given twice")
    return [_read(name, folder) for name, folder in zip(_names(folders), folders, strict=True)]


def _read(name: str, folder: Path) -> Run:
    kind = read_run_header(folder).kind
    if kind not in KINDS:
        raise DataError(f"{folder} holds a {kind} run; a report shows runs of {', '.join(KINDS)}")
    stored = read_once(folder) if kind in (*DECODES, *SWEEPS) else read_whole(folder)
    if not stored.samples:
        torn = ", only a line that is incomplete" if stored.torn else ""
        raise DataError(f"{folder} holds no finished samples{torn}; finish the run with --resume")
    run = Run(name, stored)
    if not run.done and not run.is_decode:
        raise DataError(f"{folder}: every example failed, so there is nothing to show")
    return run


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with as many of their parents as it takes to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            break
    return names


def of_kind(runs: Iterable[Run], kinds: Sequence[str]) -> list[Run]:
    """The runs of these kinds."""
    return [run for run in runs if run.kind in kinds]
