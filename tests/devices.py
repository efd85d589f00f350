"""Devices that are not there: tensors that refuse to meet those of another one.

They compute on the CPU. An operation over tensors of two devices raises, as it would on
hardware, so that passes over several devices can be tested where there is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.staged import StagedModel
from tests.families import stock_model

CPU = torch.device("cpu")
# A type that every build of torch knows and that nobody allocates anything on.
FIRST, SECOND = torch.device("meta:1"), torch.device("meta:2")
# Of the layers of a tiny model.
ORDER = (CPU, FIRST, FIRST, SECOND)


class On(Tensor):
    """A tensor that says it is on another device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor, device: torch.device) -> On:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=device,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})


class _Devices(TorchDispatchMode):
    """Sees what makes tensors on a device, too."""

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(function, args, kwargs or {})


@contextmanager
def devices() -> Iterator[None]:
    """Several devices, for a while."""
    with _Devices():
        yield


def _run(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    # A number may come from the host wherever the others are, and copy_ is what moves.
    found = {t.device for t in tensors if t.dim() or t.device != CPU}
    copies = function is torch.ops.aten.copy_.default
    if len(found) > 1 and not copies:
        raise RuntimeError(f"{function} over tensors on {', '.join(sorted(map(str, found)))}")
    asked = kwargs.get("device")
    here = tensors[0].device if copies else next(iter(found), CPU)
    where = here if asked is None else torch.device(asked)
    args, kwargs = tree_map_only(On, lambda tensor: tensor.held, (args, kwargs))
    if asked is not None:
        kwargs = {**kwargs, "device": CPU}
    out = function(*args, **kwargs)
    return out if where == CPU else tree_map_only(Tensor, lambda tensor: On(tensor, where), out)


@functools.cache
def split(name: str) -> StagedModel:
    """A tiny model over three devices, its final norm and its head among them."""
    model = stock_model(name)
    adapter = Adapter(model)
    for layer, device in zip(adapter.layers, ORDER, strict=True):
        _move(layer, device)
    if adapter.final_norm is not None:
        _move(adapter.final_norm, SECOND)
    if not adapter.is_tied():
        _move(adapter.head, FIRST)
    return StagedModel(model, packed=False)


def _move(part: nn.Module, device: torch.device) -> None:
    for module in part.modules():
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                if tensor is not None:
                    held[key] = nn.Parameter(tensor.detach().to(device), requires_grad=False)
