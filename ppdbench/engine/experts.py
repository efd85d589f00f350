"""Experts that passes touch: which weights a layer reads depends on its tokens.

transformers keeps all experts of a layer in one tensor of each kind and hands their module the
numbers that the router chose. Watching keeps those numbers, and nothing is counted before it is
asked for, so that it costs passes next to nothing. Families whose experts are not handed any
numbers (Llama 4, JetMoE) multiply by all of them, or tell nobody by which.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel

# The argument that holds each token's experts, [token, choice], and its place.
CHOICES, PLACE = ("top_k_index", "router_indices"), 1


class Routed(NamedTuple):
    """One call of a layer's experts: how large each is, and those that each token chose."""

    expert_bytes: int
    chosen: Tensor

    @property
    def rows(self) -> int:
        """The number of tokens."""
        return len(self.chosen)

    @property
    def touched(self) -> int:
        """The number of different experts."""
        return len(set(self.chosen.flatten().tolist()))


def expert_modules(model: StagedModel) -> list[nn.Module]:
    """The modules that hold all experts of a layer, in models that have them."""
    return experts_in(model.adapter.layers) if model.adapter.anatomy.experts else []


def experts_in(layers: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules in layers that hold all experts of one."""
    parts = (part for layer in layers for part in layer.modules())
    return [part for part in parts if _is_told(part) and _size(part)]


def _is_told(module: nn.Module) -> bool:
    taken = _taken(module)
    return len(taken) > PLACE and taken[PLACE] in CHOICES


def _taken(module: nn.Module) -> list[str]:
    """The names of what a module's forward takes."""
    return list(inspect.signature(inspect.unwrap(type(module).forward)).parameters)[1:]


def _size(module: nn.Module) -> tuple[int, int] | None:
    """The number of a module's experts, and the bytes of each."""
    held = list(module.parameters())
    if not held or len({len(weight) for weight in held}) != 1:
        return None
    total = sum(weight.numel() * weight.element_size() for weight in held)
    return len(held[0]), total // len(held[0])


def experts_of_a_layer(model: StagedModel) -> int | None:
    """The most experts that a layer holds, where they can be watched."""
    sizes = [size[0] for part in expert_modules(model) if (size := _size(part))]
    return max(sizes, default=None)


def expert_bytes(model: StagedModel, layer: int) -> int:
    """The bytes of all experts of a layer that can be watched."""
    parts = model.adapter.layers[layer].modules() if model.adapter.anatomy.experts else ()
    sizes = [size for part in parts if _is_told(part) and (size := _size(part))]
    return sum(n * each for n, each in sizes)


@contextmanager
def watched(model: StagedModel) -> Iterator[list[Routed]]:
    """Collect the calls of all layers' experts."""
    calls: list[Routed] = []
    hooks = [
        module.register_forward_pre_hook(partial(_note, calls, size[1]), with_kwargs=True)
        for module in expert_modules(model)
        if (size := _size(module))
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _note(
    calls: list[Routed],
    size: int,
    module: nn.Module,
    given: tuple[Any, ...],
    named: Mapping[str, Any],
) -> None:
    chosen = given[PLACE] if len(given) > PLACE else next(named[n] for n in CHOICES if n in named)
    calls.append(Routed(size, chosen))


class Handed(NamedTuple):
    """Arguments of a call of experts but for the states: what their router says of each."""

    given: tuple[Any, ...]
    named: dict[str, Any]


@contextmanager
def handed(experts: Iterable[nn.Module]) -> Iterator[list[Handed]]:
    """Collect what experts are handed beside states."""
    calls: list[Handed] = []

    def see(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        states = _taken(part)[0]
        calls.append(Handed(given[PLACE:], {k: v for k, v in named.items() if k != states}))

    hooks = [part.register_forward_pre_hook(see, with_kwargs=True) for part in experts]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def routed_as(experts: Iterable[nn.Module], calls: Iterable[Handed]) -> Iterator[None]:
    """Let experts choose as they chose in other calls, one for each, over the same tokens."""

    def choose(
        call: Handed, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (*given[:PLACE], *call.given), {**named, **call.named}

    hooks = [
        part.register_forward_pre_hook(partial(choose, call), with_kwargs=True)
        for part, call in zip(experts, calls, strict=True)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def bytes_touched(calls: Sequence[Routed]) -> int:
    """The bytes of the experts that these calls read."""
    return sum(call.expert_bytes * call.touched for call in calls)


def by_rows(calls: Sequence[Routed], most: int) -> dict[int, tuple[int, int]]:
    """Calls of so many rows, and experts that they touched in all; of no more than `most` rows."""
    found: dict[int, tuple[int, int]] = {}
    for call in calls:
        if call.rows <= most:
            n, touched = found.get(call.rows, (0, 0))
            found[call.rows] = n + 1, touched + call.touched
    return dict(sorted(found.items()))


def unread_by_one_token(model: StagedModel) -> int:
    """The bytes of the experts that a pass over one token leaves alone."""
    held = sum(expert_bytes(model, layer) for layer in range(model.n_layers))
    if not held:
        return 0
    session = Session(model, 1)
    session.reset([0])
    with watched(model) as calls:
        session.prefill()
    return held - bytes_touched(calls)
