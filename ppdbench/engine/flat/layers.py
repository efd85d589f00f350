"""Decoder layers as operations of one program, whichever family they are of.

A layer is read from its modules: their names say what they are, and what a norm, an activation or
a rotation computes is found out by asking it. Whatever is not known is refused with its name, and
what was read wrongly differs from the layer itself, which is looked for before anything is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from ppdbench.engine.flat.products import FlatProduct
from ppdbench.engine.flat.understood import (
    NotUnderstoodError,
    check_layer,
    check_model,
    check_rotation,
)

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.flat.ops import Buffer, Program
    from ppdbench.engine.flat.weights import FlatLinear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": fn.silu,
    "gelu_tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "gelu": fn.gelu,
    "relu": fn.relu,
    "relu2": lambda x: fn.relu(x).square(),
}
PROBES = 4  # rows that a norm is asked for
# Parts of blocks by their usual names.
QUERIES = ("q_proj", "k_proj", "v_proj", "query_key_value", "qkv_proj", "c_attn")
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj")
HEAD_NORMS = ("q_norm", "k_norm")
GATES = ("gate_proj", "gate_up_proj")
FIRSTS = ("up_proj", "dense_h_to_4h", "c_fc", "fc1")
LASTS = ("down_proj", "dense_4h_to_h", "c_proj", "fc2")

# Writes a block whose numbers go to the first buffer, with those of the second added.
Block = Callable[["Buffer", "Buffer | None"], None]


@dataclass(frozen=True, slots=True)
class Norms:
    """Names of the norms around a layer's blocks; None where there is none."""

    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None

    @property
    def names(self) -> set[str]:
        """All that are there."""
        found = self.before_attention, self.after_attention, self.before_mlp, self.after_mlp
        return {name for name in found if name is not None}


LAYOUTS = (
    Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm"),
    Norms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm"),
    Norms(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    Norms(before_attention="ln_1", before_mlp="ln_2"),
    Norms(before_attention="self_attn_layer_norm", before_mlp="final_layer_norm"),
)


class LayerWriter:
    """Writes decoder layers, and what reads out after them, as operations of a program."""

    def __init__(self, adapter: Adapter, program: Program) -> None:
        check_model(adapter)
        self.adapter, self.program = adapter, program
        shape = adapter.cache_shape()
        self.heads = shape.n_heads * adapter.heads_per_kv
        self.kv_heads, self.head_dim = shape.n_heads, shape.head_dim
        self.kinds = kinds_of(adapter)
        self._room: dict[tuple[str, int], Buffer] = {}

    # Layers

    def layer(self, index: int, *, attention: bool = True, mlp: bool = True) -> None:
        """Write one layer, or what is left of it without one of its blocks."""
        layer, blocks = self.adapter.layers[index], self.adapter.blocks
        check_layer(layer)
        norms = _norms_of(layer)
        _check_parts(layer, {*norms.names, blocks.attention, *blocks.mlp})
        if self.adapter.family.normed_stream(self.adapter.config):
            if not (attention and mlp):
                raise NotUnderstoodError("its norms stand in the residual stream")
            norms = Norms(after_attention=norms.before_attention, after_mlp=norms.before_mlp)
            self._normed_stream(index, layer, norms)
        elif getattr(layer, "use_parallel_residual", False) and attention and mlp:
            self._side_by_side(index, layer, norms)
        else:
            if attention:
                source = self._normed(layer, norms.before_attention)
                self._joined(layer, norms.after_attention, partial(self._attention, index, source))
            if mlp:
                source = self._normed(layer, norms.before_mlp)
                self._joined(layer, norms.after_mlp, partial(self._mlp, layer, source))

    def _normed(self, layer: nn.Module, norm: str | None) -> Buffer:
        """The stream, normed if there is a norm."""
        hidden = self.program.hidden
        if norm is None:
            return hidden
        normed = self._buffer("normed", hidden.width)
        self._norm(layer.get_submodule(norm), hidden, normed)
        return normed

    def _joined(self, layer: nn.Module, norm: str | None, block: Block) -> None:
        """Add what a block gives to the stream, normed if a norm stands behind it."""
        hidden = self.program.hidden
        if norm is None:
            block(hidden, hidden)
            return
        alone = self._buffer("alone", hidden.width)
        block(alone, None)
        self._norm(layer.get_submodule(norm), alone, alone)
        self.program.add(hidden, alone, hidden)

    def _normed_stream(self, index: int, layer: nn.Module, norms: Norms) -> None:
        """Norms that stand in the stream, behind each block."""
        hidden = self.program.hidden
        self._attention(index, hidden, hidden, hidden)
        self._norm(layer.get_submodule(_name(norms.after_attention)), hidden, hidden)
        self._mlp(layer, hidden, hidden, hidden)
        self._norm(layer.get_submodule(_name(norms.after_mlp)), hidden, hidden)

    def _side_by_side(self, index: int, layer: nn.Module, norms: Norms) -> None:
        """Both blocks over what came in; their sum is added to it."""
        hidden = self.program.hidden
        both = self._buffer("alone", hidden.width)
        self._attention(index, self._normed(layer, norms.before_attention), both, None)
        self._mlp(layer, self._normed(layer, norms.before_mlp), both, both)
        self.program.add(both, hidden, hidden)

    # Blocks: what they give goes to `target`, with `add` added if there is one

    def _attention(self, index: int, source: Buffer, target: Buffer, add: Buffer | None) -> None:
        program, heads = self.program, self.heads
        block = self.adapter.layers[index].get_submodule(self.adapter.blocks.attention)
        _check_parts(block, {*QUERIES, *OUTPUTS, *HEAD_NORMS})
        queries, keys, values = self._queries(block, source)
        for name, states in zip(HEAD_NORMS, (queries, keys), strict=True):
            if (norm := getattr(block, name, None)) is not None:
                self._norm(norm, states, states)
        if self.adapter.family.positions is None:
            width = self.adapter.rotary_width()
            check_rotation(block, self.head_dim, width)
            kind = self.kinds.index(self.adapter.rope_kind(index))
            program.rotate(queries, heads, self.head_dim, width, kind)
            program.rotate(keys, self.kv_heads, self.head_dim, width, kind)
        program.store(keys, values, index, self.kv_heads, self.head_dim)
        seen = self._buffer("attended", heads * self.head_dim)
        program.attend(
            *(queries, seen, index, heads, self.kv_heads, self.head_dim),
            _scaling(block),
            softcap=getattr(block, "attn_logit_softcapping", None),
            window=self.adapter.windows[index],
        )
        product = _product(block, *OUTPUTS)
        program.linear(seen, (target, product), add=add)

    def _queries(self, block: nn.Module, source: Buffer) -> tuple[Buffer, Buffer, Buffer]:
        """Queries, keys and values, however many products they come from."""
        own, others = self.heads * self.head_dim, self.kv_heads * self.head_dim
        room = self._buffer("queries", own + 2 * others)
        parts = room.part(0, own), room.part(own, others), room.part(own + others, others)
        if hasattr(block, "q_proj"):
            products = [_product(block, name) for name in ("q_proj", "k_proj", "v_proj")]
            self.program.linear(source, *zip(parts, products, strict=True))
        elif hasattr(block, "query_key_value"):  # head by head, each with all three
            mixed = self._buffer("mixed", room.width)
            self.program.linear(source, (mixed, _product(block, "query_key_value")))
            order = torch.arange(room.width).view(self.heads, 3, self.head_dim).transpose(0, 1)
            self.program.pick(mixed, room, order.reshape(-1).to(torch.int32))
        else:
            self.program.linear(source, (room, _product(block, "qkv_proj", "c_attn")))
        return parts

    def _mlp(self, layer: nn.Module, source: Buffer, target: Buffer, add: Buffer | None) -> None:
        names = self.adapter.blocks.mlp
        block = layer if len(names) > 1 else layer.get_submodule(names[0])
        if block is not layer:
            _check_parts(block, {*GATES, *FIRSTS, *LASTS})
        last = _product(block, *LASTS)
        inner = self._buffer("inner", last.in_features)
        act = _activation(_part(block, "act_fn", "activation_fn", "act"))
        if hasattr(block, "gate_proj"):
            gate, up = _product(block, "gate_proj"), _product(block, "up_proj")
            self.program.gated(source, inner, gate, up, act)
        elif hasattr(block, "gate_up_proj"):
            both = self._buffer("gated", 2 * inner.width)
            self.program.linear(source, (both, _product(block, "gate_up_proj")))
            gates, ups = both.part(0, inner.width), both.part(inner.width, inner.width)
            self.program.act(gates, inner, act, times=ups)
        else:
            first = _product(block, *FIRSTS)
            self.program.linear(source, (inner, first))
            self.program.act(inner, inner, act)
        self.program.linear(inner, (target, last), add=add)

    def _norm(self, norm: nn.Module, source: Buffer, target: Buffer) -> None:
        """Norm the rows of a buffer, or every head of them where the norm is as wide as one."""
        if not isinstance(weight := getattr(norm, "weight", None), nn.Parameter):
            raise NotUnderstoodError(f"the norm {type(norm).__name__} has no weights")
        weight = weight.data
        if type(norm) is nn.LayerNorm:  # others of that kind may add one to their weights
            bias = None if norm.bias is None else norm.bias.data
            self.program.layer_norm(source, target, weight, bias, norm.eps)
            return
        eps = getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None)
        if eps is None:
            raise NotUnderstoodError(f"{type(norm).__name__} has no epsilon")
        plus_one, round_first = _rms_kind(norm, weight, float(eps))
        self.program.rms_norm(
            *(source, target, weight, float(eps)),
            plus_one=plus_one,
            round_first=round_first,
            each=None if len(weight) == source.width else len(weight),
        )

    # What reads out

    def readout(self) -> Buffer:
        """Write the final norm and the head; the buffer of logits."""
        adapter, program = self.adapter, self.program
        if adapter.scaled_readout:
            raise NotUnderstoodError("factors stand before its head or behind it")
        states = program.hidden
        if adapter.final_norm is not None:
            normed = self._buffer("normed", states.width)
            self._norm(adapter.final_norm, states, normed)
            states = normed
        name = adapter.family.project_out
        if name is not None and (module := getattr(adapter.body, name)) is not None:
            projected = self._buffer("projected", adapter.head_width)
            program.linear(states, (projected, flat_of(module, name)))
            states = projected
        head = flat_of(adapter.head, "head")
        logits = self._buffer("logits", head.out_features)
        program.linear(states, (logits, head))
        if adapter.softcap is not None:
            program.cap(logits, logits, adapter.softcap)
        return logits

    def _buffer(self, name: str, width: int) -> Buffer:
        """Room for some numbers per row; layers that need the same share it."""
        if (name, width) not in self._room:
            self._room[name, width] = self.program.buffer(width)
        return self._room[name, width]


def kinds_of(adapter: Adapter) -> list[str | None]:
    """The rotary tables of a model's layers, in the order that programs number them."""
    return list(dict.fromkeys(map(adapter.rope_kind, range(len(adapter.layers)))))


def _norms_of(layer: nn.Module) -> Norms:
    """Find which norms a layer has, and by that where they stand."""
    there = {name for name, part in layer.named_children() if _is_norm(part)}
    for norms in LAYOUTS:
        if norms.names == there:
            return norms
    raise NotUnderstoodError(f"it has the norms {', '.join(sorted(there)) or 'none'}")


def _is_norm(part: nn.Module) -> bool:
    """True for a module of one vector of weights, perhaps with a bias."""
    weights = dict(part.named_parameters())
    return weights.keys() in ({"weight"}, {"weight", "bias"}) and weights["weight"].dim() == 1


def _check_parts(whole: nn.Module, known: set[str]) -> None:
    """Refuse a layer or a block with weights in parts that nobody would run."""
    for name, part in whole.named_children():
        if name not in known and any(True for _ in part.parameters()):
            raise NotUnderstoodError(f"its part {name} is not known")
    if any(True for _ in whole.parameters(recurse=False)):
        raise NotUnderstoodError(f"{type(whole).__name__} has weights beside its parts")


def _name(name: str | None) -> str:
    assert name is not None
    return name


def _part(block: nn.Module, *names: str) -> Any:
    """The first of these parts that a block has."""
    for name in names:
        if (part := getattr(block, name, None)) is not None:
            return part
    raise NotUnderstoodError(f"{type(block).__name__} has none of {', '.join(names)}")


def _product(block: nn.Module, *names: str) -> FlatLinear:
    """The product that a block has under one of these names."""
    return flat_of(_part(block, *names), names[0])


def flat_of(module: nn.Module, name: str) -> FlatLinear:
    """The product that a module makes, if its weights are laid out for it."""
    if not isinstance(module, FlatProduct):
        raise NotUnderstoodError(f"{name} is {type(module).__name__}, no plain product")
    return module.flat


def _scaling(block: nn.Module) -> float:
    found = getattr(block, "scaling", None)
    if not isinstance(found, float | int):
        raise NotUnderstoodError(f"{type(block).__name__} does not say how scores are scaled")
    return float(found)


def _activation(module: Callable[[Tensor], Tensor]) -> str:
    """Name an activation by what it computes."""
    x = torch.linspace(-6.0, 6.0, 193)
    given = module(x)
    for name, known in ACTIVATIONS.items():
        if torch.allclose(given, known(x), rtol=0, atol=1e-5):
            return name
    raise NotUnderstoodError(f"the activation {type(module).__name__} is not known")


@torch.no_grad()
def _rms_kind(norm: nn.Module, weight: Tensor, eps: float) -> tuple[bool, bool]:
    """Find what a norm by root mean squares does with its weights.

    Returns whether one is added to them, and whether numbers are rounded before they are
    multiplied by them.
    """
    drawn = torch.randn(PROBES, len(weight), generator=torch.Generator().manual_seed(0))
    x = drawn.to(weight.dtype)
    scaled = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    found = norm(x)
    off = {
        (plus_one, round_first): _distance(found, _weighed(scaled, weight, plus_one, round_first))
        for plus_one in (False, True)
        for round_first in (True, False)
    }
    kind = min(off, key=off.__getitem__)
    if off[kind] > (1e-5 if weight.dtype == torch.float32 else 1e-2):
        raise NotUnderstoodError(f"the norm {type(norm).__name__} is not known")
    return kind


def _weighed(scaled: Tensor, weight: Tensor, plus_one: bool, round_first: bool) -> Tensor:
    factor = 1.0 + weight.float() if plus_one else weight.float()
    if round_first:
        scaled = scaled.to(weight.dtype).float()
    return (scaled * factor).to(weight.dtype)


def _distance(found: Tensor, expected: Tensor) -> float:
    scale = float(expected.float().abs().max()) or 1.0
    return float((found.float() - expected.float()).abs().max()) / scale
