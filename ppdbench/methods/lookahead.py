"""Lookahead decoding: collect n-grams that the model writes while it guesses ahead.

Fu et al. 2024. One pass does two things. It verifies: n-grams of the pool that begin with the
newest token are merged into a tree of continuations. And it looks ahead: a window of `window`
columns and `ngram` - 1 levels keeps the last guesses of a fixed-point iteration; the pass
predicts one more level, each column then reads as an n-gram for the pool, and the oldest
level leaves.

The window needs no mask of its own. As a tree its oldest level is a chain on the newest token
and every later level hangs on the one before, so that ancestors are what a guess may see and
depth is where it stands. Its nodes are riders: the model runs them, nothing accepts them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.errors import ConfigError
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import DraftSizes, check_least, option, strategy

if TYPE_CHECKING:
    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.session import Session


SIZES = DraftSizes(
    usual={"window": 8, "ngram": 4, "guesses": 6}, on_cpu={"window": 3, "ngram": 3, "guesses": 2}
)


@strategy(
    "lookahead",
    papers=(
        arxiv(
            "2402.02057",
            "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Lookahead:
    """Verify n-grams that the model itself wrote in a window of guesses."""

    window: int = option(0, "columns of the window: n-grams collected per pass (0: 8, on a CPU 3)")
    ngram: int = option(
        0, "tokens of an n-gram, the one that it is found by included (0: 4, on a CPU 3)"
    )
    guesses: int = option(
        0, "n-grams verified at once, and kept in the pool per first token (0: 6, on a CPU 2)"
    )
    prompt_ngrams: bool = option(True, "whether the pool begins with the prompt's n-grams")

    def __post_init__(self) -> None:
        check_least("lookahead", self, window=0, ngram=0, guesses=0)
        if self.ngram == 1:
            raise ConfigError("lookahead: ngram=1; use 2 or more")

    def prepare(self, setup: Setup) -> LookaheadProposer:
        """Return the proposer; there is nothing to load."""
        filled = SIZES.fill(self, setup.target.staged.device.type)
        return SIZES.note(LookaheadProposer(filled, setup.seed), self, filled)


class NgramPool:
    """The newest continuations of each token, without repeats."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._after: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngram: Sequence[int]) -> None:
        """Add it as its first token's newest one; the oldest leaves when there are too many."""
        known = self._after.setdefault(ngram[0], {})
        rest = tuple(ngram[1:])
        known.pop(rest, None)
        known[rest] = None
        if len(known) > self.limit:
            del known[next(iter(known))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """List the continuations of a token, newest first."""
        return list(reversed(self._after.get(token, {})))


class GuessWindow:
    """Guesses level by level, the oldest first: `levels[l][w]` stands w + l + 1 places ahead.

    In the first passes there are fewer levels and, as each of them costs a column, more
    columns.
    """

    def __init__(self, first: Sequence[int], options: Lookahead) -> None:
        self.options = options
        self.levels = [list(first)]

    @staticmethod
    def columns(options: Lookahead, levels: int) -> int:
        """Return the number of columns while the window has so many levels."""
        return options.window + options.ngram - 1 - levels

    @classmethod
    def most_nodes(cls, options: Lookahead) -> int:
        """The largest size that it ever has."""
        return max(n * cls.columns(options, n) for n in range(1, options.ngram))

    def fit(self, room: int) -> None:
        """Drop the columns that reach beyond the end of the output; it only comes nearer."""
        width = max(0, room - len(self.levels) + 1)
        self.levels = [level[:width] for level in self.levels]

    def nodes(self, before: int) -> tuple[list[int], list[int]]:
        """Tokens and parents of the tree, of which `before` nodes come earlier."""
        width = len(self.levels[0])
        tokens = [token for level in self.levels for token in level]
        back = [1 if node < width else width for node in range(len(tokens))]
        parents = [before + node - steps for node, steps in enumerate(back)]
        return tokens, [-1, *parents[1:]] if tokens else []

    def shift(self, predicted: Sequence[int], accepted: int) -> Iterator[tuple[int, ...]]:
        """Take the level that a pass predicted and let go of what lies behind.

        Yields the n-gram of every column once there are enough levels. Drafted tokens that
        were accepted move the window further; what falls off in front comes back as the guess
        for the places that nothing has reached yet.
        """
        self.levels.append(list(predicted))
        if len(self.levels) < self.options.ngram:
            self.levels = [level[1:] for level in self.levels]
        else:
            yield from zip(*self.levels, strict=True)
            del self.levels[0]
        self.levels = [level[accepted:] + level[:accepted] for level in self.levels]


class LookaheadProposer(Proposer):
    """The pool and the window of one sequence."""

    trees = True

    def __init__(self, options: Lookahead, seed: int) -> None:
        assert all((options.window, options.ngram, options.guesses)), "sizes are chosen before"
        self.options, self.seed = options, seed
        self.rows = 1 + options.guesses * (options.ngram - 1) + GuessWindow.most_nodes(options)
        self._reset([0])

    def _reset(self, tokens: Sequence[int]) -> None:
        self._pool = NgramPool(self.options.guesses)
        draw = random.Random(self.seed)
        first = draw.choices(tokens, k=GuessWindow.columns(self.options, 1))
        self._window = GuessWindow(first, self.options)

    def start(self, session: Session, prefill: Prefill) -> None:
        """Guess with tokens of the prompt: any will do, and these at least occur together."""
        tokens, n = session.tokens, self.options.ngram
        self._reset(tokens)
        if self.options.prompt_ngrams:
            for end in range(n, len(tokens) + 1):
                self._pool.add(tokens[end - n : end])

    def propose(self, session: Session, room: int) -> Draft:
        follows = self._pool.after(session.tokens[-1])
        known = Draft.merged(Draft.chain(follow[:room]) for follow in follows)
        self._window.fit(room)
        guesses, above = self._window.nodes(len(known))
        return Draft.tree([*known.tokens, *guesses], [*known.lineage, *above], riders=len(guesses))

    def learn(self, session: Session, verified: Verified) -> None:
        width = len(self._window.levels[0])
        if not width or verified.draft.riders < width * len(self._window.levels):
            return
        predicted = verified.predictions[-width:]
        for ngram in self._window.shift(predicted, len(verified.outcome.path)):
            self._pool.add(ngram)
