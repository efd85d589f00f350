"""The norms of a layer: where they stand, and what each of them computes.

Where they stand is said by their names together. What one computes is found out by asking it:
some weigh less one, some round before they weigh, some have no weights at all.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ppdbench.engine.flat.understood import NotUnderstoodError, described_by

if TYPE_CHECKING:
    from ppdbench.engine.flat.ops import Buffer, Program

# Rows that a norm is asked for, by their size: of small ones epsilon is the most part.
PROBES = (1.0, 1e-1, 1e-2, 1e-3)
USUAL = 1e-5  # epsilon, where a norm does not say it
INPUT_NORM = "post_per_layer_input_norm"  # of what a layer makes of an input of its own


@dataclass(frozen=True, slots=True)
class Norms:
    """Names of the norms around a layer's blocks; None where there is none."""

    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None

    @property
    def names(self) -> set[str]:
        """The names of the norms that a layer has."""
        found = self.before_attention, self.after_attention, self.before_mlp, self.after_mlp
        return {name for name in found if name is not None}

    @property
    def shared(self) -> bool:
        """True if both blocks read what one norm gives, side by side."""
        return self.before_mlp is not None and self.before_mlp == self.before_attention

    @property
    def beside(self) -> bool:
        """True if their names say that the blocks stand side by side."""
        return self.shared or self == OF_BLOCKS_BESIDE


OF_BLOCKS_BESIDE = Norms(before_attention="ln_attn", before_mlp="ln_mlp")
LAYOUTS = (
    OF_BLOCKS_BESIDE,
    Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm"),
    Norms(before_attention="input_layernorm", before_mlp="pre_feedforward_layernorm"),
    Norms(before_attention="input_layernorm", before_mlp="pre_ff_layernorm"),
    Norms(before_attention="operator_norm", before_mlp="ffn_norm"),
    Norms("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm"),
    Norms(before_attention="attention_layernorm", before_mlp="feedforward_layernorm"),
    Norms(after_attention="post_attention_layernorm", after_mlp="post_feedforward_layernorm"),
    Norms(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
    Norms(
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    ),
    Norms("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
    Norms("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"),
    Norms(before_attention="input_layernorm", before_mlp="input_layernorm"),
    Norms(before_attention="ln_1", before_mlp="ln_1"),
    Norms(before_attention="ln_1", before_mlp="ln_2"),
    Norms(before_attention="norm_1", before_mlp="norm_2"),
    Norms(before_attention="attn_norm", before_mlp="mlp_norm"),
    Norms(before_mlp="mlp_norm"),
    Norms(before_attention="self_attn_layer_norm", before_mlp="final_layer_norm"),
)


def norms_of(layer: nn.Module) -> Norms:
    """Find which norms a layer has around its blocks, and by that where they stand."""
    there = {name for name, part in layer.named_children() if _is_norm(part)} - {INPUT_NORM}
    for norms in LAYOUTS:
        if norms.names == there:
            return norms
    raise NotUnderstoodError(f"it has the norms {', '.join(sorted(there)) or 'none'}")


def _is_norm(part: nn.Module) -> bool:
    """True for a module of one vector of weights, perhaps with a bias, or called a norm."""
    weights = dict(part.named_parameters())
    if not weights:
        return "norm" in type(part).__name__.lower()
    return weights.keys() in ({"weight"}, {"weight", "bias"}) and weights["weight"].dim() == 1


@dataclass(frozen=True, slots=True)
class WayToNorm:
    """One way to norm rows."""

    centred: bool
    """Rows less their mean, over their deviation; else over their root mean square."""
    plus_one: bool = False
    round_first: bool = False
    """Numbers are rounded before they are multiplied by weights."""

    def of(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Rows, normed this way, in the type of the weights."""
        wide = x.float()
        if self.centred:
            wide = wide - wide.mean(-1, keepdim=True)
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        if self.round_first:
            scaled = scaled.to(weight.dtype).float()
        weighed = scaled * (1.0 + weight.float() if self.plus_one else weight.float())
        return (weighed if bias is None else weighed + bias.float()).to(weight.dtype)


KINDS = tuple(
    WayToNorm(centred, plus_one, round_first)
    for centred, plus_one, round_first in itertools.product((False, True), repeat=3)
    if not (centred and round_first)
)


def write_norm(
    program: Program, norm: nn.Module, source: Buffer, target: Buffer, each: int | None = None
) -> None:
    """Norm the rows of a buffer, or every head of them where the norm is of heads.

    A norm without weights does not say how wide it is: it norms every `each` numbers.
    """
    lone = list(getattr(norm, "norms", [norm]))  # some have a norm for each head
    kind, eps = _kind(lone[0], each or source.width)
    weights = [w for part in lone for w in _weights(part, each or source.width)]
    width = len(weights[0][0])
    if not kind.centred and len(weights) == 1:
        program.rms_norm(
            *(source, target, weights[0][0], eps),
            plus_one=kind.plus_one,
            round_first=kind.round_first,
            each=None if width == source.width else width,
        )
        return
    if not kind.centred:
        raise NotUnderstoodError(f"{type(norm).__name__} weighs every head in its own way")
    heads = zip(range(0, source.width, width), itertools.cycle(weights), strict=False)
    for first, (weight, bias) in heads:
        if kind.plus_one:
            weight = weight + 1.0
        there = source.part(first, width), target.part(first, width)
        program.layer_norm(*there, weight, bias, eps)


def _weights(norm: nn.Module, width: int) -> list[tuple[Tensor, Tensor | None]]:
    """The weights and biases of a norm, one pair for each head that has its own."""
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if weight is None:
        return [(torch.ones(width), None)]
    rows = weight.data.reshape(-1, weight.shape[-1])
    if bias is None:
        return [(row, None) for row in rows]
    return list(zip(rows, bias.data.reshape(rows.shape), strict=True))


# What norms compute, by all that tells one from another but the numbers of their weights.
_KNOWN: dict[tuple[object, int], WayToNorm] = {}


@torch.no_grad()
def _kind(norm: nn.Module, width: int) -> tuple[WayToNorm, float]:
    """Find what a norm computes, and its epsilon."""
    own: Any = norm
    eps = float(getattr(own, "variance_epsilon", getattr(own, "eps", USUAL)))
    described = described_by(norm)
    if (known := _KNOWN.get((described, width))) is not None:
        return known, eps
    weight, bias = getattr(norm, "weight", None), getattr(norm, "bias", None)
    weight = torch.ones(width) if weight is None else weight.data
    x = _probes(weight.shape, weight.dtype)
    found = norm(x)
    # Where nothing is narrower than what it is computed in, it is rounded but once.
    kinds = [k for k in KINDS if weight.dtype != torch.float32 or not k.round_first]
    made = {kind: kind.of(x, weight, bias, eps) for kind in kinds}
    off = {kind: _distance(found, one) for kind, one in made.items()}
    kind = min(kinds, key=off.__getitem__)
    if off[kind] > (1e-5 if weight.dtype == torch.float32 else 1e-2):
        raise NotUnderstoodError(f"the norm {type(norm).__name__} is not known")
    # Its weights may leave open which way it is: zeros do.
    fitting = [k for k in kinds if torch.equal(found, made[k])]
    if described is not None and len(fitting) == 1:
        _KNOWN[described, width] = kind
    return kind, eps


@lru_cache(maxsize=8)
def _probes(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Rows of several sizes, drawn."""
    drawn = torch.Generator().manual_seed(0)
    return torch.stack([size * torch.randn(shape, generator=drawn) for size in PROBES]).to(dtype)


def _distance(found: Tensor, expected: Tensor) -> float:
    scale = float(expected.float().abs().max()) or 1.0
    return float((found.float() - expected.float()).abs().max()) / scale
