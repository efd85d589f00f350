"""The tests' side: they call the program's functions from afar, and here it is decided.

No line of the program runs in this process, and nothing comes in but plain data. So objects
that are equal to everything, changed builtins and forged words have nothing to take hold of.
"""

from __future__ import annotations

import builtins
import symtable
from typing import Any, NoReturn

from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.values import NotPlain, become, from_plain, to_plain
from ppdbench.sandbox.wire import TooLong, Wire


class Stopped(BaseException):
    """A stop: nothing more is to be learned from the program; no test catches it by accident."""


class RaisedThere(Exception):
    """An error in the program that has no builtin kind."""


class Caller:
    """Asks the program. Once it has not answered as it should, `outcome` says how, for good."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.outcome: str | None = None

    def ready(self) -> None:
        """Let the program run and wait for its end; its error, where it raised one."""
        self._ask({"run": True})

    def named(self, name: str) -> tuple[Any, ...]:
        """The program's value of this name, or nothing."""
        answer = self._ask({"name": name})
        return () if "missing" in answer else (self._value(answer),)

    def call(self, number: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call the function of this number; changes that it made are made here too."""
        try:
            asked = {
                "call": number,
                "arguments": to_plain(list(arguments), _number_of),
                "keywords": {name: to_plain(value, _number_of) for name, value in keywords.items()},
            }
        except NotPlain:
            self._stop("not judged")
        answer = self._ask(asked)
        if "arguments" in answer:
            after = self._plain(answer["arguments"])
            become(list(arguments), after)
        return self._value(answer)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self.outcome is not None:
            raise Stopped
        try:
            self._wire.send(question)
        except OSError:
            self._stop("ended early")
        return self._answered()

    def _answered(self) -> dict[str, Any]:
        try:
            answer = self._wire.receive()
        except TooLong:
            self._stop("too much output")
        except ValueError:
            self._stop("ended early")
        if answer is None:
            self._stop("ended early")
        if "not plain" in answer:
            self._stop("not judged")
        if "raised" in answer:
            raise _error(answer["raised"], answer.get("said"))
        return answer

    def _value(self, answer: dict[str, Any]) -> Any:
        if "value" not in answer:
            self._stop("ended early")
        return self._plain(answer["value"])

    def _plain(self, content: Any) -> Any:
        try:
            return from_plain(content, lambda number: RemoteFunction(self, number))
        except (ValueError, TypeError, ArithmeticError, RecursionError):
            self._stop("ended early")

    def _stop(self, outcome: str) -> NoReturn:
        self.outcome = self.outcome or outcome
        raise Stopped


class RemoteFunction:
    """A function of the program, called where the program is."""

    def __init__(self, caller: Caller, number: int) -> None:
        self._caller, self._number = caller, number

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._caller.call(self._number, arguments, keywords)


def _number_of(value: Any) -> int | None:
    return value._number if isinstance(value, RemoteFunction) else None


def _error(kinds: Any, said: Any) -> Exception:
    """The error that the program raised, as the nearest builtin kind and by its own name."""
    names = [kind for kind in kinds if isinstance(kind, str)] if isinstance(kinds, list) else []
    name = names[0] if names and names[0].isidentifier() else "no name"
    known = (getattr(builtins, kind, None) for kind in names)
    base = next((k for k in known if isinstance(k, type) and issubclass(k, Exception)), RaisedThere)
    kind: type[Exception] = base if base.__name__ == name else type(name, (base,), {})
    try:
        return kind(said)
    except TypeError:  # it wants more than words
        kind = type(name, (RaisedThere,), {})
        return kind(said)


def examine(exam: Exam, wire: Wire) -> dict[str, Any]:
    """Wait for the program's end, run the tests, and say how that went."""
    caller = Caller(wire)
    verdict: dict[str, Any]
    try:
        caller.ready()
        names = _given(exam)
        for name in _unknown(exam.source) - set(names):
            for value in caller.named(name):
                names[name] = value
        exec(compile(exam.source, "<tests>", "exec"), names)
        verdict = {"outcome": "passed"}
    except MemoryError:
        verdict = {"outcome": "out of memory"}
    except BaseException as error:
        verdict = {"outcome": "failed", "raised": type(error).__name__}
    return verdict if caller.outcome is None else {"outcome": caller.outcome}


def _given(exam: Exam) -> dict[str, Any]:
    """Return the names that the given beginning defines, less the entry point."""
    for ending in ("", "\n    pass", "pass"):
        try:
            code = compile(exam.given + ending, "<given>", "exec")
        except (SyntaxError, ValueError):
            continue
        names: dict[str, Any] = {}
        exec(code, names)
        names.pop(exam.entry_point, None)
        return names
    return {}


def _unknown(source: str) -> set[str]:
    """Names that the tests use and neither define themselves nor have from Python."""
    top = symtable.symtable(source, "<tests>", "exec")
    own = {
        name.get_name() for name in top.get_symbols() if name.is_assigned() or name.is_imported()
    }
    found, tables = set[str](), [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (symbol.is_global() or table is top)
        }
    return {name for name in found - own if not hasattr(builtins, name)}
