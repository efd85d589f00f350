"""Layers that do more behind their blocks: look at an input of their own, scale the stream.

The input is made of the word alone and stands behind the state in what a token carries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from ppdbench.engine.carried import LayerInputs
from ppdbench.engine.flat.activations import activation_of
from ppdbench.engine.flat.norms import INPUT_NORM, write_norm
from ppdbench.engine.flat.products import product_of
from ppdbench.engine.flat.understood import NotUnderstoodError

if TYPE_CHECKING:
    from ppdbench.engine.adapters import Adapter
    from ppdbench.engine.flat.ops import Buffer, Program

# Parts and attributes of layers by their usual names.
INPUT_GATE, INPUT_PROJECTION = "per_layer_input_gate", "per_layer_projection"
SCALAR = "layer_scalar"
PARTS = {INPUT_GATE, INPUT_PROJECTION, INPUT_NORM}


def has_more(layer: nn.Module) -> bool:
    """True for a layer that does something behind its blocks."""
    return hasattr(layer, INPUT_GATE) or hasattr(layer, SCALAR)


def input_of(adapter: Adapter, program: Program, index: int) -> Buffer | None:
    """The columns of the input of a layer; None where tokens carry nothing but a state."""
    carried = adapter.carried
    if carried is None:
        return None
    if not isinstance(carried, LayerInputs):
        raise NotUnderstoodError("its layers take more of a token than a state and an input")
    return program.hidden.part(*carried.place(index))


def write_behind(
    program: Program,
    layer: nn.Module,
    stream: Buffer,
    given: Buffer | None,
    room: Callable[[str, int], Buffer],
    onto: Sequence[Buffer] = (),
) -> None:
    """Write what a layer does to the stream behind its blocks, if that is anything.

    Or `onto` others, of which none is the stream.
    """
    if hasattr(layer, INPUT_GATE):
        if given is None:
            raise NotUnderstoodError("it looks at an input that no token carries")
        gates, alone = room("input gates", given.width), room("alone", stream.width)
        program.linear(stream, (gates, product_of(layer, INPUT_GATE)))
        program.act(gates, gates, activation_of(layer.get_submodule("act_fn")), times=given)
        program.linear(gates, (alone, product_of(layer, INPUT_PROJECTION)))
        write_norm(program, layer.get_submodule(INPUT_NORM), alone, alone)
        for states in onto or (stream,):
            program.add(states, alone, states)
    if hasattr(layer, SCALAR) and (factor := float(layer.get_buffer(SCALAR))) != 1.0:
        program.scale(stream, stream, factor)
