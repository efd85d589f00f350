"""One sequence being decoded: its tokens, its cache rows, forward and back."""

from __future__ import annotations

import torch
from torch import Tensor

from ppdbench.engine.staged import StagedModel, Tap


class Session:
    """Tokens so far and the cache rows behind them; the buffers serve one example after another.

    `tokens` are all known tokens. The cache holds a prefix of them: after `prefill` all,
    during decoding all but the newest.
    """

    def __init__(self, model: StagedModel, capacity: int) -> None:
        self.model = model
        self.cache, self.steps = model.new_cache(capacity)
        self.tokens: list[int] = []

    @property
    def cached(self) -> int:
        """How many tokens every layer has in its cache."""
        return min(self.cache.lengths.values())

    def reset(self, prompt_ids: list[int]) -> None:
        """Start over with a prompt; nothing is computed yet."""
        self.tokens = list(prompt_ids)
        self.cache.truncate(0)

    def forward(self, tokens: Tensor, *, tap: Tap | None = None) -> Tensor:
        """Run all layers over the next tokens [1, query]; the last one's hidden state."""
        step = self.steps.chain(self.cached, tokens.shape[1])
        hidden = self.model.forward(tokens, step, self.cache, tap=tap)
        return hidden[:, -1:]

    def prefill(self, *, tap: Tap | None = None) -> Tensor:
        """Run the prompt; logits [1, 1, vocab] after its last token."""
        ids = torch.tensor([self.tokens], device=self.model.device)
        return self.model.logits(self.forward(ids, tap=tap))

    def advance(self, token: Tensor, *, tap: Tap | None = None) -> Tensor:
        """Run one token [1, 1] (already on the device); logits [1, 1, vocab] after it."""
        return self.model.logits(self.forward(token, tap=tap))

    def rollback(self, length: int) -> None:
        """Back to the first `length` tokens."""
        del self.tokens[length:]
        self.cache.truncate(length)


class Batch:
    """Several sequences decoded in step, the shorter prompts padded on the left.

    Prompts of one length run exactly as a single one does, without any mask.
    """

    def __init__(self, model: StagedModel, capacity: int, size: int) -> None:
        self.model = model
        self.size = size
        self.cache, self.steps = model.new_cache(capacity, batch=size)
        self.padding: Tensor | None = None
        self.length = 0

    def prefill(self, prompts: list[list[int]], pad_id: int, *, tap: Tap | None = None) -> Tensor:
        """Start over with these prompts; logits [batch, 1, vocab] after each one's last token."""
        if len(prompts) != self.size:
            raise ValueError(f"{len(prompts)} prompts for a batch of {self.size}")
        longest = max(map(len, prompts))
        rows = [[pad_id] * (longest - len(p)) + p for p in prompts]
        missing = [longest - len(p) for p in prompts]
        device = self.model.device
        self.padding = torch.tensor(missing, device=device) if any(missing) else None
        self.cache.truncate(0)
        self.length = 0
        return self._forward(torch.tensor(rows, device=device), tap)

    def advance(self, tokens: Tensor, *, tap: Tap | None = None) -> Tensor:
        """Run one token per sequence [batch, 1]; logits [batch, 1, vocab]."""
        return self._forward(tokens, tap)

    def _forward(self, tokens: Tensor, tap: Tap | None) -> Tensor:
        n_query = tokens.shape[1]
        if self.padding is None:
            step = self.steps.chain(self.length, n_query)
        else:
            step = self.steps.padded(self.length, n_query, self.padding)
        self.length = step.end
        hidden = self.model.forward(tokens, step, self.cache, tap=tap)
        return self.model.logits(hidden[:, -1:])
