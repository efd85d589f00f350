"""transformers' own decoding: `generate()` and its assisted modes, as methods of a run.

Not ours and not ours to tune; they are here to be measured against, with the same weights,
prompts, limits and threads. Passes are told apart by what `generate()` streams. In its
assisted modes the pass over the prompt verifies a draft, too: tokens that it hands out beyond
the first are counted with the step after it, which speaks for the peer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ppdbench.decoding.decoded import Decoded, StepRecord
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.files.resources import drafting_for
from ppdbench.methods.base import check_least, left_open, option, strategy
from ppdbench.methods.early_exit import exit_layer_of
from ppdbench.methods.exits import ChosenLength, chosen_drafts, chosen_length
from ppdbench.methods.prompt_lookup import drafted_on
from ppdbench.methods.speculative import draft_spec

if TYPE_CHECKING:
    from ppdbench.decoding.decoded import Decoded
    from ppdbench.decoding.limits import Limits
    from ppdbench.decoding.sampling import Target
    from ppdbench.decoding.stock import StockModel, TimedPass
    from ppdbench.engine.logit_watch import LogitWatch
    from ppdbench.engine.session import Session

PREFIX = "transformers:"


@strategy("transformers:greedy", peer_of="greedy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """transformers' generate(), as a user calls it."""

    def prepare(self, setup: Setup) -> GenerateDecoder:
        """The stock model beside ours."""
        return GenerateDecoder(setup.stock())


@strategy("transformers:greedy-static", peer_of="greedy")
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateStatic:
    """transformers' generate() over its static cache."""

    def prepare(self, setup: Setup) -> GenerateDecoder:
        """The stock model beside ours."""
        return GenerateDecoder(setup.stock(), {"cache_implementation": "static"})


@strategy("transformers:early-exit", peer_of="layerskip", alike=("exit_layer", "draft_length"))
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateEarlyExit:
    """transformers' generate() that drafts with its first layers: the peer of layerskip."""

    exit_layer: int = option(0, "layers that draft (0: as layerskip chooses them)")
    draft_length: int = option(0, "tokens drafted each time (0: as layerskip chooses)")

    def __post_init__(self) -> None:
        check_least(f"{PREFIX}early-exit", self, exit_layer=0, draft_length=0)

    def exit_in(self, n_layers: int) -> int:
        """Return the number of layers that draft in a model of `n_layers`."""
        return exit_layer_of(f"{PREFIX}early-exit", self.exit_layer, n_layers // 4, n_layers)

    def prepare(self, setup: Setup) -> GenerateDecoder:
        """The stock model drafts for itself."""
        stock, model = setup.stock(), setup.target.staged
        by_depth = self.exit_in(model.n_layers)
        found = chosen_drafts(setup, self.exit_layer, self.draft_length, by_depth)
        layers, length = found.exit.layers, found.count
        options = {"assistant_early_exit": layers}
        decoder = GenerateDecoder(stock, options, assistant=stock, draft_length=length)
        decoder.used, decoder.facts = found.drafting(model.n_layers), found.exit.facts()
        decoder.chosen = left_open(self, exit_layer=layers, draft_length=length)
        return decoder


@strategy(
    "transformers:prompt-lookup", peer_of="prompt-lookup", alike=("longest_suffix", "max_draft")
)
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateLookup:
    """transformers' generate() with its prompt lookup: the peer of prompt-lookup."""

    longest_suffix: int = option(3, "tokens of the longest suffix looked up")
    max_draft: int = option(0, "tokens proposed at most (0: as prompt-lookup chooses)")

    def __post_init__(self) -> None:
        check_least(f"{PREFIX}prompt-lookup", self, longest_suffix=1, max_draft=0)

    def prepare(self, setup: Setup) -> GenerateDecoder:
        """Return the decoder; there is nothing to load but the stock model."""
        length = self.max_draft or drafted_on(setup.target.staged.device.type)
        options = {
            "prompt_lookup_num_tokens": length,
            "max_matching_ngram_size": self.longest_suffix,
        }
        decoder = GenerateDecoder(setup.stock(), options)
        decoder.used = {"max_draft": str(length)}
        decoder.chosen = left_open(self, max_draft=length)
        return decoder


@strategy("transformers:assistant", peer_of="speculative", alike=("draft_model", "draft_length"))
@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateAssistant:
    """transformers' generate() with a second, smaller model: the peer of speculative."""

    draft_model: str = option(
        "", "hub id, folder or synthetic:SPEC of the drafting model", names="model"
    )
    draft_length: int = option(0, "tokens drafted each time (0: as speculative chooses)")

    def __post_init__(self) -> None:
        if not self.draft_model.strip():
            raise ConfigError(
                f"{PREFIX}assistant: no draft_model; give --set draft_model= a hub id, a local "
                "folder or synthetic:SPEC"
            )
        check_least(f"{PREFIX}assistant", self, draft_length=0)

    @classmethod
    def parts_of(cls, model: str) -> dict[str, str]:
        """Return the model that came with `model` to draft for it."""
        return drafting_for(model)

    def prepare(self, setup: Setup) -> GenerateDecoder:
        """The stock model and a smaller one."""
        try:
            assistant = setup.stock(self.draft_model)
        except PpdbenchError as error:
            told = str(error).replace("--model", "draft_model")
            raise ConfigError(f"{PREFIX}assistant: draft model: {told}") from error
        words, known = (m.model.config.vocab_size for m in (setup.stock(), assistant))
        if words != known:
            raise ConfigError(
                f"{PREFIX}assistant: draft_model={self.draft_model} has {known} words, the model "
                f"{words}; use a draft model of the same tokenizer"
            )
        length = self._length(setup)
        options = {"assistant_model": assistant.model}
        decoder = GenerateDecoder(
            setup.stock(), options, assistant=assistant, draft_length=length.count
        )
        decoder.used, decoder.facts = {"draft_length": str(length.count)}, length.facts()
        decoder.chosen = left_open(self, draft_length=length.count)
        return decoder

    def _length(self, setup: Setup) -> ChosenLength:
        """The draft length asked for, or the one that speculative would take."""
        if self.draft_length:
            return ChosenLength(self.draft_length)
        drafting = draft_spec(setup, self.draft_model)
        return chosen_length(setup, self.draft_model, lambda: setup.load(drafting).staged)


class GenerateDecoder(Decoder):
    """One way to call `generate()`; the session of the run stays unused."""

    foreign = True
    alone = "generate() decodes one prompt after another here"

    def __init__(
        self,
        stock: StockModel,
        options: Mapping[str, Any] | None = None,
        *,
        assistant: StockModel | None = None,
        draft_length: int = 0,
    ) -> None:
        self.stock, self.options = stock, dict(options or {})
        self.assistant, self.draft_length = assistant, draft_length

    def decode(self, session: Session, request: Request) -> Decoded:
        """One call of `generate()`."""
        import torch

        if self.assistant is not None:
            self.assistant.draft_constantly(self.draft_length)
        if request.chooser.target.greedy:
            handed = self.stock.generate(request, session.watch, **self.options)
            return _decoded(handed, request.limits)
        options = self.options | _drawing(request.chooser.target)
        # It draws from the generator of the whole process, which is given back as it was.
        with torch.random.fork_rng():
            torch.manual_seed(int(torch.randint(1 << 62, (), generator=request.chooser.generator)))
            handed = self.stock.generate(request, session.watch, **options)
        return _decoded(handed, request.limits)

    def decode_together(
        self, requests: Sequence[Request], watches: Sequence[LogitWatch | None]
    ) -> list[Decoded]:
        """One call of `generate()` over several prompts of one task, padded on the left."""
        target = requests[0].chooser.target
        if not target.greedy:
            raise ConfigError("generate() in a batch draws nothing here; leave --target out")
        handed = self.stock.generate_together(requests, watches, **self.options)
        rows = (
            [replace(part, tokens=(part.tokens[row],)) for part in handed]
            for row in range(len(requests))
        )
        return [_decoded(row, request.limits) for row, request in zip(rows, requests, strict=True)]


def _decoded(handed: Sequence[TimedPass], limits: Limits) -> Decoded:
    """Tokens and times in our own terms, ended where greedy decoding would have ended."""
    from ppdbench.decoding.loop import commit

    first, steps = handed[0], handed[1:]
    output, taken, finish = list[int](), list[int](), None
    for part in handed:
        count, finish = commit(output, part.tokens, limits)
        taken.append(count)
        if finish is not None:
            break
    else:
        raise PpdbenchError(f"generate() ended by itself after {len(output)} tokens")
    extra = taken.pop(0) - 1
    steps = steps[: len(taken)]
    if taken:
        taken[0] += extra
    ends = [first.seconds, *(step.seconds for step in steps)]
    times = (1e3 * (b - a) for a, b in pairwise(ends))
    return Decoded(
        output_ids=tuple(output),
        prefill_ms=1e3 * first.seconds,
        steps=tuple(
            StepRecord(ms, rows=step.rows, proposed=step.rows - 1, accepted=count - 1)
            for ms, step, count in zip(times, steps, taken, strict=True)
        ),
        finish=finish,
    )


def _drawing(target: Target) -> dict[str, Any]:
    """The options of `generate()` that draw as a target does."""
    if target.greedy:
        return {}
    options: dict[str, Any] = {"do_sample": True, "temperature": target.temperature, "top_k": 0}
    options |= {target.kind.replace("-", "_"): getattr(target, target.kind.replace("-", "_"))}
    if target.by_text:
        options["repetition_penalty"] = target.repetition_penalty
    if target.logit_bias:
        options["sequence_bias"] = [[[token], bias] for token, bias in target.logit_bias]
    return options
