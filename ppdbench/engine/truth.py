"""The stock model as a judge: what transformers itself computes over the same tokens.

Loaded anew from where the model came from, so that nothing of ours is in it: not our attention,
our cache, our masks or our packed weights. It answers twice: what the logits are in a wider type
than the run's, and how far its own passes of one row and of many rows, in the run's type, lie
from that. The second is what rounding may do to any engine on this machine.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import text_config
from ppdbench.engine.loading import ModelSpec, laid_out, load_stock, token_ids
from ppdbench.engine.memory import CACHES, forgets
from ppdbench.engine.nearness import distance, gap
from ppdbench.engine.packing import read_of_parts
from ppdbench.engine.weights import is_plain
from ppdbench.engine.wider import WIDER, one_by_one
from ppdbench.errors import ConfigError, NumericalError

# The positions before the one in question over which the stock model's own rounding is measured.
REACH = 4


@dataclass(frozen=True, slots=True)
class StockLogits:
    """The stock model's logits at some positions of a sequence.

    `logits` [position, vocab] are in the wider type. `noise` [position] is how far the stock
    model's own passes in the run's type lie from them, as `distance` measures it.
    """

    logits: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True)
class TokenLine:
    """Tokens, and behind them rows that are no tokens: each sees all that stand before it.

    `given` [row, hidden] joined after `layers`, none before the row in front of it; `states`
    [row, hidden] is what came of the rows that were there, by layers run. The first row stands
    `ahead` places behind the last token, the others follow it.
    """

    ids: Sequence[int]
    layers: Sequence[int] = ()
    given: Sequence[Tensor] = ()
    states: Mapping[int, Tensor] = field(default_factory=dict)
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class StockStates:
    """The stock model's hidden states for the last rows of a line, by layers run.

    `true` [row, hidden] are in the wider type; `noise` [row] is how far the stock model's own pass
    in the run's type lies from them, as `gap` measures it.
    """

    true: Mapping[int, Tensor]
    noise: Mapping[int, Tensor]


class StockTruth:
    """A model as transformers loads it, for questions about single positions."""

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.eos_ids, _ = token_ids(model)
        self.dtype: torch.dtype = model.get_output_embeddings().weight.dtype
        self.wider = WIDER.get(self.dtype, self.dtype) if _can_be_widened(model) else self.dtype
        self.n_layers = int(model.config.num_hidden_layers)

    @classmethod
    def load(cls, spec: ModelSpec) -> StockTruth:
        """The model that `spec` names, as any user would load it.

        Where there is no room for it beside ours, what does not fit is read from its files.
        """
        try:
            return cls(laid_out(spec, load_stock(spec)[0]))
        except ConfigError as error:
            spread = replace(spec, device_map="auto") if can_be_spread(spec) else None
            if spread is None:
                raise ConfigError(f"beside ours the stock model is to judge it: {error}") from error
            return cls(load_stock(spread)[0])

    @torch.inference_mode()
    def measure(
        self, ids: Sequence[int], first: int, *, reach: int = REACH, depth: int | None = None
    ) -> StockLogits:
        """Logits from token `first` on, and how far this model's own passes lie from them.

        Passes in the run's type: one over everything, and over the last `reach` tokens one of
        as many rows and some of one row. `depth` ends the model after that many layers.
        """
        with self._cut(depth):
            return self._measure(ids, first, reach)

    def _measure(self, ids: Sequence[int], first: int, reach: int) -> StockLogits:
        cache = self._cache()
        with widened(self.model, self.wider):
            truth = self._run(ids, keep=len(ids) - first)
        noise = distance(self._run(ids, keep=len(ids) - first, cache=cache), truth)
        reach = min(reach, len(ids) - max(1, first))
        if reach > 0:
            last = ids[-reach:]
            for rows in {1} if _forgets(self.model) else {reach, 1}:
                cache = self._shorter(cache, ids[:-reach])
                start = len(ids) - reach
                again = torch.cat(
                    [
                        self._run(last[at : at + rows], rows, cache, start + at)
                        for at in range(0, reach, rows)
                    ]
                )
                noise[-reach:] = torch.maximum(noise[-reach:], distance(again, truth[-reach:]))
        return StockLogits(_known(truth), _known(noise))

    @torch.inference_mode()
    def states(self, line: TokenLine, first: int) -> StockStates:
        """Return every layer's states for the rows of a line from `first` on."""
        with widened(self.model, self.wider):
            true = self._run_line(line, first)
        own = self._run_line(line, first)
        return StockStates(true, {layer: gap(rows, true[layer]) for layer, rows in own.items()})

    def _run_line(self, line: TokenLine, first: int) -> dict[int, Tensor]:
        """One pass over a line; what is no token takes its row from the layer that it joins at."""
        length, seen = len(line.ids), dict[int, Tensor]()
        joining = length + line.ahead - 1

        def put(hidden: Tensor, layer: int) -> Tensor:
            rows = [row for row, joins in enumerate(line.layers) if joins == layer]
            if rows:
                hidden = hidden.clone()
                for row in rows:
                    hidden[0, joining + row] = line.given[row].to(hidden)
            return hidden

        def see(out: Any, layer: int) -> None:
            hidden = out if isinstance(out, Tensor) else out[0]
            seen[layer] = torch.cat([hidden[0, first:length], hidden[0, joining:]]).cpu()

        owner, name = _layers(self.model, self.n_layers)
        hooks = [
            hook
            for i, layer in enumerate(getattr(owner, name))
            for hook in (
                layer.register_forward_pre_hook(
                    lambda _, given, i=i: (put(given[0], i), *given[1:])
                ),
                layer.register_forward_hook(lambda _, __, out, i=i: see(out, i + 1)),
            )
        ]
        try:
            self._run_placed(line)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    def _run_placed(self, line: TokenLine) -> None:
        """A pass whose rows stand where the line says; rows that join later are any token."""
        device, length, hole = self.model.device, len(line.ids), line.ahead - 1
        fill = (line.ids[-1],) * (hole + len(line.layers))
        tokens = torch.tensor([[*line.ids, *fill]], device=device)
        given = {}
        if hole:
            # Nobody sees what stands in the hole.
            given["attention_mask"] = torch.ones_like(tokens)
            given["attention_mask"][:, length : length + hole] = 0
            given["position_ids"] = torch.arange(tokens.shape[1], device=device)[None]
        self.model(tokens, use_cache=False, logits_to_keep=1, **given)

    def _cache(self) -> Any:
        """A cache of transformers that forgets nothing, so that it can be cut anywhere.

        Unless layers have a memory of their own, which cannot be cut.
        """
        from transformers import DynamicCache

        own = DynamicCache(config=text_config(self.model))
        return own if _remembers(own) else DynamicCache()

    def _shorter(self, cache: Any, ids: Sequence[int]) -> Any:
        """A cache of these tokens alone, of one that holds more."""
        if not _remembers(cache):
            cache.crop(len(ids) - cache.get_seq_length())
            return cache
        fresh = self._cache()
        self._run(ids, keep=1, cache=fresh)
        return fresh

    def _run(self, ids: Sequence[int], keep: int, cache: Any = None, start: int = 0) -> Tensor:
        """Logits of the last `keep` rows of one pass; `cache` holds `start` rows before them."""
        tensor = torch.tensor([list(ids)], device=self.model.device)
        given: dict[str, Any] = {}
        if cache is not None:
            taken = inspect.signature(self.model.forward).parameters
            given[next(name for name in CACHES if name in taken)] = cache
            if _remembers(cache) and "position_ids" in taken:  # not all count rows themselves
                given["position_ids"] = torch.arange(len(ids), device=tensor.device)[None] + start
        found: Tensor = self.model(
            tensor, use_cache=cache is not None, logits_to_keep=keep, **given
        ).logits[0]
        return found

    @contextmanager
    def _cut(self, depth: int | None) -> Iterator[None]:
        """The model with its first `depth` layers only."""
        if depth is None or depth == self.n_layers:
            yield
            return
        owner, name = _layers(self.model, self.n_layers)
        layers = getattr(owner, name)
        setattr(owner, name, layers[:depth])
        try:
            yield
        finally:
            setattr(owner, name, layers)


def _known(found: Tensor) -> Tensor:
    """Refuse what is no number: whatever is held against it would not be found too far off."""
    if bool(found.isnan().any()):
        raise NumericalError(
            "the stock model's own logits are no numbers (NaN), so that nothing can be held "
            "against them; its weights may be damaged, or too large for this --dtype"
        )
    return found


def _remembers(cache: Any) -> bool:
    """True if some of its layers hold states beside keys and values, or instead of them."""
    return any(hasattr(layer, "conv_states") for layer in cache.layers)


def _forgets(model: nn.Module) -> bool:
    """True if its passes of several rows leave out what was before them, so that none has any."""
    return any(forgets(type(part).forward) for part in model.modules())


def _layers(model: nn.Module, n_layers: int) -> tuple[nn.Module, str]:
    """Find the module that holds the layers, and its name."""
    lists = (
        (path.count("."), path)
        for path, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == n_layers
    )
    _, path = min(lists)
    above, _, name = path.rpartition(".")
    return model.get_submodule(above), name


def can_be_spread(spec: ModelSpec) -> bool:
    """True if a part of the model may stay in its files."""
    in_files = not (spec.is_synthetic or spec.is_gguf or spec.adapter)
    return spec.device_map is None and spec.quantize is None and in_files


@contextmanager
def widened(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let `model` compute in a wider type; one module at a time holds its weights in it.

    Those that a module reads of a part stay wide until its own call ends, however often it calls
    the part.
    """
    # Of each wide part the module whose call widened it, and what it held before.
    narrow: dict[nn.Module, tuple[nn.Module, dict[str, Tensor]]] = {}

    def widen(module: nn.Module, _: Any) -> None:
        for part in _read_by(module):
            held = {
                name: tensor
                for name, tensor in (*part._parameters.items(), *part._buffers.items())
                if tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype
            }
            if held and part not in narrow:
                narrow[part] = module, held
                for name, tensor in held.items():
                    wide = tensor.to(dtype)
                    _put(part, name, wide if name in part._buffers else nn.Parameter(wide, False))

    def restore(module: nn.Module, *_: Any) -> None:
        for part in _read_by(module):
            if part in narrow and narrow[part][0] is module:
                for name, tensor in narrow.pop(part)[1].items():
                    _put(part, name, tensor)

    hooks = [
        handle
        for module in model.modules()
        if module._parameters or module._buffers or len(_read_by(module)) > 1
        for handle in (
            module.register_forward_pre_hook(widen),
            module.register_forward_hook(restore, always_call=True),
        )
    ]
    grouped = one_by_one(model, dtype)
    try:
        with _plain_experts(model):
            yield
    finally:
        for module, config in grouped.items():
            module.config = config
        for hook in hooks:
            hook.remove()
        for by, _ in list(narrow.values()):
            restore(by)


@contextmanager
def _plain_experts(model: Any) -> Iterator[None]:
    """Run experts one after another: grouped products know no wider types."""
    chooses = getattr(model, "_can_set_experts_implementation", None)
    if chooses is None or not chooses():
        yield
        return
    before = model.get_experts_implementation()
    model.set_experts_implementation("eager")
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def _read_by(module: nn.Module) -> list[nn.Module]:
    """A module and those of its parts whose weights its own forward reads."""
    read = read_of_parts(type(module).forward)
    parts = module.named_children()
    return [module, *(p for name, p in parts if any((name, own) in read for own in p._parameters))]


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    if name in module._buffers:
        module._buffers[name] = tensor
    else:
        module._parameters[name] = tensor  # type: ignore[assignment]


def _can_be_widened(model: nn.Module) -> bool:
    """True if all weights are plain numbers in memory; quantised ones compute as they are."""
    return all(is_plain(p) and not p.is_meta for p in model.parameters())
