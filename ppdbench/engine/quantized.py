"""Weights in 8 or 4 bits, made and multiplied by the libraries that exist for it.

Only weights are quantised, those of the decoder layers; embedding and head stay as they are. A
row of a product then depends on no other row, so greedy decoding of a quantised model is as well
defined as that of any other, and every method is compared with it. Schemes that look at all
rows of a pass at once (outlier columns, one scale for all activations) are refused: with them
the tokens of a pass change each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.packed_levels import METHODS, Packing
from ppdbench.engine.packing import exchange, for_all_owners, weights_of
from ppdbench.engine.weights import is_plain
from ppdbench.errors import ConfigError, UnsupportedModel

BLOCK = 64  # weights of 4 bits that share a scale
CPU_ROWS = 32  # of a matrix that bitsandbytes' kernel for CPUs takes at once
EXTRA = "ppdbench[quantized]"
# torchao's ways to quantise nothing but weights.
WEIGHT_ONLY = {
    *("Int8WeightOnlyConfig", "Int4WeightOnlyConfig"),
    *("IntxWeightOnlyConfig", "Float8WeightOnlyConfig"),
}


# Formats that transformers turns into plain weights on any device, and its settings for that.
PLAIN_AGAIN = {"fp8": "FineGrainedFP8Config", "mxfp4": "Mxfp4Config"}


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to hold weights: who makes and multiplies them, and how large they are."""

    library: str
    bits: float  # per weight, scales included
    convert: Callable[[nn.Linear], nn.Module]


def _int8(layer: nn.Linear) -> nn.Module:
    """One scale per row of the weight."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(layer, Int8WeightOnlyConfig(set_inductor_config=False))
    return layer


def _four_bits(layer: nn.Linear, kind: str) -> nn.Module:
    """Sixteen levels, and one scale for each 64 weights."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    made = Linear4bit(
        *(layer.in_features, layer.out_features, layer.bias is not None),
        compute_dtype=layer.weight.dtype,
        compress_statistics=False,
        quant_type=kind,
        device="meta",
    )
    made.weight = Params4bit(
        layer.weight.data,
        requires_grad=False,
        compress_statistics=False,
        blocksize=BLOCK,
        quant_type=kind,
        module=made,
    )
    made.bias = layer.bias
    quantised: nn.Module = made.to(layer.weight.device)  # moving is what quantises
    return quantised


SCHEMES: Mapping[str, Scheme] = {
    "int8": Scheme("torchao", 8.0, _int8),
    "nf4": Scheme("bitsandbytes", 4.5, partial(_four_bits, kind="nf4")),
    "fp4": Scheme("bitsandbytes", 4.5, partial(_four_bits, kind="fp4")),
}


def check_scheme(name: str) -> None:
    """Refuse what is no scheme, or one whose library is not there, before weights load."""
    if name not in SCHEMES:
        raise ConfigError(f"--quantize {name}: use {', '.join(SCHEMES)}")
    _check_library(f"--quantize {name}", SCHEMES[name].library)


def installed() -> list[str]:
    """The schemes whose library is there."""
    return [name for name, scheme in SCHEMES.items() if find_spec(scheme.library) is not None]


def check_stored(config: Any, name: str, asked: str | None, adapter: str | None) -> bool:
    """True if a model's files hold weights that stay quantised; an error where those cannot be run.

    Nor can an adapter be merged into them.
    """
    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return False
    if asked is not None:
        raise ConfigError(f"{name} holds quantised weights already; leave --quantize {asked} out")
    facts = _facts(stored)
    method = str(facts.get("quant_method"))
    if method in PLAIN_AGAIN:
        return False
    if method in METHODS:
        Packing.of(facts, name)
        return False
    four_bits = method == "bitsandbytes" and facts.get("load_in_4bit")
    if not four_bits and not (
        method == "torchao" and _types(facts.get("quant_type")) <= WEIGHT_ONLY
    ):
        kind = "bitsandbytes in 8 bits" if method == "bitsandbytes" else method
        raise UnsupportedModel(
            f"{name} is quantised by {kind}, and rows of a pass must not depend on each other; "
            "supported: bitsandbytes in 4 bits, torchao weight-only, and fp8, mxfp4, gptq and awq, "
            "which become plain weights on loading. Use the plain model, with "
            f"--quantize {' or '.join(SCHEMES)} if need be"
        )
    if adapter is not None:
        raise ConfigError(
            f"--adapter {adapter}: {name} is quantised by {method}, and nothing is added to "
            "weights that stay in fewer bits; give --model the plain one, and --quantize if need be"
        )
    _check_library(name, method)
    return True


def plain_again(config: Any) -> tuple[str, Any] | None:
    """The format of stored weights that become plain ones, and how they do.

    That is what to ask transformers for, or a `Packing` of which it needs others' libraries.

    `config` is then that of a plain model.
    """
    stored = getattr(config, "quantization_config", None)
    facts = {} if stored is None else _facts(stored)
    method = str(facts.get("quant_method"))
    if method not in (*PLAIN_AGAIN, *METHODS):
        return None
    del config.quantization_config
    if method in METHODS:
        return method, Packing.of(facts, method)
    import transformers

    asked = getattr(transformers, PLAIN_AGAIN[method])
    return method, asked.from_dict({**facts, "dequantize": True})


def _facts(stored: Any) -> dict[str, Any]:
    facts: dict[str, Any] = stored if isinstance(stored, dict) else stored.to_dict()
    return facts


def _types(node: Any) -> set[str]:
    """The names of all torchao configurations in a stored description."""
    if isinstance(node, dict):
        own = {str(node["_type"])} if str(node.get("_type", "")).endswith("Config") else set()
        return own.union(*map(_types, node.values()))
    return set()


def _check_library(what: str, library: str) -> None:
    if find_spec(library) is None:
        raise ConfigError(f"{what} needs {library}, which is not installed; pip install '{EXTRA}'")


def quantize(model: Any, name: str, device: torch.device) -> None:
    """Quantise the decoder layers of a loaded model and move them to `device`, one by one.

    So the device holds at most one of them in full. What several layers share they share still.
    """
    layers = Adapter(model).layers
    make = for_all_owners(partial(_converted, SCHEMES[name].convert), layers)
    for layer in layers:
        exchange(layer.to(device), make)


def _converted(convert: Callable[[nn.Linear], nn.Module], module: nn.Module) -> nn.Module:
    """A product with its weights in fewer bits; anything else as it is."""
    held = weights_of(module)
    if held is None or not is_plain(module.get_parameter("weight")):
        return module
    return convert(_linear(*held))


def keep_types(model: nn.Module) -> None:
    """Let no product round to a smaller type than the model's own.

    Where a CPU can, bitsandbytes lays 4-bit weights out for a kernel in bfloat16: right for a
    bfloat16 model, and for matrices that this layout fits.
    """
    modules: Iterable[Any] = model.modules()
    for module in modules:
        if getattr(module, "support_avx512bf16_for_cpu", False):
            fits = module.out_features % CPU_ROWS == 0 and module.in_features % BLOCK == 0
            native = module.compute_dtype == torch.bfloat16
            module.support_avx512bf16_for_cpu = fits and native


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A product of these weights [out, in]."""
    out, width = weight.shape
    layer = nn.Linear(width, out, bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
