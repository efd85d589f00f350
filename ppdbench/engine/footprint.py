"""The memory a model takes, worked out before any of its weights are read.

The model is built on the meta device, where tensors have shapes and no memory, so that the
weights are counted to the byte for every family. Keys and values follow from the context. What
a pass holds while it runs is estimated for the widest one, a prompt that fills the context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ppdbench.engine import packing
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.flat.choice import why_not_in_type
from ppdbench.engine.flat.latent import reckoned_bytes
from ppdbench.engine.flat.understood import has_latents
from ppdbench.engine.memory import states_bytes
from ppdbench.engine.quantized import SCHEMES
from ppdbench.errors import ConfigError
from ppdbench.machine.garbage import import_for_good

GB = 1e9
# Numbers that a pass holds per row, in widths of the hidden states and of the widest product:
# fitted to the peak memory of prompts of 4,096 rows on a CPU, which it meets within a tenth.
HIDDEN_WIDTHS, WIDEST_WIDTHS = 9, 3


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes, part by part; `context` is the longest sequence that was reckoned with."""

    layers: tuple[int, ...]  # the weights of each
    around: int  # embedding, final norm and head
    packed: int  # the packed copy of a head that shares the embedding's weights
    turned: int  # the copy of what makes keys of latents, by which flat passes multiply queries
    cache: int  # keys and values; of layers with a memory what they read
    states: int  # of layers with a memory, as they are and as they were
    passes: int
    context: int

    @property
    def weights(self) -> int:
        """All weights as they lie in memory."""
        return sum(self.layers) + self.around + self.packed + self.turned

    @property
    def total(self) -> int:
        """The bytes of all of it at once."""
        return self.weights + self.kept + self.passes

    @property
    def at_home(self) -> int:
        """Bytes that must be where tokens enter the model, wherever its layers are."""
        return self.around + self.packed + self.turned + self.passes

    @property
    def kept(self) -> int:
        """All that is kept of one sequence."""
        return self.cache + self.states

    @property
    def kept_per_weight(self) -> float:
        """Bytes that are kept of a sequence for each byte of a layer's weights."""
        return self.kept / sum(self.layers)


def on_meta(config: Any, dtype: torch.dtype, **how: Any) -> Any:
    """The model of a configuration, without any memory."""
    import_for_good("transformers.modeling_utils")  # what all model code is built on
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, **how)


def measure(model: Any, device: torch.device, context: int, scheme: str | None = None) -> Footprint:
    """The footprint of a model on the meta device, once it is loaded to `device`.

    `scheme` is how weights are quantised, if they are.
    """
    adapter = Adapter(model)
    context = min(context, adapter.max_positions)
    widest = max(max(p.shape) for p in adapter.layers[0].parameters())
    itemsize = adapter.dtype.itemsize
    row = HIDDEN_WIDTHS * adapter.width + WIDEST_WIDTHS * widest
    own = _own_weights(adapter.layers)
    layers = tuple(_layer_bytes(weights, scheme) for weights in own)
    plain = sum(map(_bytes, own))
    return Footprint(
        layers=layers,
        around=_bytes(model.parameters()) - plain,
        packed=_packed_copy(adapter, device),
        turned=_turned_copy(adapter, device, scheme),
        cache=adapter.cache_shape.bytes(context),
        states=states_bytes(adapter.layers, adapter.anatomy.memories, adapter.hidden_size),
        passes=context * row * itemsize,
        context=context,
    )


def stored_scheme(config: Any) -> str | None:
    """The scheme that quantised weights in a model's files are about as large as."""
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return None
    text = str(stored if isinstance(stored, dict) else stored.to_dict()).lower()
    return "nf4" if "load_in_4bit': true" in text or "int4" in text else "int8"


def _own_weights(layers: Iterable[nn.Module]) -> list[list[nn.Parameter]]:
    """The weights of each layer, less those that an earlier one has, too."""
    seen: set[nn.Parameter] = set()
    found: list[list[nn.Parameter]] = []
    for layer in layers:
        found.append([weight for weight in layer.parameters() if weight not in seen])
        seen.update(found[-1])
    return found


def _bytes(weights: Iterable[nn.Parameter]) -> int:
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _layer_bytes(weights: Sequence[nn.Parameter], scheme: str | None) -> int:
    """The weights of a layer; of those that are quantised, what the scheme makes of them."""
    if scheme is None:
        return _bytes(weights)
    matrices = [weight for weight in weights if weight.dim() == 2]
    bits = sum(weight.numel() for weight in matrices) * SCHEMES[scheme].bits
    return int(bits / 8) + _bytes(weights) - _bytes(matrices)


def _packed_copy(adapter: Adapter, device: torch.device) -> int:
    """Packed weights replace plain ones, but an embedding is still read in plain rows."""
    head = adapter.head.get_parameter("weight")
    least = packing.PAYS_FROM.get(head.dtype, sys.maxsize)
    packs = device.type == "cpu" and head.numel() >= least
    return head.numel() * head.element_size() if adapter.is_tied() and packs else 0


def _turned_copy(adapter: Adapter, device: torch.device, scheme: str | None) -> int:
    """Weights that make keys of latents are there once more, where passes may be flat."""
    flat = device.type == "cpu" and scheme is None and why_not_in_type(adapter) is None
    if not flat or not has_latents(adapter):
        return 0
    heads = int(adapter.config.num_attention_heads)
    return reckoned_bytes(adapter.layers, heads, adapter.dtype)


def check_fits(need: Footprint, place: str, free: int, ways: str) -> None:
    """Refuse a model that is larger than the memory it would go to, with what it consists of."""
    if need.total > free:
        states = f"states {gb(need.states)}, " if need.states else ""
        raise ConfigError(
            f"model needs {gb(need.total)} (weights {gb(need.weights)}, keys and values of "
            f"{need.context} tokens {gb(need.cache)}, {states}passes {gb(need.passes)}), {place} "
            f"has {gb(free)}: use {ways}"
        )


def gb(size: float) -> str:
    """Bytes as people say them."""
    return f"{size / GB:.1f} GB" if size >= GB / 10 else f"{size / 1e6:.1f} MB"
