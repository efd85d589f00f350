"""Strategies: the options of a decoding method, how one is declared, and the registry of all.

Strategy files import torch and the engine only when they decode, so that listing methods
and their options stays instant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from ppdbench.errors import ConfigError, PpdbenchError, UnknownName
from ppdbench.files.publications import Publication
from ppdbench.files.resources import SHIPPED
from ppdbench.registry import Registry, key_values, option_types
from ppdbench.registry import option as option
from ppdbench.trees.guessing import GUESSING, Guessing

C = TypeVar("C", bound=type[Any])
S = TypeVar("S", bound=Any)
D = TypeVar("D", bound="Decoder")

if TYPE_CHECKING:
    from ppdbench.decoding.decoder import Decoder, Setup
    from ppdbench.engine.loading import ModelSpec


# An option of methods that can draw what they draft.
DRAWN = "draw drafted tokens where tokens are drawn (false: draft the likeliest)"


class Strategy(Protocol):
    """A method's options, the fields of a dataclass; files and weights load in `prepare`."""

    def prepare(self, setup: Setup) -> Decoder:
        """Ready to decode, once per run."""
        ...


@runtime_checkable
class Exiting(Protocol):
    """A strategy that reads an early layer out, so that a model's depth alone may refuse it."""

    def exit_in(self, n_layers: int) -> int:
        """Return the number of layers up to the exit in a model of `n_layers`."""
        ...


@runtime_checkable
class ShippedParts(Protocol):
    """A strategy with options that name parts which came with some models."""

    @classmethod
    def parts_of(cls, model: str) -> dict[str, str]:
        """Return these options for `model`; none where nothing came with it."""
        ...


def check_least(method: str, strategy: Strategy, **least: int) -> None:
    """Refuse options of a strategy that are below the least that makes sense."""
    for name, allowed in least.items():
        if getattr(strategy, name) < allowed:
            value = getattr(strategy, name)
            raise ConfigError(f"{method}: {name}={value}; use {allowed} or more")


def check_words(method: str, options: object, **known: Sequence[str]) -> None:
    """Refuse options of a method that are none of the words known for them."""
    for name, words in known.items():
        value = getattr(options, name)
        if value not in words:
            raise ConfigError(f"{method}: {name}={value!r} is not known; use {', '.join(words)}")


def left_open(strategy: Strategy, **values: int) -> dict[str, int]:
    """Return those values that stand for options of 0, which leave the choice to the method."""
    return {name: value for name, value in values.items() if not getattr(strategy, name)}


@dataclass(frozen=True, slots=True)
class DraftSizes:
    """Sizes of drafts where options of 0 leave them open: the usual, and fewer rows on a CPU.

    There each row more of a pass costs time.
    """

    usual: Mapping[str, int]
    on_cpu: Mapping[str, int]

    def on(self, device: str) -> Mapping[str, int]:
        """Return those for a kind of device."""
        return self.on_cpu if device == "cpu" else self.usual

    def fill(self, asked: S, device: str) -> S:
        """Return options of which none is open."""
        filled: S = dataclasses.replace(asked, **left_open(asked, **self.on(device)))
        return filled

    def note(self, decoder: D, asked: Strategy, filled: Strategy) -> D:
        """Let a decoder say which sizes it has, and which of them were left to it."""
        sizes = {name: getattr(filled, name) for name in self.usual}
        decoder.used = {name: str(size) for name, size in sizes.items()}
        decoder.chosen = left_open(asked, **sizes)
        return decoder


@dataclass(frozen=True, slots=True)
class Option:
    """One option as `list methods` shows it."""

    name: str
    type: str
    default: Any
    help: str


@dataclass(frozen=True, slots=True)
class Method:
    """A registered strategy."""

    name: str
    make: type[Any]
    exact: bool
    trained: bool
    summary: str
    papers: tuple[Publication, ...] = ()  # that it comes from
    chains: bool = False  # it drafts, and its drafts are chains whatever its options
    peer_of: str = ""  # our method that does the same, of a method that is another engine's
    alike: tuple[str, ...] = ()  # options that mean the same in both
    part: str = ""  # the method whose trained part it takes, if it has none of its own

    def options(self) -> list[Option]:
        """The options, from the fields of the dataclass."""
        return [
            Option(
                f.name,
                str(f.type),
                None if f.default is dataclasses.MISSING else f.default,
                f.metadata.get("help", ""),
            )
            for f in dataclasses.fields(self.make)
        ]

    @property
    def needs(self) -> str | None:
        """The method whose trained part it cannot do without, mostly itself; None of others."""
        takes_addon = self.trained and any(option.name == "addon" for option in self.options())
        return (self.part or self.name) if takes_addon else None

    def shipped_with(self, model: str) -> dict[str, str]:
        """Return options that name the parts of this method which came with `model`."""
        return self.make.parts_of(model) if issubclass(self.make, ShippedParts) else {}

    def values(self, strategy: Strategy) -> dict[str, Any]:
        """The options that a strategy of this method has."""
        return {option.name: getattr(strategy, option.name) for option in self.options()}

    def keeping(self, strategy: Strategy, chosen: Mapping[str, int]) -> Strategy:
        """The strategy with the numbers that one like it chose when a run was begun."""
        values = self.values(strategy)
        kept: Strategy = self.make(
            **{**values, **{name: chosen[name] for name in chosen.keys() & values.keys()}}
        )
        return kept

    def check_named(self, strategy: Strategy, target: ModelSpec) -> None:
        """Refuse options that name what is not there."""
        for field in dataclasses.fields(self.make):
            kind, value = field.metadata.get("names"), getattr(strategy, field.name)
            if kind and value and value not in (*NO_FILES, field.default):
                _check_named(f"{self.name}: {field.name}", kind, str(value), target)

    def build(self, settings: Mapping[str, str], model: str = "") -> Strategy:
        """The strategy with `--set` values read as the types its fields declare.

        Parts that nothing is said of are those that came with `model`.
        """
        told = {**self.shipped_with(model), **settings}
        values = {name: self.read(name, text) for name, text in told.items()}
        strategy: Strategy = self.make(**values)
        return strategy

    def read(self, name: str, text: str) -> Any:
        """A value for the option `name`, as the type that it has."""
        known = [option.name for option in self.options()]
        if not known:
            raise ConfigError(f"method {self.name!r} has no options, so no {name!r}")
        if name not in known:
            raise UnknownName(f"option of {self.name}", name, known)
        return _read(self.name, name, text, option_types(self.make)[name])


NO_FILES = (*SHIPPED, "dynamic", "chain")  # words that stand where a file is named
SIZED = "tree of any size"  # what an option names that takes a tree file or a number
TREE = "tree file, or the rows of the best tree"  # what its help says


def _check_named(option: str, kind: str, value: str, target: ModelSpec) -> None:
    if kind == "model":
        from ppdbench.engine.loading import ModelSpec, check_there

        how = {name: getattr(target, name) for name in ("dtype", "device", "offline")}
        try:
            check_there(ModelSpec(name=value, **how))
        except PpdbenchError as error:
            method, _, name = option.partition(": ")
            told = str(error).replace("--model", name)
            raise ConfigError(f"{method}: {name.replace('_', ' ')}: {told}") from error
    elif kind == SIZED and value.isdecimal():
        return
    elif not Path(value).expanduser().exists():
        raise ConfigError(f"{option}={value}: no such file or folder")
    elif kind in ("tree", SIZED):
        from ppdbench.trees.dynamic import load_tree  # with numpy, which lists do not need

        load_tree(value)


METHODS: Registry[Method] = Registry("method")


def strategy(
    name: str,
    *,
    exact: bool = True,
    trained: bool = False,
    papers: Sequence[Publication] = (),
    chains: bool = False,
    guessing: Guessing | None = None,
    peer_of: str = "",
    alike: Sequence[str] = (),
    part: str = "",
) -> Callable[[C], C]:
    """Register a dataclass as the method called `name`; whatever others know of it stands here.

    `chains` says that it drafts chains and no trees, `guessing` how its guesses come if it guesses
    at any place of a text. `peer_of` and `alike` are for methods of other engines. `part` names the
    method whose trained part it takes where nothing else is said.
    """

    def register(cls: C) -> C:
        summary = (cls.__doc__ or "").strip().splitlines()[0]
        told = tuple(papers), chains, peer_of, tuple(alike), part
        METHODS.add(name, Method(name, cls, exact, trained, summary, *told))
        if guessing is not None:
            GUESSING.add(name, guessing)
        return cls

    return register


def split_name(text: str) -> tuple[str, str]:
    """A method and its options as typed: `layerskip:draft_length=4`, `transformers:greedy`."""
    name, colon, rest = text.partition(":")
    if any(known.startswith(f"{name}:") for known in METHODS):
        second, colon, rest = rest.partition(":")
        name = f"{name}:{second}"
    if colon and not rest:
        raise ConfigError(f"method {text!r}: no option follows the colon; use {name}:key=value")
    return name, rest


def option_values(pairs: tuple[str, ...]) -> dict[str, str]:
    """`key=value` words to a mapping."""
    return key_values(pairs, "option {} of a method", "use key=value")


def _read(method: str, name: str, text: str, kind: Any) -> Any:
    booleans = {"true": True, "false": False}
    try:
        if kind is bool:
            return booleans[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        wanted = "true or false" if kind is bool else f"a value of type {kind.__name__}"
        raise ConfigError(f"{method}: {name}={text!r} is not {wanted}") from None
