"""Earlier copies of how a text ends: the places where it may be about to repeat itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copied:
    """Earlier copies of an ending of `length` tokens: the places of what follows, latest last."""

    length: int
    places: list[int]

    def follows(self, tokens: list[int], most: int) -> list[int]:
        """Return up to so many tokens that follow the latest copy."""
        return tokens[self.places[-1] :][:most]

    def branches(self, tokens: list[int], most: int, count: int) -> list[list[int]]:
        """Return what follows up to `count` copies, no two of which go on alike, latest first."""
        found: dict[int, list[int]] = {}
        for place in reversed(self.places):
            if len(found) == count:
                break
            found.setdefault(tokens[place], tokens[place : place + most])
        return list(found.values())


class Copies:
    """Places where each n-gram of a text was seen, kept up to date token by token."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self.forget()

    def forget(self) -> None:
        """Begin a new text."""
        self._behind: dict[tuple[int, ...], list[int]] = {}
        self._seen = 0

    def of(self, tokens: list[int]) -> Copied | None:
        """Return the copies of the longest ending that has any, in a text that only grows."""
        self._read(tokens)
        for n in range(min(self._longest, len(tokens) - 1), 0, -1):
            places = self._behind.get(tuple(tokens[-n:]))
            if places is not None:
                return Copied(n, places)
        return None

    def _read(self, tokens: list[int]) -> None:
        """Note where n-grams end; not those that end with the text, which nothing follows."""
        for end in range(self._seen + 1, len(tokens)):
            for n in range(1, min(self._longest, end) + 1):
                self._behind.setdefault(tuple(tokens[end - n : end]), []).append(end)
        self._seen = len(tokens) - 1
