"""Decoder layers as operations of one program, whichever family they are of.

A layer is read from its modules: their names say what they are, and what a norm, an activation or
a rotation computes is found out by asking it. Whatever is not known is refused with its name, and
what was read wrongly differs from the layer itself, which is looked for before anything is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ppdbench.engine.families import LogitScale
from ppdbench.engine.flat import behind, differential, streams
from ppdbench.engine.flat.activations import activation_of, sparsity_of, xielu_of
from ppdbench.engine.flat.heads import (
    APART,
    BIAS,
    FUSED,
    QUERIES,
    SINKS,
    HeadSizes,
    block_of,
    clip_of,
    order_of,
    scaling_of,
    sizes_of,
    slopes_of,
    weights_beside,
)
from ppdbench.engine.flat.latent import (
    HEAD_GATES,
    LatentAttention,
    gating_of,
    head_gates,
    is_latent,
    let_through,
    parts_of,
)
from ppdbench.engine.flat.norms import Norms, norms_of, write_norm
from ppdbench.engine.flat.products import flat_of, part_of, product_of
from ppdbench.engine.flat.rotation import (
    Growth,
    HeadTurn,
    Rotation,
    growth_of,
    rotation_of,
    turns_first,
)
from ppdbench.engine.flat.streams import Streams
from ppdbench.engine.flat.understood import (
    EXPERTS,
    KEYS_AND_VALUES,
    SHARES,
    NotUnderstoodError,
    check_layer,
    check_model,
    has_experts,
    is_differential,
    is_given_heads,
    words_of,
)

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.flat.ops import Buffer, Program

# Parts of blocks by their usual names.
OUTPUTS = ("o_proj", "out_proj", "dense", "c_proj", "Wo")
HEAD_NORMS = (
    ("q_norm", "k_norm"),
    ("q_layernorm", "k_layernorm"),
    ("query_layernorm", "key_layernorm"),
    ("qk_norm", "qk_norm"),
)
VALUE_NORM = "v_norm"
ADAPTERS = ("linear_q_adapter_list", "linear_k_adapter_list", "linear_v_adapter_list")
KEY_FACTOR, VALUE_FACTOR = "key_multiplier", "v_scale"
SEEN_NORM, INNER_NORM = "attn_sub_norm", "ffn_sub_norm"
GATE = "gate_proj"  # of attention
BOTH = ("gate_up_proj", "Wi")  # what is activated, and behind it what that is multiplied by
GATES = ("gate_proj", *BOTH)
FIRSTS = ("up_proj", "dense_h_to_4h", "c_fc", "fc1", "fc_in")
LASTS = ("down_proj", "dense_4h_to_h", "c_proj", "fc2", "fc_out", "Wo")
ACTS = ("act_fn", "activation_fn", "act", "gelu_impl")
TRANSFORM, TRANSFORM_NORM = "dense", "norm"  # of what stands before the head
# Attributes of layers that hold the factor of what blocks add.
BLOCK_FACTORS = ("residual_multiplier", "residual_scale")

# Writes a block whose numbers go to the first buffer, with those of the second added.
Block = Callable[["Buffer", "Buffer | None"], None]


class LayerWriter:
    """Writes decoder layers, and what reads out after them, as operations of a program."""

    def __init__(self, adapter: Adapter, program: Program) -> None:
        check_model(adapter)
        self.adapter, self.program = adapter, program
        self.shape, self.sizes = adapter.cache_shape, sizes_of(adapter)
        self.stream = program.hidden.part(0, adapter.hidden_size)
        self.out = program.hidden
        self.kinds, self._words = adapter.rope_kinds, words_of(adapter)
        self.rotation = Rotation()
        self.growth: Growth | None = None
        self._unturned = frozenset(adapter.family.unturned(adapter.config))
        self._room: dict[tuple[str, int], Buffer] = {}

    # Layers

    def layer(self, index: int, *, attention: bool = True, mlp: bool = True) -> None:
        """Write one layer, or what is left of it without one of its blocks."""
        layer, blocks = self.adapter.layers[index], self.adapter.blocks
        read = layer if mlp else layer.get_submodule(blocks.attention)
        check_layer(read, self._words)
        if getattr(layer, "apply_residual_connection_post_layernorm", False):
            raise NotUnderstoodError("its blocks are added to what its norms give")
        norms = norms_of(layer)
        if mlp:
            parts = {*norms.names, blocks.attention, *blocks.mlp, *behind.PARTS, *streams.PARTS}
            _check_parts(layer, parts)
        given = behind.input_of(self.adapter, self.program, index)
        if hasattr(layer, streams.STREAMS):
            if not (attention and mlp):
                raise NotUnderstoodError("its blocks run over one of several states")
            self._one_of_several(index, layer, norms, given)
            return
        if self.adapter.family.normed_stream(self.adapter.config):
            if not (attention and mlp):
                raise NotUnderstoodError("its norms stand in the residual stream")
            norms = Norms(after_attention=norms.before_attention, after_mlp=norms.before_mlp)
            self._normed_stream(index, layer, norms)
        elif (norms.beside or getattr(layer, "use_parallel_residual", False)) and attention and mlp:
            self._side_by_side(index, layer, norms)
        else:
            if attention:
                source = self._normed(layer, norms.before_attention)
                self._joined(layer, norms.after_attention, partial(self._attention, index, source))
            elif index in self.shape.looked_at:
                source = self._normed(layer, norms.before_attention)
                self._stored(index, block_of(layer, blocks.attention), source)
            if mlp:
                source = self._normed(layer, norms.before_mlp)
                self._joined(layer, norms.after_mlp, partial(self._mlp, layer, source))
        behind.write_behind(self.program, layer, self.stream, given, self._buffer)

    def block(self, index: int) -> None:
        """Write the attention of a layer alone, over what is handed to it."""
        block = self.adapter.layers[index].get_submodule(self.adapter.blocks.attention)
        check_layer(block, self._words, alone=is_given_heads(block))
        if is_given_heads(block):
            given = self._between_experts if has_experts(block) else self._behind_memory
            self.out = given(index, block)
            return
        alone = self._buffer("alone", self.stream.width)
        self._attention(index, self.program.hidden, alone, None)
        self.program.copy(alone, self.stream)
        self.out = self.stream

    def _between_experts(self, index: int, block: nn.Module) -> Buffer:
        """Attention over a state and queries that experts made of it: what these have gathered.

        Those of one expert after another, each of all heads.
        """
        program, heads, hidden = self.program, self.sizes[index], self.program.hidden
        experts: Any = block.get_submodule(EXPERTS)
        if experts.top_k * experts.hidden_size != heads.asked:
            raise NotUnderstoodError(
                f"its experts do not make the queries of {heads.queries} heads"
            )
        queries = hidden.part(self.stream.width, heads.asked)
        kept = self._buffer("kept", sum(heads.made[1:]))
        keys, values = _columns(kept, heads.made[1:])
        program.linear(self.stream, (kept, product_of(block, KEYS_AND_VALUES)))
        self._turn(index, block, [queries, keys])
        program.store(keys, values, index, heads.keys, heads.width, heads.value)
        by_heads, seen = self._buffer("by heads", heads.asked), self._buffer("attended", heads.seen)
        order = (
            torch.arange(heads.asked).view(-1, heads.keys, heads.width).transpose(0, 1).flatten()
        )
        program.pick(queries, by_heads, order)
        self._attend(index, block, by_heads, seen)
        program.pick(seen, queries, order.argsort())
        return queries

    def _behind_memory(self, index: int, block: nn.Module) -> Buffer:
        """Attention over queries, keys and values that something made which remembers."""
        heads = self.sizes[index]
        queries, keys, values = _columns(self.program.hidden, heads.made)
        self._turn(index, block, [queries, keys])
        self.program.store(keys, values, index, heads.keys, heads.width, heads.value)
        seen, alone = self._buffer("attended", heads.seen), self._buffer("alone", self.stream.width)
        self._attend(index, block, queries, seen)
        self.program.linear(seen, (alone, product_of(block, *OUTPUTS)))
        return alone

    def _normed(self, layer: nn.Module, norm: str | None) -> Buffer:
        """The stream, normed if there is a norm."""
        hidden = self.stream
        if norm is None:
            return hidden
        normed = self._buffer("normed", hidden.width)
        write_norm(self.program, layer.get_submodule(norm), hidden, normed)
        return normed

    def _joined(self, layer: nn.Module, norm: str | None, block: Block) -> None:
        """Add what a block gives to the stream, normed and scaled if that is done behind it."""
        hidden, factor = self.stream, _factor(layer)
        if norm is None and factor == 1.0:
            block(hidden, hidden)
            return
        alone = self._buffer("alone", hidden.width)
        block(alone, None)
        if norm is not None:
            write_norm(self.program, layer.get_submodule(norm), alone, alone)
        if factor != 1.0:
            self.program.scale(alone, alone, factor)
        self.program.add(hidden, alone, hidden)

    def _normed_stream(self, index: int, layer: nn.Module, norms: Norms) -> None:
        """Norms that stand in the stream, behind each block."""
        hidden = self.stream
        self._attention(index, hidden, hidden, hidden)
        write_norm(self.program, layer.get_submodule(_name(norms.after_attention)), hidden, hidden)
        self._mlp(layer, hidden, hidden, hidden)
        write_norm(self.program, layer.get_submodule(_name(norms.after_mlp)), hidden, hidden)

    def _side_by_side(self, index: int, layer: nn.Module, norms: Norms) -> None:
        """Run both blocks over what came in; their sum is added to it."""
        hidden = self.stream
        both = self._buffer("alone", hidden.width)
        normed = self._normed(layer, norms.before_attention)
        self._attention(index, normed, both, None)
        if not norms.shared:
            normed = self._normed(layer, norms.before_mlp)
        self._mlp(layer, normed, both, both)
        self.program.add(both, hidden, hidden)

    def _one_of_several(
        self, index: int, layer: nn.Module, norms: Norms, given: Buffer | None
    ) -> None:
        """Run both blocks over one of several states, which are predicted before and corrected."""
        program, width = self.program, self.stream.width
        several = Streams(program, self._buffer, layer, width)
        several.predict()
        before, after = _name(norms.before_attention), _name(norms.after_attention)
        normed, alone, made = (self._buffer(name, width) for name in ("read", "alone", "made"))
        write_norm(program, layer.get_submodule(before), several.state, normed)
        beside = several.beside(normed)
        self._attention(index, normed, alone, None)
        write_norm(program, layer.get_submodule(after), alone, alone)
        program.add(several.state, alone, made)
        program.add(made, beside, made)
        program.scale(made, made, 2**-0.5)
        write_norm(program, layer.get_submodule(_name(norms.before_mlp)), made, normed)
        self._mlp(layer, normed, alone, None)
        write_norm(program, layer.get_submodule(_name(norms.after_mlp)), alone, alone)
        program.add(made, alone, made)
        several.correct(made)
        looked_at, others = several.looked_at(), several.others
        behind.write_behind(program, layer, looked_at, given, self._buffer, others)
        several.leave()

    # Blocks: what they give goes to `target`, with `add` added if there is one

    def _attention(self, index: int, source: Buffer, target: Buffer, add: Buffer | None) -> None:
        block = block_of(self.adapter.layers[index], self.adapter.blocks.attention)
        attend = self._over_latents if is_latent(block) else self._over_keys
        seen = attend(index, block, source)
        if hasattr(block, SEEN_NORM):
            write_norm(self.program, block.get_submodule(SEEN_NORM), seen, seen)
        product, weights = product_of(block, *OUTPUTS), weights_beside(block)
        if BIAS in weights:
            product = product.biased(weights[BIAS])
        self.program.linear(seen, (target, product), add=add)

    def _over_keys(self, index: int, block: nn.Module, source: Buffer) -> Buffer:
        """Attention over keys and values of its heads: what these have gathered."""
        heads, queries = self.sizes[index], self._stored(index, block, source)
        seen = self._buffer("attended", heads.seen)
        if is_differential(block):
            both = self._buffer("gathered", 2 * heads.seen)
            for first, own in zip((0, heads.seen), differential.halves(heads), strict=True):
                self._attend(index, block, queries, both.part(first, heads.seen), own)
            where = self.program, self._buffer, block
            differential.write_difference(*where, heads, both, seen)
        else:
            self._attend(index, block, queries, seen)
        if (gates := self._gates(block, source, heads)) is not None:
            let_through(self.program, block, gates, seen)
        return seen

    def _attend(
        self,
        index: int,
        block: nn.Module,
        queries: Buffer,
        target: Buffer,
        value_heads: range | None = None,
    ) -> None:
        """Gather values, of some heads in turn or each head of its own."""
        heads = self.sizes[index]
        slopes, coarse = slopes_of(self.adapter.slopes, scaling_of(block, self.adapter.family))
        self.program.attend(
            *(queries, target, self.shape.source_of(index)),
            *(heads.queries, heads.keys, heads.width),
            **self._way(index, block),
            slopes=slopes,
            coarse=coarse,
            sinks=weights_beside(block).get(SINKS),
            value_dim=heads.value,
            value_heads=value_heads,
        )

    def _stored(self, index: int, block: nn.Module, source: Buffer) -> Buffer:
        """Keep the keys and values of a block, if it has its own; its queries."""
        program, heads = self.program, self.sizes[index]
        head_norms = next((pair for pair in HEAD_NORMS if hasattr(block, pair[0])), ())
        gate = {GATE, HEAD_GATES} if gating_of(block) else set[str]()
        norms = {*head_norms, VALUE_NORM, SEEN_NORM}
        beside = {*weights_beside(block)}
        if is_differential(block):
            beside |= {*SHARES}
        _check_parts(block, {*QUERIES, *ADAPTERS, *OUTPUTS, *norms, *beside, *gate})
        own = self.shape.source_of(index) == index
        parts = self._queries(block, source, heads) if own else [self._asked(block, source, heads)]
        self._adapt(index, block, source, parts)
        turn_last = not head_norms or not turns_first(block, head_norms[0])
        if not turn_last:
            self._turn(index, block, parts[:2])
        for name, states in zip(head_norms, parts, strict=False):
            write_norm(program, block.get_submodule(name), states, states, heads.width)
        if (most := clip_of(block)) is not None:
            for states in parts:
                program.clip(states, states, most)
        if turn_last:
            self._turn(index, block, parts[:2])
        if own:
            _, keys, values = parts
            if hasattr(block, VALUE_NORM):
                norm = block.get_submodule(VALUE_NORM)
                write_norm(program, norm, values, values, heads.value)
            program.store(keys, values, index, heads.keys, heads.width, heads.value)
        return parts[0]

    def _over_latents(self, index: int, block: nn.Module, source: Buffer) -> Buffer:
        """Attention over what keys and values come from: the values that heads have gathered."""
        _check_parts(block, {*parts_of(block), *OUTPUTS})
        if growth_of(block) is not None:
            raise NotUnderstoodError("its queries grow with positions, and look at latents")
        heads = self.sizes[index].queries
        attention = LatentAttention(self.program, self._buffer, block, heads)
        turn = self._turn_of(index, block, attention.sizes.turned)
        return attention.write(source, turn, index, **self._way(index, block))

    def _way(self, index: int, block: nn.Module) -> dict[str, Any]:
        """The scale of scores, their cap, and how far back a layer looks."""
        return {
            "scale": scaling_of(block, self.adapter.family),
            "softcap": getattr(block, "attn_logit_softcapping", None),
            "window": self.adapter.windows[index],
        }

    def _turn(self, index: int, block: nn.Module, parts: Sequence[Buffer]) -> None:
        """Turn queries, and keys if there are some, by their positions, where the layer does so.

        And let queries grow by theirs.
        """
        width = self.sizes[index].width
        if (turn := self._turn_of(index, block, width)) is not None:
            if turn.way.parted:
                raise NotUnderstoodError("its heads come out of their turn in another order")
            for states in parts:
                turn.write(self.program, states, states.width // width, width)
        if (growth := growth_of(block)) is not None:
            self.growth = growth
            whole = parts[0], self.sizes[index].queries, width, width
            self.program.rotate(*whole, len(self.kinds))  # by no angle, as long as they become

    def _turn_of(self, index: int, block: nn.Module, head_dim: int) -> HeadTurn | None:
        """The turn that a layer gives to heads so wide; None if it gives none."""
        adapter = self.adapter
        if adapter.family.positions is not None or adapter.slopes is not None:
            return None
        if index in self._unturned or not adapter.rotary_tables:
            return None
        width = adapter.rotary_width(name := adapter.rope_kind(index))
        self.rotation = way = rotation_of(block, head_dim, width)
        return HeadTurn(way, 2 * width if way.once else width, self.kinds.index(name))

    def _asked(self, block: nn.Module, source: Buffer, heads: HeadSizes) -> Buffer:
        """Queries alone, of a block that looks at the rows of another layer."""
        queries = self._buffer("queries", heads.asked)
        self.program.linear(source, (queries, product_of(block, APART[0])))
        return queries

    def _queries(self, block: nn.Module, source: Buffer, heads: HeadSizes) -> Sequence[Buffer]:
        """Queries, keys and values, however many products they come from."""
        room = self._buffer("queries", sum(heads.made))
        parts = _columns(room, heads.made)
        if hasattr(block, APART[0]):
            self._from_products(block, source, heads, parts)
            return parts
        family, product = self.adapter.family, product_of(block, *FUSED)
        order = order_of(block, family, heads.queries, heads.width)
        if order is None:
            self.program.linear(source, (room, product))
        else:
            mixed = self._buffer("mixed", product.out_features)
            self.program.linear(source, (mixed, product))
            self.program.pick(mixed, room, order.to(torch.int32))
        return parts

    def _adapt(self, index: int, block: nn.Module, source: Buffer, parts: Sequence[Buffer]) -> None:
        """Add what two narrow products of a layer alone give, in a block that layers share."""
        for name, states in zip(ADAPTERS, parts, strict=False):
            if hasattr(block, name):
                own: Any = block
                first, last = (
                    flat_of(each, name) for each in getattr(own, name)[own.layer_dic[index]]
                )
                narrow = self._buffer("adapted", first.out_features)
                self.program.linear(source, (narrow, first))
                self.program.linear(narrow, (states, last), add=states)

    def _from_products(
        self, block: nn.Module, source: Buffer, heads: HeadSizes, parts: Sequence[Buffer]
    ) -> None:
        """Queries, keys and values of a product each; where there is none for values, as keys."""
        both = getattr(block, APART[2], block) is None
        products = [product_of(block, name) for name in (APART[:2] if both else APART)]
        firsts, doubled = list(parts[: len(products)]), self._is_doubled(block, heads)
        if doubled:
            firsts[0] = self._buffer("both", 2 * heads.asked)
        self.program.linear(source, *zip(firsts, products, strict=True))
        if doubled:
            columns = torch.arange(2 * heads.asked).view(heads.queries, 2, heads.width)
            self.program.pick(firsts[0], parts[0], columns[:, 0].flatten())
            self.program.pick(firsts[0], self._buffer(GATE, heads.asked), columns[:, 1].flatten())
        if both:
            self.program.copy(parts[1], parts[2])
        for name, part in zip((KEY_FACTOR, VALUE_FACTOR), parts[1:], strict=True):
            if (factor := getattr(block, name, 1.0)) != 1.0:
                self.program.scale(part, part, factor)

    def _gates(self, block: nn.Module, source: Buffer, heads: HeadSizes) -> Buffer | None:
        """Numbers by which attention is let through, where a block has them.

        They come of a product of their own, one for each number or for each head, or of that of the
        queries, which has made them.
        """
        if getattr(block, HEAD_GATES, None) is not None:
            return head_gates(self.program, self._buffer, block, source, heads.queries, heads.value)
        if hasattr(block, GATE):
            gates = self._buffer(GATE, heads.asked)
            self.program.linear(source, (gates, product_of(block, GATE)))
            return gates
        return self._buffer(GATE, heads.asked) if self._is_doubled(block, heads) else None

    def _is_doubled(self, block: nn.Module, heads: HeadSizes) -> bool:
        """True if a product gives queries and, behind those of each head, as many gates."""
        first = APART[0]
        return hasattr(block, first) and product_of(block, first).out_features == 2 * heads.asked

    def _mlp(self, layer: nn.Module, source: Buffer, target: Buffer, add: Buffer | None) -> None:
        names = self.adapter.blocks.mlp
        block = layer if len(names) > 1 else layer.get_submodule(names[0])
        module = part_of(block, *ACTS)
        factors = xielu_of(module)
        if block is not layer:
            bent = () if factors is None else ("act_fn",)
            _check_parts(block, {*GATES, *FIRSTS, *LASTS, INNER_NORM, *bent})
        last = product_of(block, *LASTS)
        inner = self._buffer("inner", last.in_features)
        if hasattr(block, "gate_proj"):
            gate, up = product_of(block, "gate_proj"), product_of(block, "up_proj")
            if (deviations := sparsity_of(block)) is None:
                self.program.gated(source, inner, gate, up, activation_of(module))
            else:
                gates, ups = (self._buffer(name, inner.width) for name in ("cut", "ups"))
                self.program.linear(source, (gates, gate), (ups, up))
                self.program.cut(gates, gates, deviations)
                self.program.act(gates, inner, activation_of(module), times=ups)
        elif any(hasattr(block, name) for name in BOTH):
            both = self._buffer("gated", 2 * inner.width)
            self.program.linear(source, (both, product_of(block, *BOTH)))
            gates, ups = both.part(0, inner.width), both.part(inner.width, inner.width)
            self.program.act(gates, inner, activation_of(module), times=ups)
        else:
            self.program.linear(source, (inner, product_of(block, *FIRSTS)))
            if factors is None:
                self.program.act(inner, inner, activation_of(module))
            else:
                self.program.xielu(inner, inner, factors)
        if hasattr(block, INNER_NORM):
            write_norm(self.program, block.get_submodule(INNER_NORM), inner, inner)
        self.program.linear(inner, (target, last), add=add)

    # What reads out

    def before_head(self) -> Buffer:
        """Write what stands between the last layer and the head; the buffer that this reads."""
        adapter, program, states = self.adapter, self.program, self.stream
        if adapter.final_norm is not None:
            normed = self._buffer("normed", states.width)
            write_norm(program, adapter.final_norm, states, normed)
            states = normed
        if adapter.before_head != 1.0:
            divided = self._buffer("normed", states.width)
            program.scale(states, divided, 1 / adapter.before_head)
            states = divided
        if adapter.transform is not None:
            states = self._transformed(adapter.transform, states)
        name = adapter.family.project_out
        if name is not None and (module := getattr(adapter.body, name)) is not None:
            projected = self._buffer("projected", adapter.head_width)
            program.linear(states, (projected, flat_of(module, name)))
            states = projected
        return states

    def readout(self) -> Buffer:
        """Write the final norm and the head; the buffer of logits."""
        adapter, program, states = self.adapter, self.program, self.before_head()
        head = flat_of(adapter.head, "head")
        logits = self._buffer("logits", head.out_features)
        program.linear(states, (logits, head))
        if adapter.logit_scale != LogitScale():
            program.scale(logits, logits, adapter.logit_scale.times / adapter.logit_scale.per)
        if adapter.softcap is not None:
            program.cap(logits, logits, adapter.softcap)
        return logits

    def _transformed(self, module: nn.Module, states: Buffer) -> Buffer:
        """Write what states pass before the head: a product, an activation and a norm."""
        check_layer(module, self._words)
        _check_parts(module, {TRANSFORM, TRANSFORM_NORM})
        product = product_of(module, TRANSFORM)
        found = self._buffer("transformed", product.out_features)
        self.program.linear(states, (found, product))
        self.program.act(found, found, activation_of(part_of(module, *ACTS)))
        write_norm(self.program, module.get_submodule(TRANSFORM_NORM), found, found)
        return found

    def _buffer(self, name: str, width: int) -> Buffer:
        """Room for some numbers per row; layers that need the same share it."""
        if (name, width) not in self._room:
            self._room[name, width] = self.program.buffer(width)
        return self._room[name, width]


def _columns(room: Buffer, widths: Sequence[int]) -> list[Buffer]:
    """Columns of a buffer, so many for each."""
    ends = accumulate(widths)
    return [room.part(end - own, own) for own, end in zip(widths, ends, strict=True)]


def _factor(layer: nn.Module) -> float:
    """The factor of what the blocks of a layer add to the stream."""
    found = (getattr(layer, name, None) for name in BLOCK_FACTORS)
    return next((float(factor) for factor in found if isinstance(factor, float | int)), 1.0)


def _check_parts(whole: nn.Module, known: set[str]) -> None:
    """Refuse a layer or a block with weights in parts that nobody would run."""
    for name, part in whole.named_children():
        if name not in known and any(True for _ in part.parameters()):
            raise NotUnderstoodError(f"its part {name} is not known")
    if dict(whole.named_parameters(recurse=False)).keys() - known:
        raise NotUnderstoodError(f"{type(whole).__name__} has weights beside its parts")


def _name(name: str | None) -> str:
    assert name is not None
    return name
