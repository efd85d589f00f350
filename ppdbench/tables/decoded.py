"""Figures of stored decoding runs, in the form that tables of several papers ask for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ppdbench.bench.claims import no_difference
from ppdbench.bench.summary import summarize
from ppdbench.bench.sums import add_up
from ppdbench.errors import DataError
from ppdbench.report.evidence import interval, mostly_degenerate
from ppdbench.runs.records import DecodedSample
from ppdbench.runs.store import StoredRun
from ppdbench.scoring import score_samples
from ppdbench.stats import FEW, FEW_EXAMPLES

KINDS = ("decode", "bench")
K = TypeVar("K", bound=Hashable)
NO_DIFFERENCE = "no difference from the noise of greedy decoding"


def summaries(
    runs: Sequence[StoredRun], tasks: Iterable[str] | None = None
) -> list[dict[str, Any]]:
    """Summarize all decoding runs, on some tasks or on all, each with its run.

    Quality is left out: who needs a score asks for that one.
    """
    wanted = None if tasks is None else set(tasks)
    return [
        {**summary, "run": run}
        for run in runs
        if run.header.kind in KINDS
        for summary in summarize(run.header, add_up(run.samples), scores=False)
        if wanted is None or summary["task"] in wanted
    ]


def one_each(
    summaries: Iterable[Mapping[str, Any]], place: Callable[[Mapping[str, Any]], K]
) -> dict[K, Mapping[str, Any]]:
    """Summaries by their place in a table; two settings of a method in one place are refused."""
    found: dict[K, Mapping[str, Any]] = {}
    for summary in summaries:
        other = found.setdefault(place(summary), summary)
        if other is not summary:
            named = ((s["label"], s["run"]) for s in (other, summary))
            raise two_settings(summary["method"], summary["task"], *named)
    return found


def two_settings(method: str, task: str, *named: tuple[str, StoredRun]) -> DataError:
    """The error of a table that shows one setting and was given two, each a label and its run."""
    told = " and ".join(f"{label} ({run.path})" for label, run in named)
    return DataError(
        f"{told} are two settings of {method} on {task}, and this table shows one; give one"
    )


def quality(summary: Mapping[str, Any], metric: str) -> float | None:
    """One score of a task and method; random weights have none."""
    run: StoredRun = summary["run"]
    done = [
        sample
        for sample in run.samples
        if (sample.task, sample.method) == (summary["task"], summary["label"])
        and isinstance(sample, DecodedSample)
        and sample.references
    ]
    if summary["synthetic"] or not done:
        return None
    return score_samples([metric], done).get(metric)


def facts(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what the run wrote down of the method beyond its options."""
    run: StoredRun = summary["run"]
    return run.header.facts.get(summary["label"], {})


def settled(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a method, with what it chose where these left the choice to it."""
    return {**summary["options"], **summary["chosen"]}


def n_layers(summary: Mapping[str, Any]) -> int:
    """Return the number of layers of the model that was run."""
    run: StoredRun = summary["run"]
    return run.header.model.n_layers


def ms_per_pass(summary: Mapping[str, Any]) -> float | None:
    """Time of a decoding step, drafting included."""
    per_token, tokens = summary["ms_per_token"], summary["committed_per_step"]
    return None if per_token is None or tokens is None else per_token * tokens


def speedup(summary: Mapping[str, Any]) -> float | None:
    """Over greedy decoding, which is compared with itself here; None of what noise could be."""
    if summary["method"] == "greedy":
        return 1.0
    value: float | None = None if no_difference(summary) else summary["speedup"]
    return value


def evidence(summaries: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Notes on why speedups are left out, and on what those that are shown rest on."""
    all_of, whose = list(summaries), dict[str, dict[str, None]]()
    for summary in all_of:
        if summary["method"] == "greedy":
            continue
        named, why = f"{summary['label']} on {summary['task']}", summary["speedup_withheld"]
        if why is not None:
            whose.setdefault(why, {})[named] = None
        elif no_difference(summary):
            ends = interval(summary["speedup_low"], summary["speedup_high"])
            whose.setdefault(NO_DIFFERENCE, {})[f"{named} {ends}"] = None
    left_out = (f"No speedup, {why}: {', '.join(names)}." for why, names in whose.items())
    return (*left_out, *(_doubts(all_of)))


def _doubts(summaries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say of runs what makes their times worth less."""
    loads = dict.fromkeys(s["under_load"] for s in summaries if s["under_load"])
    yield from (f"Under load: {load}." for load in loads)
    if alike := [f"{s['label']} on {s['task']}" for s in summaries if mostly_degenerate(s)]:
        yield f"Half or more of the outputs are empty or loop: {', '.join(alike)}."
    if any(s["n_timed"] < FEW_EXAMPLES for s in summaries):
        yield FEW
