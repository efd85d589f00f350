"""The rank of the final token in the logits of every asked layer, position by position.

Decoding goes on undisturbed and only keeps the hidden states it passes; the head is applied
to them afterwards, in blocks of many rows, which costs a fraction of one call per layer and
step and bounds the memory whatever the vocabulary. A rank is the number of strictly larger
logits, so that one pass answers for every k: match iff rank < k.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ppdbench.decoding.sampling import Target
from ppdbench.engine.heads import ExitHead
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import PaddedBatch
from ppdbench.engine.vocabulary import ranks_of
from ppdbench.errors import NumericalError

LOGITS_BUDGET = 16 << 20  # bytes of logits computed at once; comparing takes as much again
HIDDEN_BUDGET = 32 << 20  # bytes of hidden states kept before they are turned into ranks

RanksByLayer = dict[int, list[int]]  # layers run -> rank per position


@dataclass(slots=True)
class ProbedSequence:
    """The results for one sequence."""

    output_ids: list[int]
    ranks: RanksByLayer
    head_ranks: RanksByLayer = field(default_factory=dict)
    predictions: dict[int, list[int]] = field(default_factory=dict)
    elapsed_ms: float = 0.0

    def cut(self, length: int) -> None:
        """Forget all positions from `length` on."""
        del self.output_ids[length:]
        for ranks in (self.ranks, self.head_ranks, self.predictions):
            for values in ranks.values():
                del values[length:]


class Prober:
    """Decodes batches of prompts and ranks their tokens in the layers asked for.

    `predictions` also keeps every layer's own first choice, for the token grid.
    """

    def __init__(
        self,
        loaded: Loaded,
        layers: Sequence[int],
        capacity: int,
        *,
        heads: dict[int, ExitHead] | None = None,
        predictions: bool = False,
    ) -> None:
        self.loaded = loaded
        self.model = loaded.staged
        self.layers = list(layers)
        self.heads = {n: head for n, head in (heads or {}).items() if n in self.layers}
        self.predictions = predictions
        self.capacity = capacity
        self._batches: dict[int, PaddedBatch] = {}

    def _batch(self, size: int) -> PaddedBatch:
        if size not in self._batches:
            self._batches.clear()  # one cache at a time
            self._batches[size] = PaddedBatch(self.model, self.capacity, size)
        return self._batches[size]

    @torch.inference_mode()
    def probe(
        self,
        prompts: list[list[int]],
        n_tokens: int,
        target: Target,
        generators: list[torch.Generator],
        *,
        stop_at: frozenset[int] = frozenset(),
        names: Sequence[str] = (),
    ) -> list[ProbedSequence]:
        """Generate `n_tokens` after each prompt, whatever they are, and rank them.

        With `stop_at` an output ends at the first of these ids, that id included.
        """
        started = time.perf_counter()
        batch = self._batch(len(prompts))
        kept = _Kept(self, names)
        logits = batch.prefill(prompts, self.loaded.pad_id, tap=kept.tap)
        tokens = kept.choose(logits, target, generators)
        for _ in range(n_tokens - 1):
            if stop_at and kept.all_stopped(stop_at):
                break
            logits = batch.advance(tokens, tap=kept.tap)
            tokens = kept.choose(logits, target, generators)
        results = kept.finish()
        elapsed_ms = 1e3 * (time.perf_counter() - started) / len(prompts)
        for result in results:
            result.elapsed_ms = elapsed_ms
            ends = [i for i, t in enumerate(result.output_ids) if t in stop_at]
            if ends:
                result.cut(ends[0] + 1)
        return results

    def early_logits(self, layer: int, normed: Tensor, trained: bool) -> Tensor:
        """Logits after `layer` layers, through the model's head or the layer's trained one."""
        if trained:
            return self.heads[layer].logits(self.model.adapter, normed)
        return self.model.adapter.readout(normed)


class _Kept:
    """Hidden states and tokens of a decoding in progress, and the ranks made of them."""

    def __init__(self, prober: Prober, names: Sequence[str]) -> None:
        self.prober = prober
        self.names = names
        self.wanted = frozenset(prober.layers)
        self.last = prober.model.n_layers
        self.hidden: dict[int, list[Tensor]] = {n: [] for n in prober.layers}
        self.tokens: list[Tensor] = []  # [batch, 1] each, those already ranked included
        self.final_ranks: list[Tensor] = []
        self.peaks: list[Tensor] = []
        self.ranked = 0
        self.held = 0
        self.blocks: dict[tuple[int, str], list[Tensor]] = {}  # [positions, batch] each
        self.stopped: Tensor | None = None

    def tap(self, layer: int, hidden: Tensor) -> None:
        """Keep the newest position of a layer; a copy, so that a prefill can be freed."""
        # The last layer's ranks come from the logits that chose the token.
        if layer in self.wanted and layer < self.last:
            newest = hidden[:, -1].clone() if hidden.shape[1] > 1 else hidden[:, 0]
            self.hidden[layer].append(newest)
            self.held += newest.numel() * newest.element_size()

    def choose(self, logits: Tensor, target: Target, generators: list[torch.Generator]) -> Tensor:
        """Pick the final tokens [batch, 1] and note their rank in the last layer."""
        logits = logits[:, -1]
        self.peaks.append(logits.amax(-1))
        if not target.greedy:
            self._check_final()  # nothing can be drawn from NaN
        tokens = target.choose(logits, generators)
        self.tokens.append(tokens)
        if self.last in self.wanted:
            self.final_ranks.append(ranks_of(logits, tokens[:, 0]))
        if self.held >= HIDDEN_BUDGET:
            self.rank_held()
        return tokens

    def all_stopped(self, ids: frozenset[int]) -> bool:
        """True if every sequence has met one of `ids`."""
        newest = self.tokens[-1][:, 0]
        now = torch.isin(newest, torch.tensor(sorted(ids), device=newest.device))
        self.stopped = now if self.stopped is None else self.stopped | now
        return bool(self.stopped.all())

    def rank_held(self) -> None:
        """Turn the hidden states kept so far into ranks, and let them go."""
        if self.ranked == len(self.tokens):
            return
        tokens = torch.stack([t[:, 0] for t in self.tokens[self.ranked :]])  # [positions, batch]
        for layer, kept in self.hidden.items():
            if kept:
                self._rank_layer(layer, torch.stack(kept), tokens)
                kept.clear()
        self.ranked = len(self.tokens)
        self.held = 0

    def _rank_layer(self, layer: int, hidden: Tensor, tokens: Tensor) -> None:
        prober = self.prober
        device = prober.model.cache_shape.devices[-1]
        rows = max(1, LOGITS_BUDGET // (prober.model.vocab_size * 4))
        flat, flat_tokens = hidden.flatten(0, 1), tokens.flatten()
        found: dict[str, list[Tensor]] = {}
        for first in range(0, flat.shape[0], rows):
            normed = prober.model.adapter.norm(flat[first : first + rows].to(device))
            chosen = flat_tokens[first : first + rows]
            for kind in ("own", "trained") if layer in prober.heads else ("own",):
                logits = prober.early_logits(layer, normed, kind == "trained")
                self._check(logits, layer, first, tokens.shape[1])
                found.setdefault(kind, []).append(ranks_of(logits, chosen))
                if prober.predictions and kind == "own":
                    found.setdefault("predictions", []).append(logits.argmax(-1))
        for kind, parts in found.items():
            self.blocks.setdefault((layer, kind), []).append(torch.cat(parts).view(tokens.shape))

    def _check(self, logits: Tensor, layer: int, first: int, batch: int) -> None:
        low, high = logits.aminmax()
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            row = int((~torch.isfinite(logits)).any(-1).nonzero()[0, 0]) + first
            self._refuse(layer, row // batch + self.ranked, row % batch)

    def _refuse(self, layer: int, position: int, sequence: int) -> None:
        name = f"example {self.names[sequence]}: " if self.names else ""
        raise NumericalError(
            f"{name}NaN or infinite logits after layer {layer} at output position "
            f"{position + 1}; try --dtype float32 or check the weights"
        )

    def _check_final(self) -> None:
        peaks = torch.stack(self.peaks)
        if not bool(torch.isfinite(peaks).all()):
            position, sequence = (~torch.isfinite(peaks)).nonzero()[0].tolist()
            self._refuse(self.last, position, sequence)

    def finish(self) -> list[ProbedSequence]:
        """The results of every sequence."""
        # Lower layers first: what is wrong in one is wrong in all above it.
        self.rank_held()
        self._check_final()
        tokens = torch.cat(self.tokens, dim=1).tolist()
        results = [ProbedSequence(output, {}) for output in tokens]
        for (layer, kind), parts in sorted(self.blocks.items()):
            for result, values in zip(results, torch.cat(parts).T.tolist(), strict=True):
                where = {
                    "own": result.ranks,
                    "trained": result.head_ranks,
                    "predictions": result.predictions,
                }[kind]
                where[layer] = values
        if self.final_ranks:
            for result, values in zip(
                results, torch.stack(self.final_ranks).T.tolist(), strict=True
            ):
                result.ranks[self.last] = values
                if self.prober.predictions:
                    result.predictions[self.last] = list(result.output_ids)
        return results
