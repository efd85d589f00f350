"""Reading a mapping key by key, with the file and the key named in every complaint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final

from ppdbench.errors import ConfigError


class _Required:
    """The default of a key that has none."""


REQUIRED: Final = _Required()


class Keys:
    """A mapping being read: each key is asked for once, what is left over is refused."""

    def __init__(self, content: dict[Any, Any], where: str, prefix: str = "") -> None:
        self.where = where
        self._content = content
        self._prefix = prefix
        self._asked: set[str] = set()

    def names(self) -> list[str]:
        """All keys, as text."""
        for key in self._content:
            if not isinstance(key, str):
                raise self.error(f"the key {self._prefix}{key!r} must be text")
        return list(self._content)

    def text(self, key: str, default: str | _Required = REQUIRED) -> str:
        """A text that is not empty."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "text", value)
        return value

    def optional_text(self, key: str, default: _Required | None = REQUIRED) -> str | None:
        """A text, or null."""
        value = self._get(key, default)
        if value is not None and (not isinstance(value, str) or not value):
            raise self._wrong(key, "text or null", value)
        return value

    def number(self, key: str, default: int | _Required = REQUIRED) -> int:
        """A whole number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number", value)
        return value

    def real(self, key: str) -> float:
        """A number that need not be whole."""
        value = self._get(key, REQUIRED)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        try:
            return float(value)
        except OverflowError:
            raise self._wrong(key, "a number of a usual size", value) from None

    def flag(self, key: str, default: bool | _Required = REQUIRED) -> bool:
        """true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def texts(self, key: str, default: tuple[str, ...] | _Required = REQUIRED) -> tuple[str, ...]:
        """A list of texts."""
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self._wrong(key, "a list of texts", value)
        return tuple(value)

    def items(self, key: str) -> list[Any]:
        """A list, of whatever."""
        value = self._get(key, REQUIRED)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def anything(self, key: str) -> Any:
        """A value of any kind, as it stands there; who wants to know what it is asks again."""
        return self._content[key]

    def columns(
        self, key: str, default: _Required | None = REQUIRED, none_allowed: bool = True
    ) -> tuple[str | None, ...]:
        """A column path, a list of alternatives, or null (no columns)."""
        value = self._get(key, default)
        if value is None:
            return ()
        paths = value if isinstance(value, list) else [value]
        for path in paths:
            if path is None and none_allowed:
                continue
            if not isinstance(path, str) or not all(path.split(".")):
                raise self._wrong(key, "a column path like a.b, or a list of them", value)
        return tuple(paths)

    def section(self, key: str) -> Keys:
        """A nested mapping."""
        value = self._get(key, REQUIRED)
        if not isinstance(value, dict):
            raise self._wrong(key, "a mapping (key: value)", value)
        return Keys(value, self.where, f"{self._prefix}{key}.")

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping whose content is nobody's business here."""
        self.section(key).names()
        return dict(self._content[key])

    def is_mapping(self, key: str) -> bool:
        """True if a key holds a nested mapping, where a plain value would do too."""
        return isinstance(self._content.get(key), dict)

    def sections(self, key: str, name: str) -> list[Keys]:
        """A list of mappings; complaints call the first of them `name` 1."""
        made = []
        for number, value in enumerate(self.items(key), 1):
            if not isinstance(value, dict):
                raise self.error(f"{name} {number} must be a mapping, not {kind(value)}")
            made.append(Keys(value, f"{self.where}: {name} {number}"))
        return made

    def refuse_the_rest(self) -> None:
        """Raise for any key that nobody asked for."""
        for key in self.names():
            if key not in self._asked:
                near = get_close_matches(key, self._asked, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                raise self.error(
                    f"unknown key {self._prefix}{key}: {hint}"
                    f"allowed: {', '.join(sorted(self._asked))}"
                )

    def error(self, message: str) -> ConfigError:
        """A complaint about this file."""
        return ConfigError(f"{self.where}: {message}")

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Let complaints about what was read here say which file it was."""
        try:
            yield
        except ConfigError as error:
            raise self.error(str(error)) from None

    def _get(self, key: str, default: object) -> Any:
        self._asked.add(key)
        if key in self._content:
            return self._content[key]
        if isinstance(default, _Required):
            found = ", ".join(str(name) for name in self._content)
            has = f"has: {found}" if found else "has none"
            raise self.error(f"the key {self._prefix}{key} is missing; the file {has}")
        return default

    def _wrong(self, key: str, expected: str, value: object) -> ConfigError:
        return self.error(f"{self._prefix}{key} must be {expected}, not {kind(value)}")


def kind(value: object) -> str:
    """Describe a value in a reader's words, short enough for one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"the number {value!r:.40}"
    if isinstance(value, str):
        return f"the text {value[:40]!r}" if value else "an empty text"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    return "a mapping" if isinstance(value, dict) else f"a {type(value).__name__}"
