"""Prompt templates: Jinja2 in a sandbox, with undefined names and big results refused.

A task file may come from anyone, so a template sees nothing but the text values of one
example: no attribute that starts with an underscore, no loader, no random or generated
text (a prompt must be the same in every run), and bounds on what it may build (see `bounded`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import jinja2
from jinja2 import meta
from jinja2.exceptions import SecurityError, TemplateSyntaxError

from ppdbench.errors import ConfigError
from ppdbench.tasks.bounded import Bounded, line_of, rendered

RESERVED = frozenset({"range", "self", "loop", "caller", "varargs", "kwargs"})


@lru_cache(maxsize=1)
def _environment() -> Bounded:
    return Bounded(undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)


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
            return rendered(template, values)
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
        """Say in which template a mistake is, and on which line."""
        line = line_of(error)
        return f"{self.name}, line {line}" if line else self.name


@lru_cache(maxsize=64)
def compile_template(name: str, text: str) -> jinja2.Template:
    """Compile once per text, with the file and line of any mistake."""
    try:
        return _environment().from_string(text)
    except TemplateSyntaxError as error:
        raise ConfigError(f"{name}, line {error.lineno}: {error.message}") from error
    except Exception as error:  # Python's own compiler has limits too, and many ways to say so
        raise ConfigError(f"{name}: cannot be compiled: {error}") from error


def _line_of(text: str, name: str) -> str:
    lines = [number for number, line in enumerate(text.splitlines(), 1) if name in line]
    return f", line {lines[0]}" if lines else ""
