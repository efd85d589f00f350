"""Counterparts: our method for each of transformers' that does the same, compared in a run.

A run with `--against transformers` decodes every example with both, in turns, so their ratio is
paired by example like a speedup. No torch: stored runs are read with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppdbench.bench.claims import Speedup, TimedPair, claim, noise_of
from ppdbench.bench.conditions import turns_of
from ppdbench.bench.sums import SampleSums
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.runs.records import DecodingHeader, Header, decoding
from ppdbench.stats import Ratio


def peers(names: Collection[str] | None = None) -> list[Method]:
    """The methods of other engines, or those among some names; each says what it is the peer of."""
    found = (METHODS.get(name) for name in METHODS if names is None or name in names)
    return [method for method in found if method.peer_of]


def is_greedy(name: str) -> bool:
    """True of plain greedy decoding, by our engine or another."""
    return name == "greedy" or any(peer.peer_of == "greedy" for peer in peers({name}))


@dataclass(frozen=True, slots=True)
class Beside:
    """The speedup of our method over its counterpart, over all tasks, where it may be claimed."""

    ours: str
    theirs: str
    n_examples: int
    speedup: Speedup
    noise: Ratio | None
    """The ratios of greedy decoding to itself, which took turns with both."""


def beside(header: Header, sums: Sequence[SampleSums]) -> list[Beside]:
    """Pair each method with its counterpart in this run, where they took turns, by both labels."""
    done: dict[str, dict[tuple[str, str], SampleSums]] = {}
    for one in sums:
        if not one.failed:
            key = one.task, one.about.example_id
            done.setdefault(one.method, {})[key] = one
    header = decoding(header)
    pairs = [pair for pair in _pairs(header) if done.keys() >= {*pair}]
    turns = turns_of(header)
    # All that took turns with ours and theirs.
    noise = {
        turn: noise_of(header.methods, [one for one in sums if turns[one.method] == turn])
        for turn in {turns[ours] for ours, _ in pairs}
    }
    found = (
        _compared(ours, theirs, done[ours], done[theirs], noise[turns[ours]])
        for ours, theirs in pairs
    )
    return [each for each in found if each.n_examples]


def _pairs(header: DecodingHeader) -> Iterator[tuple[str, str]]:
    methods, chosen = header.methods, header.chosen or {}
    settled = {label: {**m.options, **chosen.get(label, {})} for label, m in methods.items()}
    for peer in peers({about.name for about in methods.values()}):
        for label, about in methods.items():
            for other, theirs in methods.items():
                alike = all(settled[label].get(n) == settled[other].get(n) for n in peer.alike)
                names = about.name, theirs.name
                if names == (peer.peer_of, peer.name) and about.batch == theirs.batch and alike:
                    yield label, other


def _compared(
    our_label: str,
    their_label: str,
    mine: Mapping[tuple[str, str], SampleSums],
    other: Mapping[tuple[str, str], SampleSums],
    noise: Ratio | None,
) -> Beside:
    # As if each had given as many tokens as greedy: outputs may differ in length by a tie.
    both = [
        TimedPair((ours, other[key]), (_as_greedy(other[key]), _as_greedy(ours)))
        for key, ours in mine.items()
        if key in other and _took_turns(ours, other[key])
    ]
    return Beside(our_label, their_label, len(both), claim(both), noise)


def _took_turns(one: SampleSums, other: SampleSums) -> bool:
    """True if two outputs were timed beside the very same ones of greedy decoding.

    Of those that a run was resumed for one may be of another day.
    """
    return one.baseline_step_ms == other.baseline_step_ms and one.again_ms == other.again_ms


def _as_greedy(one: SampleSums) -> float:
    return one.step_ms * one.same_length
