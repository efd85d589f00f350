"""Named things and their options: register, look up, list.

Duplicates are refused, near names suggested. What a name stands for may lie in a module that is
imported when it is asked for. Options are the fields of a dataclass.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Generic, TypeVar

from ppdbench.errors import ConfigError, UnknownName

T = TypeVar("T")


class _Later:
    """The place of something that is not imported yet."""

    def __init__(self, module: str) -> None:
        self.module = module


class Registry(Generic[T]):
    """A mapping from name to thing that cannot be overwritten by accident."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T | _Later] = {}

    def later(self, name: str, module: str) -> None:
        """Know `name` now; `module` registers what it stands for, and is imported when needed."""
        if name in self._items:
            raise ValueError(f"{self.kind} {name!r} is already registered")
        self._items[name] = _Later(module)

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`."""
        there = self._items.get(name)
        expected = isinstance(there, _Later) and there.module in sys.modules
        if there is not None and not expected:
            raise ValueError(f"{self.kind} {name!r} is already registered")
        self._items[name] = item
        return item

    def register(self, *names: str) -> Callable[[T], T]:
        """Decorator form of `add`, for one thing known by several names."""

        def decorate(item: T) -> T:
            for name in names:
                self.add(name, item)
            return item

        return decorate

    def get(self, name: str) -> T:
        """The thing called `name`, or `UnknownName` with suggestions."""
        if name not in self._items:
            raise UnknownName(self.kind, name, self._items)
        item = self.find(name)
        assert item is not None, f"nothing registers {self.kind} {name!r}"
        return item

    def find(self, name: str) -> T | None:
        """The thing called `name`, if there is one: what is named need not register any."""
        item = self._items.get(name)
        if isinstance(item, _Later):
            import_module(item.module)
            item = self._items[name]
        return None if isinstance(item, _Later) else item

    def names(self) -> list[str]:
        """List all names, in order of registration."""
        return list(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)


def option(
    default: T,
    help: str,
    names: str = "",
    *,
    metavar: str | None = None,
    shown: bool = True,
    first: bool = False,
) -> T:
    """A field with the line that explains it.

    `names` says what a text names if it is one of these: a "model", a "file", which may be a
    folder, a "tree", or a "tree of any size". That it is there is then seen before anything is
    loaded. The others are for options of a command of their own: the word that stands for the
    value, whether the default is `shown`, and whether the option is among those that help begins
    with.
    """
    told = {"help": help, "names": names, "metavar": metavar, "shown": shown, "first": first}
    made: T = dataclasses.field(default=default, metadata=told)
    return made


def option_types(made: type[Any]) -> dict[str, Any]:
    """The types of the options; of the dataclasses alone, as other bases have no options."""
    found: dict[str, Any] = {}
    for base in filter(dataclasses.is_dataclass, made.__mro__):
        found = {**inspect.get_annotations(base, eval_str=True), **found}
    return found


def key_values(words: Iterable[str], whose: str, how: str) -> dict[str, str]:
    """`key=value` words as a mapping; errors say `whose` they are, its {} filled, and `how` to."""
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{whose.format(repr(word))}: {how}")
        if key in found:
            raise ConfigError(f"{whose.format(key)} is given twice")
        found[key] = value
    return found
