"""Layers that hand on several states of a token, of which one goes through their blocks (Gemma 3n).

Before that all are predicted, each of all of them; behind it each is corrected by what the blocks
have made of the one. By how much is made of that state itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ppdbench.engine.flat.norms import write_norm
from ppdbench.engine.flat.products import product_of

if TYPE_CHECKING:
    from ppdbench.engine.flat.ops import Buffer, Program
    from ppdbench.engine.flat.weights import FlatLinear

# Parts of layers by their usual names: what predicts and corrects, what stands beside attention.
STREAMS, BESIDE = "altup", "laurel"
PARTS = {STREAMS, BESIDE}


class Streams:
    """Writes what a layer does to the states of a token around its blocks.

    `room` makes or finds a buffer by its name and width, which is that of a state.
    """

    def __init__(
        self, program: Program, room: Callable[[str, int], Buffer], layer: nn.Module, width: int
    ) -> None:
        self.program, self.room, self.layer, self.width = program, room, layer, width
        mixer: Any = layer.get_submodule(STREAMS)
        self.mixer, self.config = mixer, mixer.config
        self.count: int = self.config.altup_num_inputs
        self.given = program.hidden.part(0, self.count * width)
        self._held = room("predicted", self.given.width)
        states = [self._held.part(i * width, width) for i in range(self.count)]
        self.state: Buffer = states[self.config.altup_active_idx]
        """The one that goes through the blocks, as it was predicted and then corrected."""
        self.others = states[1:]
        """Those that what is made of the layer's own input is added to."""

    def predict(self) -> None:
        """Predict all states of those that came in."""
        first = self.config.altup_active_idx * self.width
        product = product_of(self.mixer, "prediction_coefs")
        factors = self._factors(self.given.part(first, self.width), product)
        self.program.copy(self.given, self._held)
        self.program.mix(self.given, factors, self._held, self.count)

    def beside(self, normed: Buffer) -> Buffer:
        """Write what stands beside attention: two narrow products, normed, onto what they read."""
        block, program = self.layer.get_submodule(BESIDE), self.program
        first, last = product_of(block, "linear_left"), product_of(block, "linear_right")
        narrow, found = self.room("narrow", first.out_features), self.room("beside", self.width)
        program.linear(normed, (narrow, first))
        program.linear(narrow, (found, last))
        write_norm(program, block.get_submodule("post_laurel_norm"), found, found)
        program.add(normed, found, found)
        return found

    def correct(self, made: Buffer) -> None:
        """Correct all states by how far what blocks have made lies from what was predicted."""
        product = product_of(self.mixer, "correction_coefs").biased(torch.ones(self.count))
        factors, news = self._factors(made, product), self.room("news", self.width)
        self.program.scale(self.state, news, -1.0)
        self.program.add(made, news, news)
        self.program.mix(news, factors, self._held, self.count)

    def looked_at(self) -> Buffer:
        """The corrected state as the layer's own input meets it."""
        if not self.config.altup_correct_scale:
            return self.state
        found = self.room("looked at", self.width)
        self.program.weigh(self.state, found, self.mixer.correct_output_scale)
        return found

    def leave(self) -> None:
        """Hand all states on."""
        self.program.copy(self._held, self.given)

    def _factors(self, state: Buffer, product: FlatLinear) -> Buffer:
        """Numbers by which states are taken, made of one of them."""
        program, normed = self.program, self.room("normed", self.width)
        router, routed = product_of(self.mixer, "modality_router"), self.room("routed", self.count)
        factors = self.room("factors", product.out_features)
        write_norm(program, self.mixer.router_norm, state, normed)
        program.scale(normed, normed, float(self.mixer.router_input_scale))
        program.linear(normed, (routed, router))
        program.cap(routed, routed, 1.0)
        program.linear(routed, (factors, product))
        return factors
