"""From logits to a token: the most likely one, or a seeded draw from the likeliest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.engine.reading import Reading, most_likely
from ppdbench.errors import ConfigError

TARGETS = ("greedy", "top-k", "top-p")
COLDEST = 1e-6  # below it logits overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The way to pick the final layer's token."""

    kind: str = "greedy"
    top_k: int = 3
    top_p: float = 0.95
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in TARGETS:
            raise ConfigError(f"target {self.kind!r} is not known; use {', '.join(TARGETS)}")
        if self.top_k < 1:
            raise ConfigError(f"top-k sampling from {self.top_k} tokens; use 1 or more")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p sampling with p={self.top_p}; use a value above 0, up to 1")
        if not self.temperature >= COLDEST:
            raise ConfigError(
                f"temperature={self.temperature}; use a value above 0 ({COLDEST} at least)"
            )

    @property
    def greedy(self) -> bool:
        """True if nothing is drawn."""
        return self.kind == "greedy"

    def choose(self, logits: Tensor, generators: list[torch.Generator]) -> Tensor:
        """One token per row of `logits` [batch, vocab]: [batch, 1]."""
        if self.greedy:
            return most_likely(logits)[:, None]
        probabilities = self.distribution(logits)
        draws = [
            torch.multinomial(row, 1, generator=generator)
            for row, generator in zip(probabilities.cpu(), generators, strict=True)
        ]
        return torch.stack(draws).to(logits.device)

    def distribution(self, logits: Tensor) -> Tensor:
        """The probabilities [batch, vocab] that a draw follows."""
        scaled = logits.float() / self.temperature
        if self.kind == "top-k":
            k = min(self.top_k, scaled.shape[-1])
            threshold = scaled.topk(k).values[:, -1:]
            return torch.softmax(scaled.masked_fill(scaled < threshold, float("-inf")), -1)
        ordered, order = torch.softmax(scaled, -1).sort(-1, descending=True)
        # Keep a token if those before it do not reach p yet; so the first always stays.
        # Nothing is cut at p=1, where rounding lets the sum reach p early.
        kept = ordered * ((ordered.cumsum(-1) - ordered < self.top_p) | (self.top_p == 1))
        probabilities = torch.zeros_like(kept).scatter(-1, order, kept)
        return probabilities / probabilities.sum(-1, keepdim=True)


class Chooser:
    """Picks the tokens of one example: the most likely ones, or seeded draws."""

    def __init__(self, target: Target, generator: torch.Generator | None = None) -> None:
        self.target = target
        self.generator = torch.Generator() if generator is None else generator

    def choose(self, logits: Tensor) -> Tensor:
        """One token [1, 1] for `logits` [1, vocab]."""
        if self.target.greedy:
            return most_likely(logits)[:, None]
        return self.target.choose(logits, [self.generator])

    def choose_last(self, reading: Reading) -> Tensor:
        """One token [1, 1] after the last row that was read."""
        if self.target.greedy:
            return (
                reading.likeliest[:, -1:] if reading.likeliest.shape[1] > 1 else reading.likeliest
            )
        return self.choose(reading.logits[:, -1])

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """A drafted token [1, 1] and, if it was drawn, what from: [1, vocab]."""
        if self.target.greedy:
            return most_likely(logits)[:, None], None
        probabilities = self.target.distribution(logits)
        token = torch.multinomial(probabilities.cpu(), 1, generator=self.generator)
        return token.to(logits.device), probabilities


GREEDY = Chooser(Target())


def generator_for(seed: int, *names: str) -> torch.Generator:
    """A generator of its own for each example, so that order does not change what is drawn."""
    digest = hashlib.sha256("\0".join([str(seed), *names]).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
