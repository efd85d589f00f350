"""Counterparts: our method for each of transformers' that does the same, compared in a run.

A run with `--against transformers` decodes every example with both, in turns, so their ratio is
paired by example like a speedup. No torch: stored runs are read with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppdbench.bench.claims import Speedup, TimedPair, claim
from ppdbench.bench.sums import SampleSums
from ppdbench.runs.records import DecodingMethod, Header, decoding

GREEDY = ("transformers:greedy", "transformers:greedy-static")
ASSISTANT = "transformers:assistant"
# Our method, its counterpart, and the options that mean the same in both.
COUNTERPARTS = (
    ("layerskip", "transformers:early-exit", ("exit_layer", "draft_length")),
    ("prompt-lookup", "transformers:prompt-lookup", ("longest_suffix", "max_draft")),
    ("speculative", ASSISTANT, ("draft_model", "draft_length")),
)


@dataclass(frozen=True, slots=True)
class Beside:
    """The speedup of our method over its counterpart, over all tasks, where it may be claimed."""

    ours: str
    theirs: str
    n_examples: int
    speedup: Speedup


def beside(header: Header, sums: Sequence[SampleSums]) -> list[Beside]:
    """Pair each method with its counterpart in this run, by the labels of both."""
    done: dict[str, dict[tuple[str, str], SampleSums]] = {}
    for one in sums:
        if not one.failed:
            key = one.task, one.about.example_id
            done.setdefault(one.method, {})[key] = one
    return [
        _compared(ours, theirs, done[ours], done[theirs])
        for ours, theirs in _pairs(decoding(header).methods)
        if ours in done and theirs in done
    ]


def _pairs(methods: Mapping[str, DecodingMethod]) -> Iterator[tuple[str, str]]:
    kinds = (*(("greedy", theirs, ()) for theirs in GREEDY), *COUNTERPARTS)
    for ours, theirs, shared in kinds:
        for label, about in methods.items():
            for other, peer in methods.items():
                same = all(about.options.get(n) == peer.options.get(n) for n in shared)
                if (about.name, about.batch) != (ours, peer.batch):
                    continue
                if peer.name == theirs and same:
                    yield label, other


def _compared(
    our_label: str,
    their_label: str,
    mine: Mapping[tuple[str, str], SampleSums],
    other: Mapping[tuple[str, str], SampleSums],
) -> Beside:
    # As if each had given as many tokens as greedy: outputs may differ in length by a tie.
    both = [
        TimedPair((ours, other[key]), (_as_greedy(other[key]), _as_greedy(ours)))
        for key, ours in mine.items()
        if key in other
    ]
    return Beside(our_label, their_label, len(both), claim(both))


def _as_greedy(one: SampleSums) -> float:
    return one.step_ms * one.same_length
