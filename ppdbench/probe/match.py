"""The rank of the final token in the logits of every asked layer, position by position.

Decoding goes on undisturbed and only keeps the hidden states it passes; the head is applied
to them afterwards, in blocks of many rows, which costs a fraction of one call per layer and
step and bounds the memory whatever the vocabulary. A rank is the number of strictly larger
logits, so that one pass answers for every k: match iff rank < k.

Sequences that are probed together decode in a batch (`decoding/batch.py`), where the next one
takes the place of one that ends; the head is applied to the states of as many at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import ReadOut, WholeModel, no_numbers, token_by_token
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.heads import ExitHead
from ppdbench.engine.loading import Loaded
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.taps import StateTap
from ppdbench.engine.vocabulary import ranks_of
from ppdbench.errors import NumericalError
from ppdbench.machine.clock import Clock

LOGITS_BUDGET = 16 << 20  # bytes of logits computed at once; comparing takes as much again
HIDDEN_BUDGET = 32 << 20  # bytes of hidden states kept before they are turned into ranks

RanksByLayer = dict[int, list[int]]  # layers run -> rank per position


@dataclass(slots=True)
class ProbedSequence:
    """The results for one sequence."""

    output_ids: list[int] = field(default_factory=list)
    ranks: RanksByLayer = field(default_factory=dict)
    head_ranks: RanksByLayer = field(default_factory=dict)
    predictions: dict[int, list[int]] = field(default_factory=dict)
    elapsed_ms: float = 0.0

    def of(self, kind: str) -> RanksByLayer:
        """Ranks by the model's `own` head or `trained` ones, or the layers' `predictions`."""
        kinds = {"own": self.ranks, "trained": self.head_ranks, "predictions": self.predictions}
        return kinds[kind]


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to probe, what its tokens are drawn with, and whose it is."""

    prompt: list[int]
    generator: torch.Generator
    name: str = ""


class Prober:
    """Decodes prompts, several at once, and ranks their tokens in the layers asked for.

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
        self.layers = sorted(layers)
        self.heads = {n: head for n, head in (heads or {}).items() if n in self.layers}
        self.predictions = predictions
        self.capacity = capacity
        self._made: Batch | None = None

    @property
    def batch(self) -> Batch:
        """The batch that sequences decode in, over passes as they were when one was first asked."""
        if self._made is None:
            self._made = Batch(Setup(self.loaded, self.capacity))
        return self._made

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
        """Generate `n_tokens` after each prompt, all at once, and rank them.

        With `stop_at` an output ends at the first of these ids, that id included.
        """
        asked = list(map(Question, prompts, generators, names or [""] * len(prompts)))
        found = dict(self.stream(asked, len(asked), target, Limits(n_tokens, stop_at)))
        return [found[place] for place in range(len(asked))]

    def stream(
        self, asked: Iterable[Question], size: int, target: Target, limits: Limits
    ) -> Iterator[tuple[int, ProbedSequence]]:
        """Probe `size` prompts at a time; yield each, in groups, with its place among all."""
        ranking, clock = _Ranking(self), Clock(self.model.device)
        requests = (
            (
                (place, kept := ranking.begin(each.name)),
                _Asked(each.prompt, limits, clock, Chooser(target, each.generator), kept=kept),
            )
            for place, each in enumerate(asked)
        )
        decoders = self.batch.prepare(lambda _: _Probe(), size)
        group: list[tuple[int, _Kept]] = []
        since = time.perf_counter()
        for done in self.batch.decode(decoders, requests):
            if done.error is not None:
                raise done.error
            group.append(done.key)
            if len(group) == size:
                yield from ranking.finish(group, since)
                group, since = [], time.perf_counter()
        yield from ranking.finish(group, since)

    def early_logits(self, layer: int, normed: Tensor, trained: bool) -> Tensor:
        """Logits after `layer` layers, through the model's head or the layer's trained one."""
        if trained:
            return self.heads[layer].logits(self.model.adapter, normed)
        return self.model.adapter.readout(normed)


class _Kept:
    """The tokens of a sequence in progress, and the hidden states that are not ranked yet."""

    def __init__(self, ranking: _Ranking, name: str) -> None:
        self.ranking, self.name = ranking, name
        self.output: list[int] = []
        self.hidden: dict[int, list[Tensor]] = {n: [] for n in ranking.below}  # [1, hidden] each
        self.found = ProbedSequence(self.output)
        if ranking.ranks_last:
            self.found.ranks[ranking.last] = []
        self.ranked = 0

    def take(self, token: int, reading: Reading) -> None:
        """Take in the next token, and its rank in the logits of the last layer that chose it."""
        if self.ranking.ranks_last:
            # No logit is larger than the likeliest token's.
            rank = 0 if token == reading.tokens[-1] else _rank(token, reading.logits[:, -1])
            self.found.ranks[self.ranking.last].append(rank)
        self.output.append(token)
        if self.ranking.held >= HIDDEN_BUDGET:
            self.ranking.rank()

    def named(self, error: NumericalError) -> NumericalError:
        """Return an error with the example that it is of."""
        return NumericalError(f"example {self.name}: {error}") if self.name else error


class _Newest(StateTap):
    """Keeps the newest position of every layer that is ranked."""

    def __init__(self, kept: _Kept) -> None:
        super().__init__(kept.hidden, {})
        self._kept = kept

    def __call__(self, layer: int, hidden: Tensor) -> None:
        """Keep a copy of it, so that what a prompt gave can be freed."""
        if layer in self.layers:
            newest = hidden[:, -1].clone() if hidden.shape[1] > 1 else hidden[:, 0]
            self._kept.hidden[layer].append(newest)
            self._kept.ranking.held += newest.numel() * newest.element_size()


class _Watched(WholeModel):
    """A model, token by token, of which is kept what its layers give."""

    def __init__(self, session: Session, kept: _Kept) -> None:
        super().__init__(session, _Newest(kept))
        self._kept = kept

    def prompt(self) -> ReadOut:
        """Run the prompt; what its last token leads to."""
        self.newest = super().prompt()
        return self.newest

    def token(self, token: int) -> ReadOut:
        """Run one more token, which was chosen from the newest reading."""
        self._kept.take(token, self.newest.reading)
        self.newest = super().token(token)
        return self.newest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked(Request):
    """A request that keeps what the layers give."""

    kept: _Kept


class _Probe(Decoder):
    """Decoding token by token, whatever the tokens are."""

    def decode(self, session: Session, request: Request) -> Decoded:
        """Tokens of one prompt, and what layers gave for each."""
        assert isinstance(request, _Asked)
        kept = request.kept
        model = _Watched(session, kept)
        try:
            decoded = token_by_token(session, model, request)
        except NumericalError as error:
            kept.output[:] = session.tokens[len(request.prompt) :]  # the last of them, too
            kept.ranking.rank()  # what is wrong in a lower layer is wrong in all above it
            raise kept.named(error) from None
        kept.take(decoded.output_ids[-1], model.newest.reading)
        return decoded


class _Ranking:
    """Sequences in progress, and the ranks made of what layers gave for them."""

    def __init__(self, prober: Prober) -> None:
        self.prober = prober
        self.last = prober.model.n_layers
        self.below = [layer for layer in prober.layers if layer < self.last]
        self.ranks_last = self.last in prober.layers
        self.held = 0
        self._kept: list[_Kept] = []

    def begin(self, name: str) -> _Kept:
        """Take in a sequence."""
        self._kept.append(_Kept(self, name))
        return self._kept[-1]

    @torch.inference_mode()
    def rank(self) -> None:
        """Turn all hidden states kept so far into ranks, and let them go."""
        parts = [(kept, len(kept.output) - kept.ranked) for kept in self._kept]
        parts = [(kept, n) for kept, n in parts if n]
        if parts:
            tokens = torch.tensor([t for kept, n in parts for t in kept.output[-n:]])
            for layer in self.below:
                self._rank_layer(layer, parts, tokens)
        for kept, n in parts:
            kept.ranked += n
        self.held = 0

    def _rank_layer(self, layer: int, parts: Sequence[tuple[_Kept, int]], tokens: Tensor) -> None:
        prober = self.prober
        device = prober.model.cache_shape.devices[-1]
        hidden = torch.cat([state for kept, n in parts for state in kept.hidden[layer][:n]])
        rows = max(1, LOGITS_BUDGET // (prober.model.vocab_size * 4))
        found: dict[str, list[Tensor]] = {}
        for first in range(0, len(hidden), rows):
            normed = prober.model.adapter.norm(hidden[first : first + rows].to(device))
            for kind in ("own", "trained") if layer in prober.heads else ("own",):
                logits = prober.early_logits(layer, normed, kind == "trained")
                self._check(logits, layer, first, parts)
                chosen = tokens[first : first + rows].to(logits.device)
                found.setdefault(kind, []).append(ranks_of(logits, chosen))
                if prober.predictions and kind == "own":
                    found.setdefault("predictions", []).append(logits.argmax(-1))
        for kind, blocks in found.items():
            values = iter(torch.cat(blocks).tolist())
            for kept, n in parts:
                kept.found.of(kind).setdefault(layer, []).extend(islice(values, n))
        for kept, n in parts:
            del kept.hidden[layer][:n]

    def _check(
        self, logits: Tensor, layer: int, first: int, parts: Sequence[tuple[_Kept, int]]
    ) -> None:
        low, high = logits.aminmax()
        if bool(torch.isfinite(low) & torch.isfinite(high)):
            return
        row = int((~torch.isfinite(logits)).any(-1).nonzero()[0, 0]) + first
        for kept, n in parts:
            if row < n:
                raise kept.named(no_numbers(layer, kept.ranked + row + 1))
            row -= n

    def finish(
        self, group: Sequence[tuple[int, _Kept]], since: float
    ) -> Iterator[tuple[int, ProbedSequence]]:
        """Yield the results of sequences that have ended, each with its place."""
        self.rank()
        for _, kept in group:
            self._end(kept)
        elapsed_ms = 1e3 * (time.perf_counter() - since)
        for place, kept in group:
            kept.found.elapsed_ms = elapsed_ms / len(group)
            yield place, kept.found

    def _end(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        if self.ranks_last and self.prober.predictions:
            kept.found.predictions[self.last] = list(kept.output)


def _rank(token: int, logits: Tensor) -> int:
    return int(ranks_of(logits, torch.tensor([token], device=logits.device)))
