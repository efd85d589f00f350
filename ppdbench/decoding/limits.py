"""Limits: an output ends at end-of-sequence ids, stop strings or a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Literal

Finish = Literal["eos", "stop", "length"]

# A stop string may begin in the middle of a token, so a few tokens more than it has
# characters are looked at; bytes of one character may take up to four tokens.
TAIL_MARGIN = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a sequence. Stop strings need the tokenizer to read what was written."""

    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    tokenizer: Any = None

    def finish(self, output: Sequence[int]) -> Finish | None:
        """Say why `output` ends with its newest token; None if it goes on."""
        if output[-1] in self.eos_ids:
            return "eos"
        if self.stop and self._stopped(output):
            return "stop"
        return "length" if len(output) >= self.max_new_tokens else None

    def _stopped(self, output: Sequence[int]) -> bool:
        letters = _letters(self.stop, self.tokenizer)
        tail = output[-letters.reach :]
        if not letters.may_spell(tail):
            return False
        text = self.tokenizer.decode(tail)
        return any(s in text for s in self.stop)


class Letters:
    """The characters of stop strings that each token has, so that few outputs have to be read.

    Behind a pass reading a few tokens takes longer than all else that is done for them. A stop
    string stands in a text only if each of its characters is in some token of it. Spaces do not
    count: decoding takes them away or adds them.
    """

    def __init__(self, stop: tuple[str, ...], tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.reach = 4 * max(map(len, stop)) + TAIL_MARGIN
        self._bits = {c: 1 << i for i, c in enumerate(sorted(set("".join(stop)) - {" "}))}
        self._wanted = [self._among(s) for s in stop]
        self._of = _ByToken(self._of_token)

    def may_spell(self, tokens: Sequence[int]) -> bool:
        """True if tokens have all characters of some stop string."""
        found = reduce(or_, map(self._of.__getitem__, tokens), 0)
        return any(found & wanted == wanted for wanted in self._wanted)

    def _of_token(self, token: int) -> int:
        text = self.tokenizer.decode([token])
        # A part of a character: which one, only its neighbours tell.
        return -1 if "\ufffd" in text else self._among(text)

    def _among(self, text: str) -> int:
        return sum(bit for character, bit in self._bits.items() if character in text)


class _ByToken(dict[int, int]):
    """Numbers of tokens, each found when it is first asked for."""

    def __init__(self, find: Callable[[int], int]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, token: int) -> int:
        found = self[token] = self._find(token)
        return found


# For all examples of a task; the tokenizer is known by what it is, not by what it holds.
_letters = lru_cache(maxsize=64)(Letters)
