"""The choice of a token from logits: the most likely one, or a seeded draw from the likeliest."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.reading import Reading, most_likely
from ppdbench.errors import ConfigError

TARGETS = ("greedy", "top-k", "top-p", "min-p")
COLDEST = 1e-6  # below it logits overflow

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
        if not self.temperature >= COLDEST:
            raise ConfigError(
                f"temperature={self.temperature}; use a value above 0 ({COLDEST} at least)"
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
        probabilities = self.distribution(logits, texts)
        draws = [
            torch.multinomial(row, 1, generator=generator)
            for row, generator in zip(probabilities.cpu(), generators, strict=True)
        ]
        return torch.stack(draws).to(logits.device)

    def distribution(self, logits: Tensor, texts: Texts | None = None) -> Tensor:
        """The probabilities [batch, vocab] that a draw follows, after a text for each row."""
        if self.greedy:
            certain = torch.zeros_like(logits, dtype=torch.float32)
            return certain.scatter(-1, most_likely(logits)[:, None], 1.0)
        scaled = self._steered(logits.float(), texts) / self.temperature
        if self.kind == "top-k":
            k = min(self.top_k, scaled.shape[-1])
            threshold = scaled.topk(k).values[:, -1:]
            return torch.softmax(scaled.masked_fill(scaled < threshold, float("-inf")), -1)
        if self.kind == "min-p":
            likely = torch.softmax(scaled, -1)
            least = self.min_p * likely.amax(-1, keepdim=True)
            return torch.softmax(scaled.masked_fill(likely < least, float("-inf")), -1)
        return torch.stack([_nucleus(row, self.top_p) for row in torch.softmax(scaled, -1)])

    def possible(self, logits: Tensor, text: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The tokens that `logits` [vocab] can lead to after a text, and their probabilities.

        In float64 on the CPU, for the arithmetic of rejected drafts.
        """
        probabilities = self.distribution(logits[None], [text])[0].cpu()
        tokens = probabilities.nonzero()[:, 0]
        likely = probabilities[tokens].double()
        return tokens, likely / likely.sum()

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


# Of the tokens below these probabilities none is sorted where those above make up the nucleus.
RARE = (1e-3, 1e-5)


def _nucleus(likely: Tensor, top_p: float) -> Tensor:
    """Probabilities [vocab] without the tail behind the likeliest tokens that reach `top_p`.

    A token is kept if those before it do not reach p yet; so the first always stays. Of tokens
    that are equally likely the lower id comes first.
    """
    # Nothing is cut at p=1, where rounding lets the sum reach p early.
    if top_p == 1:
        return likely / likely.sum()
    for least in (*RARE, 0.0):
        tokens = (likely >= least).nonzero()[:, 0]
        ordered, order = likely[tokens].sort(descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        if least == 0 or float(before[-1]) >= top_p:
            break
    kept = ordered * (before < top_p)
    cut = torch.zeros_like(likely).scatter(-1, tokens[order], kept)
    return cut / kept.sum()


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

    def choose_last(self, reading: Reading, text: Sequence[int] | None = None) -> Tensor:
        """One token [1, 1] after the last row that was read, and after the text up to there."""
        if self.target.greedy:
            return (
                reading.likeliest[:, -1:] if reading.likeliest.shape[1] > 1 else reading.likeliest
            )
        return self.choose(reading.logits[:, -1], text)

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """A drafted token [1, 1] and, if it was drawn, what from: [1, vocab]."""
        if self.target.greedy:
            return most_likely(logits)[:, None], None
        probabilities = self.target.for_drafts.distribution(logits)
        token = torch.multinomial(probabilities.cpu(), 1, generator=self.generator)
        return token.to(logits.device), probabilities

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
