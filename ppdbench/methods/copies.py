"""Earlier copies of how a text ends: the places where it may be about to repeat itself."""

from __future__ import annotations

from typing import NamedTuple


class Copy(NamedTuple):
    """The latest earlier copy of an ending: its tokens, and the place of what follows it."""

    length: int
    behind: int


class Copies:
    """Places where each n-gram of a text was last seen, kept up to date token by token."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.forget()

    def forget(self) -> None:
        """Begin a new text."""
        self._behind: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def latest(self, tokens: list[int]) -> Copy | None:
        """Return the latest copy of the longest ending that has one, in a text that only grows."""
        self._read(tokens)
        for n in range(min(self._longest, len(tokens) - 1), 0, -1):
            behind = self._behind.get(tuple(tokens[-n:]))
            if behind is not None:
                return Copy(n, behind)
        return None

    def _read(self, tokens: list[int]) -> None:
        """Note where n-grams end; not those that end with the text, which nothing follows."""
        for end in range(self._seen + 1, len(tokens)):
            for n in range(1, min(self._longest, end) + 1):
                self._behind[tuple(tokens[end - n : end])] = end
        self._seen = len(tokens) - 1
