"""Flat passes of a draft network: its layer as one program, its own head as another.

A draft is a few small passes in a row. Called module by module, each of them takes longer to
start than to compute; as a program it is one call. The layer is always Llama's, so it is
written down here; `choice` holds it against the modules before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.cache import KVCache
from ppdbench.engine.flat.activations import activation_of
from ppdbench.engine.flat.norms import write_norm
from ppdbench.engine.flat.ops import Buffer, CacheBlocks, Pass, Program, Turns
from ppdbench.engine.flat.passes import AT_ONCE
from ppdbench.engine.flat.products import flat_of
from ppdbench.methods.eagle.network import DraftNetwork, Eagle3


class FlatDraft:
    """The programs of one network, whose products are laid out flat."""

    def __init__(self, network: DraftNetwork) -> None:
        self.network = network
        self.dtype, self.width = network.dtype, int(network.config.hidden_size)
        self._layer = Program(self.dtype, 2 * self.width)
        self._states = self._written()
        self._head: Program | None = None
        if isinstance(network, Eagle3) and network.lm_head is not None:
            self._head = Program(self.dtype, self.width)
            self._logits = self._read_out(self._head, network)

    def over(self, cache: KVCache) -> FlatRows:
        """Passes that keep their rows in a cache."""
        return FlatRows(self, cache)

    def run(self, tokens: Tensor, features: Tensor, given: Pass) -> Tensor:
        """States of rows of tokens [1, n] and of features one token earlier: [1, n, hidden]."""
        entering = torch.cat([self.network.embedded(tokens, features), features], dim=-1)[0]
        states = torch.empty((1, given.rows, self.width), dtype=self.dtype)
        self._layer.run(0, self._layer.mark(), entering, states[0], self._states, given)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Logits of the token after each row, over the draft vocabulary."""
        if self._head is None:
            return self.network.logits(states)
        logits = torch.empty((1, states.shape[1], self._logits.width), dtype=self.dtype)
        rows = states.contiguous()[0]
        self._head.run(0, self._head.mark(), rows, logits[0], self._logits)
        return logits

    # Programs

    def _written(self) -> Buffer:
        """Write the layer; where its states are then."""
        program, layer, width = self._layer, self.network.layers[0], self.width
        words, features = program.hidden.part(0, width), program.hidden.part(width, width)
        stream = program.buffer(width)
        if isinstance(self.network, Eagle3):
            entering, residual = program.buffer(2 * width), features
            write_norm(program, _norm(layer, "input_layernorm"), words, entering.part(0, width))
            write_norm(program, _norm(layer, "hidden_norm"), features, entering.part(width, width))
        else:
            entering = residual = stream
            program.linear(program.hidden, (stream, flat_of(self.network.fc, "fc")))
        self._attend(entering, stream, residual)
        normed = program.buffer(width)
        write_norm(program, _norm(layer, "post_attention_layernorm"), stream, normed)
        mlp: Any = layer.mlp
        last = flat_of(mlp.down_proj, "down_proj")
        inner = program.buffer(last.in_features)
        gate, up = (flat_of(getattr(mlp, name), name) for name in ("gate_proj", "up_proj"))
        program.gated(normed, inner, gate, up, activation_of(mlp.act_fn))
        program.linear(inner, (stream, last), add=stream)
        return stream

    def _attend(self, source: Buffer, target: Buffer, residual: Buffer) -> None:
        """Attention over what has entered, added to the residual stream."""
        program, config = self._layer, self.network.config
        block: Any = self.network.layers[0].self_attn
        heads, kv_heads = int(config.num_attention_heads), int(config.num_key_value_heads)
        size = int(config.head_dim)
        own, others = heads * size, kv_heads * size
        room, seen = program.buffer(own + 2 * others), program.buffer(own)
        parts = room.part(0, own), room.part(own, others), room.part(own + others, others)
        products = [flat_of(getattr(block, n), n) for n in ("q_proj", "k_proj", "v_proj")]
        program.linear(source, *zip(parts, products, strict=True))
        queries, keys, values = parts
        program.rotate(queries, heads, size, size)
        program.rotate(keys, kv_heads, size, size)
        program.store(keys, values, 0, kv_heads, size)
        program.attend(queries, seen, 0, heads, kv_heads, size, float(block.scaling))
        program.linear(seen, (target, flat_of(block.o_proj, "o_proj")), add=residual)

    def _read_out(self, program: Program, network: Eagle3) -> Buffer:
        assert network.lm_head is not None
        normed, head = program.buffer(self.width), flat_of(network.lm_head, "lm_head")
        logits = program.buffer(head.out_features)
        write_norm(program, network.norm, program.hidden, normed)
        program.linear(normed, (logits, head))
        return logits


class FlatRows:
    """Passes of one sequence: true rows in a chain, and guesses on top of guesses."""

    def __init__(self, draft: FlatDraft, cache: KVCache) -> None:
        self.draft, self.cache = draft, cache
        self._blocks = CacheBlocks([cache.blocks(0)])
        cos, sin = draft.network.turns()
        self._turns = Turns([(cos.float().contiguous(), sin.float().contiguous())], whole=True)

    def chain(self, tokens: Tensor, features: Tensor, start: int) -> Tensor:
        """States of rows that follow one another from row `start` on."""
        found = []
        for first in range(start, end := start + tokens.shape[1], AT_ONCE):
            last = min(end, first + AT_ONCE)
            rows, places = slice(first - start, last - start), list(range(first, last))
            given = Pass(first, places, places, None, None, self._turns, self._blocks, causal=True)
            found.append(self.draft.run(tokens[:, rows], features[:, rows], given))
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def guesses(
        self, tokens: Tensor, features: Tensor, held: int, lines: Sequence[Sequence[int]]
    ) -> Tensor:
        """States of guesses behind `held` true rows.

        The line of each is the rows of guesses that lead to it, its own the last.
        """
        positions = [held - 1 + len(line) for line in lines]
        ends = [0]
        for line in lines:
            ends.append(ends[-1] + len(line))
        seen = [row for line in lines for row in line]
        own = [line[-1] for line in lines]
        given = Pass(held, own, positions, seen, ends, self._turns, self._blocks)
        return self.draft.run(tokens, features, given)


def _norm(layer: nn.Module, name: str) -> nn.Module:
    return layer.get_submodule(name)
