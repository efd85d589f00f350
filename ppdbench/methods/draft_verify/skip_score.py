"""The score of a set of skipped blocks: how often its drafts agree, and what they cost.

Agreement is measured on what the model itself writes. As in decoding, the rows before the
drafted token are those of the whole model; one pass over all positions does it, because each
query sees the exact rows before it and, of the pass's own rows, only its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import DataError
from ppdbench.machine.clock import Clock
from ppdbench.methods.draft_verify.skip_file import SkipSet


@dataclass(frozen=True, slots=True)
class SkipScore:
    """The speedup that a set promises, and what it rests on.

    `cost` is what a drafting pass reads of the weights against a pass of the whole model,
    `speedup` what the best fixed draft length, `draft_length`, then gains over greedy decoding.
    """

    agreement: float
    cost: float
    speedup: float
    draft_length: int


def predict(matches: Sequence[Sequence[bool]], cost: float, longest: int) -> tuple[float, int]:
    """The best speed-up over draft lengths 1..longest, and the length that gives it.

    `matches` says per output and position whether the draft's token would be the model's.
    A pass of the whole model costs 1 however many rows it has, one of the draft `cost`.
    """
    n_tokens = sum(map(len, matches))
    spent = {n: sum(_walk(m, cost, n) for m in matches) for n in range(1, longest + 1)}
    best = min(spent, key=lambda n: spent[n])
    return n_tokens / spent[best], best


def _walk(matches: Sequence[bool], cost: float, longest: int) -> float:
    """Add up the cost of one output when each step drafts `longest` tokens, or all left."""
    at, spent = 0, 0.0
    while at < len(matches):
        drafted = min(longest, len(matches) - at - 1)
        accepted = 0
        while accepted < drafted and matches[at + accepted]:
            accepted += 1
        spent += 1 + cost * drafted
        at += accepted + 1
    return spent


class GreedyOutput:
    """One greedy output with its cache rows, on which sets are tried."""

    def __init__(self, model: StagedModel, prompt_ids: list[int], limits: Limits) -> None:
        n = limits.max_new_tokens
        self.session = Session(model, len(prompt_ids) + n, spare=n)
        output = autoregressive(
            self.session, Request(prompt_ids, limits, Clock(model.device))
        ).output_ids
        self.first, self.output = len(prompt_ids), output
        self.step = self._step(len(output) - 1) if len(output) > 1 else None

    def _step(self, n: int) -> Step:
        """Over the outputs but the last: each sees the rows before it and its own new one."""
        session, first = self.session, self.first
        rows, device = session.cached, session.model.device  # rows = first + n
        index = torch.arange(rows, device=device)[None]
        positions = index[:, first:]  # [1, n]
        before = index[:, None, :] < positions[:, :, None]
        own = torch.eye(n, dtype=torch.bool, device=device)[None]
        return Step(
            start=rows,
            n_query=n,
            key_length=rows + n,
            placed=positions,
            contiguous=False,
            visible=torch.cat([before, own], dim=2),
            places=lambda: (positions, torch.cat([index, positions], dim=1)),
        )

    def matches(self, model: StagedModel) -> list[bool]:
        """Say of each output token but the last if `model` would draft the token that follows."""
        if self.step is None:
            return []
        cache, rows = self.session.cache, self.step.start
        tokens = self.session.ids(self.output[:-1])
        guesses = model.logits(model.forward(tokens, self.step, cache))[0].argmax(-1)
        cache.truncate(rows)
        follow: Tensor = self.session.ids(self.output[1:])[0]
        same: list[bool] = (guesses == follow).tolist()
        return same


class SkipScorer:
    """Scores sets on the outputs of some prompts; every set is measured once."""

    def __init__(
        self,
        model: StagedModel,
        prompts: Sequence[tuple[list[int], Limits]],
        *,
        draft_length: int = 8,
    ) -> None:
        self.model, self.draft_length = model, draft_length
        self.texts = [GreedyOutput(model, ids, limits) for ids, limits in prompts]
        self.scores: dict[SkipSet, SkipScore] = {}
        if not any(text.step for text in self.texts):
            raise DataError(
                "nothing to measure skipped blocks on: no output has a second token; use more "
                "examples or more new tokens"
            )

    @torch.inference_mode()
    def score(self, skips: SkipSet) -> SkipScore:
        """Agreement, cost and predicted speed-up of a set."""
        if skips not in self.scores:
            self.scores[skips] = self._measure(skips)
        return self.scores[skips]

    def _measure(self, skips: SkipSet) -> SkipScore:
        model = SkippedModel(self.model, skips.attention, skips.mlp)
        matches = [text.matches(model) for text in self.texts]
        cost = model.cost()
        speedup, length = predict(matches, cost, self.draft_length)
        agreement = sum(map(sum, matches)) / sum(map(len, matches))
        return SkipScore(agreement, cost, speedup, length)
