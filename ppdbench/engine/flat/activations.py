"""The activations that operations stand for, each found out by what it computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from ppdbench.engine.flat.understood import NotUnderstoodError, described_by

SPARSITY = "activation_sparsity"  # the share of gates that an MLP drops
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": fn.silu,
    "gelu_tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "gelu": fn.gelu,
    "relu": fn.relu,
    "relu2": lambda x: fn.relu(x).square(),
    "sigmoid": torch.sigmoid,
    "softplus": fn.softplus,
}


@torch.no_grad()
def xielu_of(module: Callable[[Tensor], Tensor]) -> tuple[float, float, float] | None:
    """The factors of a trained activation that is a square above zero, as `Program.xielu` takes it.

    None of any other, those without factors of their own included.
    """
    if not isinstance(module, nn.Module) or not any(True for _ in module.parameters()):
        return None
    one, two, under = map(float, module(torch.tensor([1.0, 2.0, -4.0])))
    above = two / 2 - one
    slope = one - above
    below = (under + 4 * slope) / (math.expm1(-4) + 4)
    x = torch.linspace(-6.0, 6.0, 193)
    bent = torch.where(x > 0, above * x * x, below * (torch.expm1(x.clamp(max=0)) - x))
    known = torch.allclose(module(x), bent + slope * x, rtol=1e-5, atol=1e-5)
    return (above, below, slope) if known else None


def sparsity_of(block: nn.Module) -> float | None:
    """The deviations above the mean of a row below which an MLP drops its gates, if it does."""
    share = getattr(block, SPARSITY, 0.0)
    if not share:
        return None
    usual: Any = torch.distributions.Normal(0, 1)
    return float(usual.icdf(torch.tensor(share)))


def activation_of(module: Callable[[Tensor], Tensor]) -> str:
    """Name an activation by what it computes."""
    described = described_by(module) if isinstance(module, nn.Module) else None
    if described is None:
        return _asked(module)
    if described not in _KNOWN:
        _KNOWN[described] = _asked(module)
    return _KNOWN[described]


# Names of activations, by all that tells one from another.
_KNOWN: dict[object, str] = {}


def _asked(module: Callable[[Tensor], Tensor]) -> str:
    """Name an activation by what it gives."""
    # Large ones, too: some are the same as others up to a limit.
    x = torch.cat([torch.linspace(-6.0, 6.0, 193), torch.tensor([-50.0, -12.0, 12.0, 50.0])])
    given = module(x)
    for name, known in ACTIVATIONS.items():
        if torch.allclose(given, known(x), rtol=1e-6, atol=1e-5):
            return name
    raise NotUnderstoodError(f"the activation {type(module).__name__} is not known")
