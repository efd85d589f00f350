"""The memory of a method beyond the model: its own weights, caches and buffers, in bytes.

Counted from the tensors that a prepared method holds, not from what the process has allocated:
that says the same on every device, and several methods in one process do not blur it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.weights import is_made_of_others, parts

# Neither holds tensors of a method; following them would lead through the whole program.
_OPAQUE = (str, bytes, int, float, complex, type, ModuleType, FunctionType, BuiltinFunctionType)


def own_bytes(holder: object, *others: object) -> int:
    """Bytes of all tensors reachable from `holder`, less those that `others` hold as well."""
    shared = {address for address, _ in storages(*others)}
    return sum(size for address, size in storages(holder) if address not in shared)


def storages(*holders: object) -> set[tuple[int, int]]:
    """Address and size of the memory behind every tensor that can be reached."""
    return {_storage(tensor) for tensor in _tensors(*holders)}


def _storage(tensor: Tensor) -> tuple[int, int]:
    if tensor.layout != torch.strided:  # laid out for a kernel: one tensor, one memory
        return id(tensor), tensor.numel() * tensor.element_size()
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _tensors(*holders: object) -> Iterator[Tensor]:
    seen: set[int] = set()
    waiting = list(holders)
    while waiting:
        thing = waiting.pop()
        if thing is None or isinstance(thing, _OPAQUE) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if is_made_of_others(thing):
            waiting += parts(thing)
        elif isinstance(thing, Tensor):
            if thing.device.type != "meta" and thing.numel():
                yield thing
        else:
            waiting += _parts(thing)


def _parts(thing: object) -> list[Any]:
    if isinstance(thing, dict | MappingProxyType):  # other mappings may read files
        return list(thing.values())
    if isinstance(thing, list | tuple | set | frozenset):
        # Token ids and counts: thousands of numbers, no tensor among them.
        return [] if all(isinstance(part, _OPAQUE) for part in thing) else list(thing)
    if isinstance(thing, MethodType):
        return [thing.__self__]
    slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
    parts = [getattr(thing, name, None) for name in slots if not name.startswith("__")]
    return parts + list(getattr(thing, "__dict__", {}).values())
