"""Named things: register, look up, list. Duplicates are refused, near names suggested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

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
