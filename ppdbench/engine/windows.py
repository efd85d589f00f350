"""The sliding windows of a model's layers, found in the masks that its own code makes.

A config may name a window that its family's code ignores, and code may apply one that other keys
of the config seem to switch off. What counts is the mask that a layer is handed. So the body is
asked for the masks of four tokens, with a window of two of them and with layers that compute
nothing: a layer that cannot see the first token from the last one has a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

TOKENS, NARROW = 4, 2
EAGER = "eager"  # the attention whose masks are always written out


def windows_of(body: nn.Module, layers: Sequence[nn.Module]) -> tuple[int | None, ...] | None:
    """Return the window of each layer; None where the body cannot be asked for its masks."""
    config: Any = body.config
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int):
        return (None,) * len(layers)
    device = next(body.parameters()).device
    if device.type == "meta":
        return None
    try:
        with torch.no_grad(), _narrowed(config), _only_seen(layers) as masks:
            body(input_ids=torch.arange(TOKENS, device=device)[None], use_cache=False)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
        return None  # it does more with what layers give than hand it on
    if len(masks) != len(layers):
        return None
    return tuple(window if _hides_the_first(masks[i]) else None for i in range(len(layers)))


@contextmanager
def _narrowed(config: Any) -> Iterator[None]:
    """Let masks be made as for a narrow window, and be written out."""
    window, attention = config.sliding_window, config._attn_implementation
    config.sliding_window, config._attn_implementation = NARROW, EAGER
    try:
        yield
    finally:
        config.sliding_window, config._attn_implementation = window, attention


@contextmanager
def _only_seen(layers: Sequence[nn.Module]) -> Iterator[dict[int, Tensor | None]]:
    """Let layers give back what they got; by their number, the mask that each was handed."""
    masks: dict[int, Tensor | None] = {}
    before = [vars(layer).get("forward") for layer in layers]

    def pass_on(number: int, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        given = (x for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        masks[number] = next((x for x in given if _is_mask(x)), None)
        return hidden

    for number, layer in enumerate(layers):
        vars(layer)["forward"] = lambda *args, n=number, **kwargs: pass_on(n, *args, **kwargs)
    try:
        yield masks
    finally:
        for layer, forward in zip(layers, before, strict=True):
            if forward is None:
                del vars(layer)["forward"]
            else:
                vars(layer)["forward"] = forward


def _is_mask(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[-2:] == (TOKENS, TOKENS)


def _hides_the_first(mask: Tensor | None) -> bool:
    """True if the last token does not see the first one."""
    if mask is None:
        return False
    seen = mask[0, 0, -1, 0]
    return not bool(seen if mask.dtype == torch.bool else seen == 0)
