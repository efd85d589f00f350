"""The choice of a token from logits: the most likely one, or a seeded draw from the likeliest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ppdbench.engine.reading import Reading, most_likely
from ppdbench.errors import ConfigError

TARGETS = ("greedy", "top-k", "top-p", "min-p")
COLDEST = 1e-6  # below it logits overflow
HOTTEST = 1e30  # as much as a run can store

Texts = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The way to pick the final layer's token.

    Applied in the order of transformers' `generate()`: `logit_bias` is added to the logits of
    the tokens that it names, `repetition_penalty` divides the logits above 0 of every token in
    the text so far, the prompt included, and multiplies those below; then come the temperature and
    what `kind` leaves to draw from.
    """

    kind: str = "greedy"
    top_k: int = 3
    top_p: float = 0.95
    min_p: float = 0.05
    temperature: float = 1.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in TARGETS:
            raise ConfigError(f"target {self.kind!r} is not known; use {', '.join(TARGETS)}")
        if self.top_k < 1:
            raise ConfigError(f"top-k sampling from {self.top_k} tokens; use 1 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p sampling with p={self.top_p}; use a value above 0, up to 1")
        if not 0 <= self.min_p <= 1:
            raise ConfigError(f"min-p sampling with p={self.min_p}; use 0 to 1")
        if not COLDEST <= self.temperature <= HOTTEST:
            raise ConfigError(
                f"temperature={self.temperature}; use a value above 0 ({COLDEST} at least, "
                f"{HOTTEST} at most)"
            )
        if not 0 < self.repetition_penalty < math.inf:
            raise ConfigError(
                f"repetition_penalty={self.repetition_penalty}; use a value above 0 (1: none)"
            )
        self._check_bias()

    def _check_bias(self) -> None:
        named = [token for token, _ in self.logit_bias]
        if len(set(named)) < len(named):
            raise ConfigError("a token has two logit biases; give it one")
        for token, bias in self.logit_bias:
            if token < 0 or not math.isfinite(bias):
                raise ConfigError(
                    f"logit bias {token}={bias}; use a token id, 0 or more, and a finite number"
                )

    @property
    def greedy(self) -> bool:
        """True if nothing is drawn."""
        return self.kind == "greedy"

    @property
    def by_text(self) -> bool:
        """True if probabilities depend on which tokens the text holds already."""
        return self.repetition_penalty != 1

    @property
    def for_drafts(self) -> Target:
        """The same for a model with other ids or less text: exactness asks nothing of drafts."""
        return replace(self, repetition_penalty=1.0, logit_bias=())

    def check(self, vocab_size: int) -> None:
        """Refuse biases of tokens that a model does not have."""
        for token, bias in self.logit_bias:
            if token >= vocab_size:
                raise ConfigError(
                    f"logit bias {token}={bias}: the model has tokens 0..{vocab_size - 1}"
                )

    def choose(
        self, logits: Tensor, generators: list[torch.Generator], texts: Texts | None = None
    ) -> Tensor:
        """One token per row of `logits` [batch, vocab]: [batch, 1]."""
        if self.greedy:
            return most_likely(logits)[:, None]
        draws = [
            tokens[drawn(likely, generator)]
            for (tokens, likely), generator in zip(
                self._each(logits, texts), generators, strict=True
            )
        ]
        return torch.stack(draws)[:, None].to(logits.device)

    def distribution(self, logits: Tensor, texts: Texts | None = None) -> Tensor:
        """The probabilities [batch, vocab] that a draw follows, after a text for each row."""
        rows = torch.zeros(logits.shape)
        for row, (tokens, likely) in zip(rows, self._each(logits, texts), strict=True):
            row[tokens] = likely
        return rows.to(logits.device)

    def possible(self, logits: Tensor, text: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """The tokens that `logits` [vocab] can lead to after a text, and their probabilities.

        In float64 on the CPU, for the arithmetic of rejected drafts.
        """
        ((tokens, likely),) = self._each(logits[None], [text])
        likely = likely.double()
        return tokens, likely / likely.sum()

    def _each(self, logits: Tensor, texts: Texts | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tokens that can follow each row, by their ids, and how likely they are.

        On the CPU. Of 49,152 tokens mostly a few dozen are left: no others are sorted or scaled.
        """
        if not self.greedy:
            logits = self._steered(logits.float(), texts)
        for row in logits.detach().cpu():
            tokens, likely = self._left_of(row)
            # Of NaN nothing is left. The first stands for it: whoever draws refuses NaN himself.
            yield (tokens, likely) if len(tokens) else (most_likely(row[None]), torch.ones(1))

    def _left_of(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Cut a row [vocab] as temperature and `kind` say."""
        if self.greedy:
            return most_likely(logits[None]), torch.ones(1)
        scaled = logits if self.temperature == 1 else logits / self.temperature
        if self.kind == "top-p":
            return _nucleus(torch.softmax(scaled, -1), self.top_p)
        if self.kind == "top-k":
            tokens = _places(scaled.numpy() >= _nth_largest(scaled, self.top_k))
        else:
            likely = torch.softmax(scaled, -1)
            tokens = _places(likely.numpy() >= (self.min_p * likely.max()).numpy())
        return tokens, torch.softmax(scaled[tokens], -1)

    def _steered(self, logits: Tensor, texts: Texts | None) -> Tensor:
        """Logits [batch, vocab] with the bias and the penalty."""
        if self.logit_bias:
            tokens, biases = zip(*self.logit_bias, strict=True)
            logits = logits.clone()
            logits[:, list(tokens)] += torch.tensor(biases, device=logits.device)
        if not self.by_text:
            return logits
        if texts is None:
            raise ValueError("a repetition penalty needs the text of every row")
        rows = []
        for row, text in zip(logits, texts, strict=True):
            seen = torch.tensor(sorted(set(text)), dtype=torch.long, device=logits.device)
            scores, factor = row[seen], self.repetition_penalty
            rows.append(
                row.index_copy(0, seen, torch.where(scores < 0, scores * factor, scores / factor))
            )
        return torch.stack(rows)


# A nucleus is looked for in steps of these probabilities, so that only tokens around its end are
# put in order.
LEVELS = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 0.0)


def _nucleus(likely: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The likeliest tokens that reach `top_p`, by their ids, and their probabilities.

    A token is kept if those before it do not reach p yet; so the first always stays. Of tokens
    that are equally likely the lower id comes first.
    """
    # Nothing is cut at p=1, where rounding lets the sum reach p early.
    if top_p == 1:
        return torch.arange(len(likely)), likely / likely.sum()
    kept: list[Tensor] = []
    reached, below, numbers = 0.0, math.inf, likely.numpy()
    for least in LEVELS:
        level = _places((numbers >= least) & (numbers < below))
        mass = float(likely[level].sum(dtype=torch.float64))
        if reached + mass >= top_p or not least:
            break
        kept.append(level)
        reached, below = reached + mass, least
    ordered, order = likely[level].sort(descending=True, stable=True)
    before = (reached + ordered.double().cumsum(-1)).float() - ordered
    tokens = torch.cat([*kept, level[order[before < top_p]]]).sort().values
    found = likely[tokens]
    return tokens, found / found.sum()


def _nth_largest(row: Tensor, n: int) -> float:
    """The n-th largest number of a row, or the smallest of a shorter one."""
    return float(row.topk(min(n, len(row))).values[-1])


def _places(mask: npt.NDArray[np.bool_]) -> Tensor:
    """The places where a mask is true; numpy compares and finds several times faster than torch."""
    return torch.from_numpy(np.flatnonzero(mask))


def drawn(likely: Tensor, generator: torch.Generator) -> int:
    """A place in `likely`, drawn in proportion to it.

    It takes one number of the generator however many places there are, so that a token that
    rounding leaves or cuts does not change the draws that follow.
    """
    reached = likely.double().cumsum(-1)
    place = int((reached <= uniform(generator) * float(reached[-1])).sum())
    return place if place < len(likely) else int(likely.argmax())  # by rounding alone


def uniform(generator: torch.Generator) -> float:
    """A number from 0 up to, but not, 1."""
    return float(torch.rand((), generator=generator, dtype=torch.float64))


class Chooser:
    """Picks the tokens of one example: the most likely ones, or seeded draws.

    `rule`, where there is one, verifies sampled drafts in place of the exact one: tests of
    faithfulness need wrong rules that they must refuse.
    """

    def __init__(
        self,
        target: Target,
        generator: torch.Generator | None = None,
        rule: Callable[..., Any] | None = None,
    ) -> None:
        self.target, self.rule = target, rule
        self.generator = torch.Generator() if generator is None else generator

    def choose(self, logits: Tensor, text: Sequence[int] | None = None) -> Tensor:
        """One token [1, 1] for `logits` [1, vocab] after a text."""
        if self.target.greedy:
            return most_likely(logits)[:, None]
        return self.target.choose(logits, [self.generator], None if text is None else [text])

    def choose_last(self, reading: Reading, text: Sequence[int] | None = None) -> int:
        """One token after the last row that was read, and after the text up to there."""
        if self.target.greedy:
            return reading.tokens[-1]
        return int(self.choose(reading.logits[:, -1], text))

    def draw_last(self, reading: Reading) -> tuple[Tensor, Tensor | None]:
        """A drafted token [1, 1] after the newest row; if it was drawn, what from, [1, vocab]."""
        if self.target.greedy:
            return reading.likeliest[:, -1:], None
        return self.draw(reading.logits[:, -1])

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """The same after the row that these logits [1, vocab] are of."""
        if self.target.greedy:
            return most_likely(logits)[:, None], None
        tokens, likely = self.target.for_drafts.possible(logits[0])
        probabilities = torch.zeros(logits.shape)
        probabilities[0, tokens] = likely.float()
        token = tokens[drawn(likely, self.generator)].view(1, 1)
        return token.to(logits.device), probabilities.to(logits.device)

    def draw_siblings(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Tokens [n, count] drawn for each row of `logits`, none twice, and what from [n, vocab].

        Numbers of Gumbel's distribution added to log-probabilities put tokens into an order in
        which each is drawn from those that are left (Kool et al. 2019). Where fewer are possible,
        the likeliest of the others follow, chosen.
        """
        probabilities = self.target.for_drafts.distribution(logits)
        noise = torch.empty(probabilities.shape, dtype=torch.float64)
        noise.exponential_(generator=self.generator)
        drawn = probabilities.double().log() - noise.log().to(logits.device)
        below = drawn.masked_fill(drawn.isneginf(), math.inf).amin(-1, keepdim=True)
        likely = logits.double() - logits.double().amax(-1, keepdim=True) - 1
        order = torch.where(probabilities > 0, drawn, below + likely)
        return order.topk(count).indices, probabilities


GREEDY = Chooser(Target())


def generator_for(seed: int, *names: str) -> torch.Generator:
    """A generator of its own for each example, so that order does not change what is drawn."""
    digest = hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
