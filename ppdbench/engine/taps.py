"""Taps: what is handed the states that layers give, with the number of layers run by then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

Tap = Callable[[int, Tensor], None]


class StateTap:
    """Keeps in `into` what some of the layers give; the others may be run in one go."""

    def __init__(self, layers: Collection[int], into: dict[int, Tensor]) -> None:
        self.layers, self.into = frozenset(layers), into

    def __call__(self, layer: int, hidden: Tensor) -> None:
        """Keep the state if it is one of those."""
        if layer in self.layers:
            self.into[layer] = hidden


def stretches(layers: range, tap: Tap | None) -> Sequence[int]:
    """The ends of stretches of layers that may be run in one go: a tap looks behind each."""
    if tap is None:
        return [layers.stop]
    ends = range(layers.start + 1, layers.stop + 1)
    if not isinstance(tap, StateTap):
        return ends
    return [end for end in ends if end in tap.layers or end == layers.stop]


def joined(taps: Collection[Tap | None], into: dict[int, Tensor]) -> Tap | None:
    """One tap that keeps whatever any of these wants to see; None where nobody does."""
    there = [tap for tap in taps if tap is not None]
    if not there:
        return None
    known = [tap for tap in there if isinstance(tap, StateTap)]
    if len(known) < len(there):
        return into.__setitem__
    return StateTap(frozenset[int]().union(*(tap.layers for tap in known)), into)
