"""The budget of rendering a template, which everything is paid out of beforehand.

Nothing has to be measured by a clock or held by a process. A step costs a little, a text or a list
its size, and what could grow large out of small things is bounded before it is made.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

MAX_CHARS = 4_000_000  # of one text; far above any model's context, far below a machine's memory
MAX_LOOPS = 100_000  # what all range() calls of one rendering may count to together
MAX_SOURCE = 60_000  # characters of a template
MAX_BITS = 256  # of a whole number that is computed
MAX_DEPTH = 50  # of lists within lists
# A budget's units: one for each character that is looked at or made, more for other things.
UNITS = 8_000_000
PER_CHARACTER = 32  # added for each character of the values, which a template may go through often
PER_NODE, PER_ITEM = 16, 8

SEQUENCES: tuple[type[Any], ...] = (
    *(list, tuple, range),
    *(type({}.keys()), type({}.values()), type({}.items())),
)
PLAIN: tuple[type[Any], ...] = (str, dict, *SEQUENCES)
LAZY: tuple[type[Any], ...] = (
    *(types.GeneratorType, reversed),
    *(type(iter([])), type(iter({}.items()))),
)


class Budget:
    """The work that one rendering may still do."""

    def __init__(self, given: int = 0) -> None:
        self.units = self.left = UNITS + PER_CHARACTER * given

    def spend(self, units: int) -> None:
        """Take from what is left."""
        self.left -= units
        if self.left < 0:
            raise OverflowError(f"it takes more than {self.units} steps")

    def text(self, length: int) -> None:
        """Pay for a text that is about to be made."""
        if length > MAX_CHARS:
            raise OverflowError(f"a text would have more than {MAX_CHARS} characters")
        self.spend(length)

    def take(self, value: Any) -> Any:
        """Pay for a plain value; what is lazy becomes a list, anything else is refused."""
        if isinstance(value, LAZY):
            value = self._gathered(value)
        self.spend(size_of(value, self.left))
        return value

    def look(self, value: Any) -> Any:
        """Pay for a value if it is plain; anything else is only passed on."""
        return self.take(value) if isinstance(value, PLAIN) else value

    def _gathered(self, items: Iterable[Any]) -> list[Any]:
        kept = []
        for item in items:
            self.spend(PER_ITEM)
            kept.append(item)
        return kept


BUDGET: ContextVar[Budget] = ContextVar("budget")


def size_of(value: Any, most: int) -> int:
    """Units that a plain value takes with everything in it, or somewhat more than `most`."""
    if isinstance(value, str):
        return len(value)
    units, level, depth = 0, [value], 0
    while level and units <= most:
        below: list[Any] = []
        for one in level:
            units += PER_ITEM
            if isinstance(one, str):
                units += len(one)
            elif isinstance(one, dict):
                below += one
                below += one.values()
            elif isinstance(one, SEQUENCES):
                if len(one) * PER_ITEM > most:
                    return most + 1
                below += one
            elif isinstance(one, int) and one.bit_length() > 64 * MAX_BITS:
                raise OverflowError("a number has thousands of digits")
            elif not (one is None or isinstance(one, int | float | Undefined)):
                raise SecurityError(f"there is no text for a {type(one).__name__}")
        level, depth = below, depth + 1
        if depth > MAX_DEPTH:
            raise OverflowError(f"lists are nested more than {MAX_DEPTH} deep")
    return units


# Bounds that have to be known before something is made, by the name of a filter or method.


def _replaced(text: Any, old: Any, new: Any, count: Any = None) -> None:
    text, old, new = str(text), str(old), str(new)
    times = text.count(old)
    if isinstance(count, int) and count >= 0:
        times = min(times, count)
    BUDGET.get().text(len(text) + times * max(0, len(new) - len(old)))


def _joined(items: Any, separator: Any = "", attribute: Any = None) -> None:
    n = len(items) if isinstance(items, PLAIN) else 1
    BUDGET.get().text(n * len(str(separator)))


def _parted(items: Any, number: Any, fill_with: Any = None) -> None:
    _bounded_number(number, MAX_LOOPS)


def _indented(text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    each = len(width) if isinstance(width, str) else _bounded_number(width, MAX_CHARS)
    BUDGET.get().text(len(str(text)) + each * (1 + str(text).count("\n")))


def _dumped(value: Any, indent: Any = None, separators: Any = None, **others: Any) -> None:
    each = len(indent) if isinstance(indent, str) else _bounded_number(indent or 0, MAX_CHARS)
    each = each * MAX_DEPTH + sum(map(len, map(str, separators or ())))
    items = size_of(value, MAX_CHARS) if each else 0
    BUDGET.get().spend(items * each // PER_ITEM)


def _rounded(value: Any, precision: Any = 0, method: Any = "common") -> None:
    _bounded_number(precision, 30)


def _summed(items: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):
        raise SecurityError("only numbers can be added up")


def _bounded_number(number: Any, most: int) -> int:
    if isinstance(number, int) and abs(number) > most:
        raise OverflowError(f"{number} is more than {most}")
    return number if isinstance(number, int) else 0


# Filters that do something with each item, or each character, of what they are given.
ITEMWISE = frozenset(
    {
        *("map", "select", "reject", "selectattr", "rejectattr", "sort", "unique", "groupby"),
        *("list", "batch", "slice", "sum", "min", "max", "dictsort", "join", "title", "wordcount"),
    }
)

BOUNDS: Mapping[str, Callable[..., None]] = {
    "replace": _replaced,
    "join": _joined,
    "batch": _parted,
    "slice": _parted,
    "indent": _indented,
    "tojson": _dumped,
    "round": _rounded,
    "sum": _summed,
}
