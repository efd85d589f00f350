"""Named things and their options: register, look up, list.

Duplicates are refused, near names suggested. Options are the fields of a dataclass.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from ppdbench.errors import UnknownName

T = TypeVar("T")


class Registry(Generic[T]):
    """A mapping from name to thing that cannot be overwritten by accident."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._items: dict[str, T] = {}

    def add(self, name: str, item: T) -> T:
        """Register `item` under `name`."""
        if name in self._items:
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
        try:
            return self._items[name]
        except KeyError:
            raise UnknownName(self.kind, name, self._items) from None

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
    folder, or a "tree". That it is there is then seen before anything is loaded. The others are
    for options of a command of their own: the word that stands for the value, whether the default
    is `shown`, and whether the option is among those that help begins with.
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
