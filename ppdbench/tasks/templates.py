"""Prompt templates: Jinja2 in a sandbox, with undefined names and big results refused.

A task file may come from anyone, so a template sees nothing but the text values of one
example: no attribute that starts with an underscore, no loader, no random or generated
text (a prompt must be the same in every run), and bounds on what it may build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ppdbench.errors import ConfigError

MAX_CHARS = 4_000_000  # far above any model's context, far below this machine's memory
MAX_LOOPS = 100_000  # what all range() calls of one rendering may count to together
RESERVED = frozenset({"range", "self", "loop", "caller", "varargs", "kwargs"})

# Each can build a string of any length out of one number, or differs between runs.
_FILTERS_OFF = ("center", "indent", "format", "random", "wordwrap", "pprint", "xmlattr")
_METHODS_OFF = frozenset(
    {"format", "format_map", "ljust", "rjust", "center", "zfill", "expandtabs"}
)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**", "%"})

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if isinstance(obj, str) and attr in _METHODS_OFF:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: object) -> None:
        """No wrapped `str.format` either: Jinja asks for one before `is_safe_attribute`."""

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: object, right: object
    ) -> object:
        numbers = isinstance(left, int | float) and isinstance(right, int | float)
        if operator == "**" or (operator == "%" and not numbers):
            raise SecurityError(f"the operator {operator!r} is not allowed here")
        if operator == "*" and not numbers:
            self._bound_repeat(left, right)
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def _bound_repeat(left: object, right: object) -> None:
        times, what = (left, right) if isinstance(left, int) else (right, left)
        size = len(what) if isinstance(what, str | list | tuple) else 0
        if isinstance(times, int) and size * times > MAX_CHARS:
            raise OverflowError(f"a repetition would hold more than {MAX_CHARS} characters")


@lru_cache(maxsize=1)
def _environment() -> _Sandbox:
    env = _Sandbox(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)
    env.globals = {"range": range}  # the name only; each rendering brings its own
    for name in _FILTERS_OFF:
        del env.filters[name]
    return env


@dataclass(frozen=True, slots=True)
class Template:
    """A named piece of Jinja2; checked for syntax and unknown names by `check`."""

    name: str
    text: str

    def check(self, variables: frozenset[str]) -> None:
        """Refuse bad syntax and every name that is not one of `variables`."""
        compile_template(self.name, self.text)
        used = meta.find_undeclared_variables(_environment().parse(self.text))
        unknown = sorted(used - variables)
        if unknown:
            raise ConfigError(
                f"{self.name}{_line_of(self.text, unknown[0])}: "
                f"unknown variable {', '.join(map(repr, unknown))}; "
                f"the template may use: {', '.join(sorted(variables))}"
            )

    def render(self, values: Mapping[str, str]) -> str:
        """The text for one example's values."""
        template = compile_template(self.name, self.text)
        try:
            return _collect(template.generate({**values, "range": _budgeted_range()}))
        except SecurityError as error:
            raise ConfigError(f"{self._where(error)}: not allowed in a prompt: {error}") from error
        except jinja2.UndefinedError as error:
            known = ", ".join(sorted(values))
            raise ConfigError(
                f"{self._where(error)}: {error}; the template may use: {known}"
            ) from error
        except (OverflowError, MemoryError, RecursionError) as error:
            raise ConfigError(f"{self._where(error)}: too big to render: {error}") from error
        except Exception as error:  # a template can raise whatever its expressions raise
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{self._where(error)}: cannot be rendered: {why}") from error

    def _where(self, error: BaseException) -> str:
        """Name and line, read from the frames Jinja maps back to template lines."""
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == "<template>":
                line = trace.tb_lineno
            trace = trace.tb_next
        return f"{self.name}, line {line}" if line else self.name


@lru_cache(maxsize=64)
def compile_template(name: str, text: str) -> jinja2.Template:
    """Compile once per text, with the file and line of any mistake."""
    try:
        return _environment().from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{name}, line {error.lineno}: {error.message}") from error
    except (SecurityError, OverflowError, MemoryError, RecursionError, SyntaxError) as error:
        raise ConfigError(f"{name}: cannot be compiled: {error}") from error


def _collect(pieces: Iterator[str]) -> str:
    kept: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_CHARS:
            raise OverflowError(f"more than {MAX_CHARS} characters")
        kept.append(piece)
    return "".join(kept)


def _budgeted_range() -> Callable[..., range]:
    """A `range` whose calls share one budget, so nested loops end as well."""
    left = MAX_LOOPS

    def bounded(*args: int) -> range:
        nonlocal left
        counted = range(*args)
        # Not len(): it overflows for ranges beyond 2**63 with a message of its own.
        if counted and abs(counted[-1] - counted[0]) // abs(counted.step) >= left:
            raise OverflowError(f"range() counts to more than {MAX_LOOPS} in one prompt")
        left -= len(counted)
        return counted

    return bounded


def _line_of(text: str, name: str) -> str:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if name in line]
    return f", line {lines[0]}" if lines else ""
