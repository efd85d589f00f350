"""The ways in which guesses of methods come, as far as trees and probes depend on it.

A method says so where it is registered: `@strategy(..., guessing=Guessing(...))`. The package
`ppdbench.methods` knows all of them, so whoever asks here imports it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppdbench.registry import Registry


@dataclass(frozen=True, slots=True)
class Guessing:
    """The facts about a method's guesses that no calibration tells."""

    rows_per_guess: int = 0
    """Rows of a pass that a guess takes besides its node."""
    dynamic_trees: bool = False
    """Nodes need not all be followed by as many guesses."""
    unguided_steps: int = 0
    """Steps at the start of an output that have no guesses yet."""
    by_branch: bool = False
    """Behind other guesses than its likeliest it makes others than were counted."""
    pseudo_states: bool = False
    """It guesses with states among those of the layers, which true ones can be held against."""


GUESSING: Registry[Guessing] = Registry("method that guesses")


def _registered() -> Registry[Guessing]:
    assert GUESSING.names(), "import ppdbench.methods: its methods say how they guess"
    return GUESSING


def guessing_of(label: str) -> Guessing:
    """Return what is known of a method, by its name or the label it has with its options."""
    return _registered().find(method_name(label)) or Guessing()


def method_name(label: str) -> str:
    """The method's name, without the options that it may be labelled with."""
    return label.partition(":")[0]


def guessers(fact: str | None = None) -> list[str]:
    """List the methods that guess, or those of which a fact holds."""
    registered = _registered()
    known = {name: registered.find(name) for name in registered}
    return [
        name
        for name, guessing in known.items()
        if guessing is not None and (fact is None or getattr(guessing, fact))
    ]
