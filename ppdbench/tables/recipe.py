"""Recipes: the commands that have to be run for a table, as data that fits any model."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import NamedTuple

from ppdbench.errors import ConfigError

FRACTION = re.compile(r"\{(\d+)/(\d+)\}")
NAMED = re.compile(r"\{([a-z][a-z0-9-]*)\}")
# What a user names, for a recipe to use: {text} to train on, {heads} trained for layers.
GIVEN = ("text", "heads")
METHOD = "--method"
WORKING = ("probe", "decode", "bench")  # on tasks and examples


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One command, as it is typed after `ppdbench`, without --model, --limit and --out.

    `{20/40}` stands for that share of the model's layers, `{name}` for the folder of an earlier
    step, `{text}` and `{heads}` for what the user names; an option with nothing to stand there is
    left out. A step has its name for itself in all recipes: tables that ask for the same command
    name it alike and share what comes out.
    """

    name: str
    command: str

    def __post_init__(self) -> None:
        if self.command.split()[0] not in (*WORKING, "train"):
            raise ValueError(f"step {self.name!r}: {self.command!r} leaves no folder behind")

    @property
    def works_on_examples(self) -> bool:
        """True if --data, --limit and --max-new-tokens are for it."""
        return self.command.split()[0] in WORKING

    @property
    def names(self) -> frozenset[str]:
        """The earlier steps that it uses, and what it wants from the user."""
        return frozenset(NAMED.findall(self.command))

    @property
    def needs_depth(self) -> bool:
        """True if it depends on how many layers the model has."""
        return FRACTION.search(self.command) is not None

    def words(self, n_layers: int | None, meant: Mapping[str, str | None]) -> list[str]:
        """The command line for a model of so many layers; `meant` is what names stand for."""
        command = self.command if n_layers is None else with_layers(self.command, n_layers)
        words: list[str] = []
        for word in shlex.split(command):
            if any(meant[name] is None for name in NAMED.findall(word)):
                words.pop()  # the option that this would be the value of
            else:
                words.append(NAMED.sub(lambda found: str(meant[found[1]]), word))
        return words

    def adds_to(self, command: str) -> bool:
        """True if it names methods besides those of another bench, and is that one but for them."""
        mine, theirs = methods_apart(self.command), methods_apart(command)
        is_bench = self.command.split()[0] == "bench"
        return is_bench and mine.rest == theirs.rest and {*mine.methods} > {*theirs.methods}


TableRecipe = tuple[RecipeStep, ...]


class MethodsApart(NamedTuple):
    """The words of a command: the methods that it names, and all others."""

    methods: list[str]
    rest: list[str]


def methods_apart(command: str) -> MethodsApart:
    """Take the methods out of a command."""
    words = shlex.split(command)
    named = [i for i, before in enumerate(words[:-1], 1) if before == METHOD]
    rest = [word for i, word in enumerate(words) if i not in named and word != METHOD]
    return MethodsApart([words[i] for i in named], rest)


def with_layers(command: str, n_layers: int) -> str:
    """The command with its fractions as layers of the model, different ones as different layers."""
    asked = {Fraction(int(a), int(b)) for a, b in FRACTION.findall(command)}
    layers = layers_at(asked, n_layers)
    return FRACTION.sub(lambda it: str(layers[Fraction(int(it[1]), int(it[2]))]), command)


def layers_at(shares: Iterable[Fraction], n_layers: int) -> dict[Fraction, int]:
    """The layers that stand as deep as these shares of the model, never the last one.

    Where two fall on one layer the others move aside, as far as there are layers.
    """
    ordered = sorted(set(shares))
    layers = [layer_at(share, n_layers) for share in ordered]
    if len(layers) < n_layers:
        for i in range(1, len(layers)):
            layers[i] = max(layers[i], layers[i - 1] + 1)
        for i in reversed(range(len(layers))):
            layers[i] = min(layers[i], n_layers - len(layers) + i)
    return dict(zip(ordered, layers, strict=True))


def layer_at(share: Fraction, n_layers: int) -> int:
    """The layer nearest to this share of the model; never the last one."""
    if n_layers < 2:
        raise ConfigError(f"a model of {n_layers} layer has none before the last; use a deeper one")
    return min(max(1, floor(share * n_layers + Fraction(1, 2))), n_layers - 1)


def nearest_layers(
    theirs: Sequence[int], of: int, ours: Sequence[int], n_layers: int
) -> dict[int, int]:
    """Map their layers to ours: each of ours once, where it is nearest.

    Where the model is shallow some of theirs are left without.
    """
    found: dict[int, int] = {}
    for layer in ours:
        there = min(theirs, key=lambda other: abs(other * n_layers - layer * of))
        kept = found.get(there)
        if kept is None or _off(there, of, layer, n_layers) < _off(there, of, kept, n_layers):
            found[there] = layer
    return found


def _off(theirs: int, of: int, ours: int, n_layers: int) -> int:
    return abs(theirs * n_layers - ours * of)
