"""A model's reading, held against transformers' own forward pass when it is loaded.

Modules do not say all that a model computes: a norm may be called twice, a table may be wanted
for some layers only. So the stock model runs over a few tokens before anything of it is
exchanged, and our passes over the same tokens must give its hidden states after every layer and
its logits. Where layers differ in nothing but weights, and many of those would have to be read,
the first layers stand for all. Methods are held against the stock model later and apart, in the
shapes that they use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import read, text_config
from ppdbench.engine.experts import Handed, experts_in, handed, routed_as
from ppdbench.engine.masks import Step
from ppdbench.engine.nearness import gap
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import Tap
from ppdbench.engine.weights import count, parts
from ppdbench.errors import UnsupportedModel
from ppdbench.machine.pages import Files

# Tokens that are compared; where windows are narrow, as many as reach beyond them.
FEWEST, MOST = 6, 64
# Of them, how many stand behind rows that were taken back, where layers have a memory.
TAKEN_BACK = 2
# Of layers that are alike: so many weights in whole layers, and two layers at least. That keeps the
# check to a twentieth of the time that loading takes: `python -m benchmarks.load_check`.
ALIKE_WEIGHTS, ENOUGH = 128_000_000, 2
# Of the length of a state. Rounding of half precision adds up from layer to layer: there the middle
# one of all tokens counts, not the worst. It may send a token to other experts, too, and with it
# all that look back at it: there our pass goes to those that the stock model went to.
CLOSE = {torch.float32: 1e-4, torch.float16: 2**-5, torch.bfloat16: 2**-4}


@dataclass(frozen=True, slots=True)
class StockPass:
    """A short pass of the stock model: its tokens, states after each layer, and logits."""

    ids: Tensor
    states: list[Tensor]
    logits: Tensor  # after the last of these layers, of the last token
    handed: list[Handed]
    """Arguments of experts, layer by layer."""

    @property
    def finite(self) -> bool:
        """False if the stock model itself gives NaN or infinities."""
        return all(bool(made.isfinite().all()) for made in (*self.states, self.logits))


@torch.inference_mode()
def stock_pass(model: Any) -> StockPass:
    """A pass of a model as transformers runs it, before it is taken over."""
    family, anatomy = read(model)
    body, name = model.get_submodule(str(family.body)), str(family.layers)
    layers = getattr(body, name)
    ids = _tokens(model).to(model.get_input_embeddings().weight.device)
    setattr(body, name, layers[: _enough(layers)] if anatomy.alike else layers)
    try:
        run = getattr(body, name)
        with _states(run) as states, handed(experts_in(run)) as calls:
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[:, -1:]
    finally:
        setattr(body, name, layers)
    return StockPass(ids, states, logits, calls)


def _enough(layers: nn.ModuleList) -> int:
    """The number of layers that stand for all where these are alike."""
    weights = sum(map(count, layers[0].parameters()))
    return max(ENOUGH, ALIKE_WEIGHTS // max(1, weights))


def _tokens(model: Any) -> Tensor:
    """A few different tokens, more than the narrowest window holds if it is that narrow."""
    config = text_config(model)
    window = getattr(config, "sliding_window", None) or 0
    n = max(FEWEST, window + 2 if window < MOST else 0)
    vocabulary = int(config.vocab_size)
    return torch.arange(1, n + 1)[None] * 7919 % vocabulary


@contextmanager
def _states(layers: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Collect what the layers give while a pass runs."""
    states: list[Tensor] = []

    def see(_: nn.Module, __: Any, out: Any) -> None:
        states.append(out[0] if isinstance(out, tuple) else out)

    hooks = [layer.register_forward_hook(see) for layer in layers]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def hold(staged: StagedModel, stock: StockPass, name: str) -> None:
    """Refuse a model whose layers or logits come out otherwise than in the stock model.

    Broken weights say nothing about how they are read: runs refuse them, and name the layer.
    """
    if not stock.finite:
        return
    n = stock.ids.shape[1]
    cache, steps = staged.new_cache(n)
    ours: list[Tensor] = []
    try:
        step = steps.prefill(n)
        embedded, depth = staged.embed(stock.ids, step), len(stock.states)
        with _routed(staged, stock):
            hidden = staged.run(embedded, 0, depth, step, cache, tap=_into(ours, staged))
        logits = staged.logits(hidden[:, -1:])
        if staged.remembers:
            again = _again(staged, stock.ids, depth)
    except (RuntimeError, TypeError, AttributeError, KeyError, IndexError) as error:
        why = " ".join(str(error).split())[:200]
        raise _refusal(staged, name, f"its layers cannot be called one by one ({why})") from error
    for layer, (mine, true) in enumerate(zip(ours, stock.states, strict=True), start=1):
        _hold(staged, name, f"after layer {layer} hidden states", mine, true)
    _hold(staged, name, "logits", logits, stock.logits)
    if staged.remembers:
        for layer, (mine, true) in enumerate(zip(again, stock.states, strict=True), start=1):
            what = f"behind rows that were taken back, after layer {layer} hidden states"
            _hold(staged, name, what, mine, true)
    # Embedding the tokens has read parts of the weights' files again.
    Files.behind(t for p in staged.model.parameters() for t in parts(p)).release()


def _routed(staged: StagedModel, stock: StockPass) -> AbstractContextManager[None]:
    """Experts that choose as those of the stock pass did, where rounding might choose others."""
    experts = experts_in(staged.adapter.layers[: len(stock.states)])
    if staged.dtype == torch.float32 or len(experts) != len(stock.handed):
        return nullcontext()
    return routed_as(experts, stock.handed)


def _into(states: list[Tensor], staged: StagedModel) -> Tap:
    """Collect what layers give, as they give it."""
    return lambda _, hidden: states.append(staged.adapter.given(hidden))


def _again(staged: StagedModel, ids: Tensor, depth: int) -> list[Tensor]:
    """States of the last tokens by layers run, behind a pass of which only a part was kept.

    A token is read together with two that do not follow, which are taken back.
    """
    n = ids.shape[1]
    first = n - 1 - TAKEN_BACK
    cache, steps = staged.new_cache(n)
    ours: list[Tensor] = []

    def run(step: Step, tokens: Tensor) -> None:
        ours.clear()
        embedded = staged.embed(tokens, step)
        staged.run(embedded, 0, depth, step, cache, tap=_into(ours, staged))

    wrong = ids.flip(1)[:, :TAKEN_BACK]
    run(steps.prefill(first), ids[:, :first])
    run(steps.chain(first, 1 + TAKEN_BACK), torch.cat([ids[:, first : first + 1], wrong], dim=1))
    cache.keep(first, [0], range(depth))
    run(steps.chain(first + 1, TAKEN_BACK), ids[:, first + 1 :])
    return ours


def _hold(staged: StagedModel, name: str, what: str, mine: Tensor, true: Tensor) -> None:
    """Refuse rows [..., row, hidden] that are too far off; stock models may give the last alone."""
    n = min(mine.shape[-2], true.shape[-2])
    own, stock = (each[..., -n:, :].flatten(0, -2).float() for each in (mine, true))
    rows = gap(own, stock.to(own.device))
    off = float(rows.max() if staged.dtype == torch.float32 else rows.median())
    close = CLOSE[staged.dtype]
    if not off <= close:
        raise _refusal(
            staged,
            name,
            f"{what} lie {off:.2g} of their length from what transformers computes "
            f"({close:.2g} may be rounding)",
        )


def _refusal(staged: StagedModel, name: str, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"model {name} does not run: read as family {staged.adapter.family.name}, {why}; use "
        "another model, or --no-family-check to go on all the same"
    )
