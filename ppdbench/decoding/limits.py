"""When an output ends: end-of-sequence ids, stop strings, a number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Finish = Literal["eos", "stop", "length"]

# A stop string may begin in the middle of a token, so a few tokens more than it has
# characters are looked at; bytes of one character may take up to four tokens.
TAIL_MARGIN = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a sequence. Stop strings need the tokenizer to read what was written."""

    max_new_tokens: int
    eos_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    tokenizer: Any = None

    def finish(self, output: Sequence[int]) -> Finish | None:
        """Why `output` ends with its newest token, or None if it goes on."""
        if output[-1] in self.eos_ids:
            return "eos"
        if self.stop and self._stopped(output):
            return "stop"
        return "length" if len(output) >= self.max_new_tokens else None

    def _stopped(self, output: Sequence[int]) -> bool:
        longest = max(len(s) for s in self.stop)
        tail = self.tokenizer.decode(output[-(4 * longest + TAIL_MARGIN) :])
        return any(s in tail for s in self.stop)


def visible_text(tokenizer: Any, output: Sequence[int], limits: Limits) -> str:
    """What a reader sees of an output: no special tokens, cut before the first stop string."""
    text: str = tokenizer.decode(list(output), skip_special_tokens=True)
    ends = [at for s in limits.stop if (at := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text
