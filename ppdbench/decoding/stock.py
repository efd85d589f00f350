"""transformers' own model and `generate()` beside ours: the peers that a user would pick.

The same weights, sharing memory with ours wherever ours are not laid out anew, and the
library's own attention and cache. A streamer tells when each pass handed out its tokens, a
hook how many rows it had, so that prefill and steps are told apart as for our own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import Loaded, ModelSpec, laid_out, load_stock, token_ids
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.weights import is_plain
from ppdbench.machine.clock import Clock


@dataclass(frozen=True, slots=True)
class TimedPass:
    """The output of one pass: its tokens, seconds since the call, and its query rows."""

    tokens: tuple[int, ...]
    seconds: float
    rows: int


class StockModel:
    """A model of transformers as it is loaded, ready to `generate()`."""

    def __init__(self, model: Any) -> None:
        from transformers import GenerationConfig

        _, self.pad_id = token_ids(model)
        # Nothing of the model's own settings, which generate() would fall back on where a call
        # is silent: no sampling, no penalties, no ends but those asked for.
        model.generation_config = GenerationConfig(do_sample=False, pad_token_id=self.pad_id)
        self.model = model
        self.n_layers = int(model.config.num_hidden_layers)

    @classmethod
    def beside(cls, loaded: Loaded) -> StockModel:
        """The model that `loaded` runs, as transformers runs it."""
        stock = cls.load(loaded.spec)
        share(stock.model, loaded.staged.model)
        return stock

    @classmethod
    def load(cls, spec: ModelSpec) -> StockModel:
        """A model that our engine does not run."""
        return cls(laid_out(spec, load_stock(spec)[0]))

    def draft_constantly(self, length: int) -> None:
        """Drafts of this length, when this model drafts: never shorter, never longer."""
        settings = self.model.generation_config
        settings.num_assistant_tokens = length
        settings.num_assistant_tokens_schedule = "constant"
        settings.assistant_confidence_threshold = 0.0

    @torch.inference_mode()
    def generate(
        self, request: Request, watch: LogitWatch | None = None, **options: Any
    ) -> list[TimedPass]:
        """One call of `generate()`, pass by pass; the first pass is the prefill."""
        if watch is not None:
            options |= {"output_logits": True, "return_dict_in_generate": True}
        prompt, limits, clock = request.prompt, request.limits, request.clock
        ids = torch.tensor([prompt], device=self.model.device)
        clock.synchronize()
        with self._rows() as rows:
            start = clock.now()
            streamer = _Times(clock)
            made = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=limits.max_new_tokens,
                eos_token_id=sorted(limits.eos_ids) or None,
                stopping_criteria=_criteria(limits, len(prompt)),
                streamer=streamer,
                **options,
            )
        if watch is not None:
            for position, logits in enumerate(made.logits):
                watch.note(position, logits[0], self.n_layers)
        return [
            TimedPass(tokens, at - start, n)
            for (tokens, at), n in zip(streamer.handed, rows, strict=True)
        ]

    @torch.inference_mode()
    def generate_together(
        self, requests: Sequence[Request], watches: Sequence[LogitWatch | None], **options: Any
    ) -> list[TimedPass]:
        """One call of `generate()` over several prompts, the shorter ones padded on the left.

        All have the limits of the first. Each pass hands out a token of every prompt, those
        whose output has ended before included.
        """
        prompts, clock = [request.prompt for request in requests], requests[0].clock
        longest = max(map(len, prompts))
        rows = [[self.pad_id] * (longest - len(p)) + p for p in prompts]
        seen = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        device = self.model.device
        clock.synchronize()
        start = clock.now()
        streamer = _Times(clock)
        made = self.model.generate(
            torch.tensor(rows, device=device),
            attention_mask=torch.tensor(seen, device=device),
            max_new_tokens=requests[0].limits.max_new_tokens,
            eos_token_id=sorted(requests[0].limits.eos_ids) or None,
            stopping_criteria=_criteria(requests[0].limits, longest),
            streamer=streamer,
            output_logits=any(watches),
            return_dict_in_generate=True,
            **options,
        )
        for row, watch in enumerate(watches):
            if watch is not None:
                for position, logits in enumerate(made.logits):
                    watch.note(position, logits[row], self.n_layers)
        return [TimedPass(tokens, at - start, 1) for tokens, at in streamer.handed]

    @contextmanager
    def _rows(self) -> Iterator[list[int]]:
        """The query rows of every pass of the whole model."""
        seen: list[int] = []

        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # While it drafts with its first layers, the model says that it has no others.
            if self.model.config.num_hidden_layers == self.n_layers:
                seen.append(int(kwargs["input_ids"].shape[1]))

        hook = self.model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield seen
        finally:
            hook.remove()


class _Times:
    """A streamer that notes what came when; `generate()` hands it the prompt first."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.handed: list[tuple[tuple[int, ...], float]] = []
        self._prompt = True

    def put(self, value: Tensor) -> None:
        """New tokens; reading them has waited for the device."""
        if self._prompt:
            self._prompt = False
        else:
            self.handed.append((tuple(value.reshape(-1).tolist()), self.clock.now()))

    def end(self) -> None:
        """Do nothing more: all tokens were handed out."""


def _criteria(limits: Limits, n_prompt: int) -> list[Callable[..., Tensor]]:
    """Stop strings as our own loop reads them; ids and lengths `generate()` knows itself."""
    if not limits.stop:
        return []

    def stopped(ids: Tensor, scores: Any, **_: object) -> Tensor:
        ended = [limits.finish(output) is not None for output in ids[:, n_prompt:].tolist()]
        return torch.tensor(ended, device=ids.device)

    return [stopped]


def share(model: nn.Module, ours: nn.Module) -> None:
    """Let `model` read our tensors in place of equal ones of its own."""
    held = dict(ours.named_parameters())
    for name, parameter in model.named_parameters():
        mine = held.get(name)
        if mine is None or not (is_plain(mine) and is_plain(parameter)):
            continue
        if mine.shape == parameter.shape and mine.dtype == parameter.dtype:
            parameter.data = mine.data
