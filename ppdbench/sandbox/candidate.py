"""The program's side: it runs, and then its functions answer calls from its tests.

Whoever runs here may fake any answer; that is all it can do, as no verdict is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ppdbench.sandbox.values import NotPlain, from_plain, to_plain
from ppdbench.sandbox.wire import Wire

MOST_SAID = 1000  # of an error's words


def answer_calls(program: str, wire: Wire) -> None:
    """Run the program when its tests are there, then answer until nobody asks any more."""
    # As HumanEval's own harness does it: no __name__, nothing but builtins.
    names: dict[str, Any] = {}
    desk = _Desk(names)
    with suppress(OSError):
        if wire.receive() is None:
            return
        wire.send(_tried(lambda: desk.run(program)))
        while (asked := wire.receive()) is not None:
            wire.send(_tried(lambda asked=asked: desk.answer(asked)))  # type: ignore[misc]


class _Desk:
    """The program's names, and what of it was handed out by number."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._handed: list[Any] = []

    def run(self, program: str) -> dict[str, Any]:
        exec(compile(program, "<program>", "exec"), self._names)
        return {"ready": True}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A value by its name, or what a call gave and did to its arguments."""
        if "name" in asked:
            if asked["name"] not in self._names:
                return {"missing": True}
            return {"value": to_plain(self._names[asked["name"]], self._number)}
        called = self._handed[asked["call"]]
        before = asked["arguments"]
        arguments = from_plain(before, self._handed.__getitem__)
        keywords = {
            name: from_plain(value, self._handed.__getitem__)
            for name, value in asked["keywords"].items()
        }
        answer = {"value": to_plain(called(*arguments, **keywords), self._number)}
        with suppress(NotPlain):
            after = to_plain(arguments, self._number)
            if after != before:
                answer["arguments"] = after
        return answer

    def _number(self, value: Any) -> int | None:
        """A new number for what can be called."""
        if not callable(value):
            return None
        self._handed.append(value)
        return len(self._handed) - 1


def _tried(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result, or the error that it ends in: SystemExit, too, is no way out."""
    try:
        return work()
    except NotPlain as error:
        return {"not plain": str(error)}
    except BaseException as error:
        said = ""
        with suppress(BaseException):
            said = str(error)[:MOST_SAID]
        return {"raised": [kind.__name__ for kind in type(error).__mro__], "said": said}
