"""A GPU that is not there: tensors that say they lie on `cuda:N` and compute on the CPU.

As with a real one, what has tensors on two devices is an error, and numpy sees none of it. So
code that forgets to say where a tensor goes fails here, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

CPU = torch.device("cpu")
# What takes tensors from one device to another.
COPIES = {Tensor.to, Tensor.cpu, Tensor.copy_, Tensor.__setitem__}
# Properties of tensors, as a mode is told of them.
DEVICE, IS_CUDA, IS_CPU = (
    getattr(Tensor, name).__get__ for name in ("device", "is_cuda", "is_cpu")
)


class There(Tensor):
    """A tensor on the pretended GPU; `here` is what it computes with."""

    here: Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, here: Tensor, place: torch.device) -> There:
        shape: Any = (cls, here.shape)
        how = {"strides": here.stride(), "dtype": here.dtype, "device": place}
        made: There = Tensor._make_wrapper_subclass(*shape, **how)  # type: ignore[attr-defined]
        made.here, made.place = here, place
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return There, (self.here, self.place)

    def __deepcopy__(self, memo: dict[int, Any]) -> There:
        return There(self.here.clone(), self.place)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})


class Pretending(TorchFunctionMode):
    """Every function that meets such a tensor, or is told to make one."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _call(func, args, kwargs or {})


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given: list[Tensor] = []
    for thing in (*args, *kwargs.values()):
        _gather(thing, given)
    if func == DEVICE:
        return given[0].place if isinstance(given[0], There) else func(*args)
    if func is Tensor.numpy and isinstance(given[0], There):
        raise TypeError("numpy reads nothing from a GPU; use .cpu() first")
    if func in (IS_CUDA, IS_CPU):
        is_there = isinstance(given[0], There)
        return func == IS_CUDA if is_there else func(*args)
    if func is Tensor.pin_memory:
        return given[0]
    if func is torch._has_compatible_shallow_copy_type:
        return False
    told = _told(func, args, kwargs)
    theirs = [t for t in given if isinstance(t, There)]
    if not theirs and (told is None or told == CPU):
        return func(*args, **kwargs)
    _check_together(func, given)
    place = told or (theirs[0].place if theirs else CPU)
    if func is Tensor.copy_ or func is Tensor.__setitem__:
        place = args[0].place if isinstance(args[0], There) else CPU
    out = func(*_changed(args, _inside), **_changed(kwargs, _inside))
    if place == CPU:
        return out
    same = {id(t.here): t for t in theirs}  # what is changed in place stays what it is

    def outside(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return same[id(leaf)] if id(leaf) in same else There(leaf, place)

    return _changed(out, outside)


def _gather(thing: Any, found: list[Tensor]) -> None:
    """Add the tensors in a thing, in order."""
    if isinstance(thing, Tensor):
        found.append(thing)
    elif isinstance(thing, tuple | list):
        for one in thing:
            _gather(one, found)
    elif isinstance(thing, dict):
        for one in thing.values():
            _gather(one, found)


def _changed(thing: Any, change: Callable[[Any], Any]) -> Any:
    """A thing with each of its leaves changed; quicker than what torch has for plain ones."""
    kind = type(thing)
    if kind is tuple or kind is list:
        return kind([_changed(one, change) for one in thing])
    if kind is dict:
        return {name: _changed(one, change) for name, one in thing.items()}
    # Results with names.
    return tree_map(change, thing) if isinstance(thing, tuple) else change(thing)


def _check_together(func: Any, given: list[Tensor]) -> None:
    """Of several tensors all lie on one device; single numbers may come from the CPU."""
    places = {str(t.place) if isinstance(t, There) else "cpu" for t in given if t.dim()}
    if len(places) > 1 and func not in COPIES:
        raise RuntimeError(f"{func.__name__}: tensors on {' and '.join(sorted(places))}")


def _inside(thing: Any) -> Any:
    if isinstance(thing, There):
        return thing.here
    return CPU if _as_place(thing) is not None else thing


def _told(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call names, if it names one."""
    if func is Tensor.cpu:
        return CPU
    words = [kwargs.get("device"), *(args[1:] if func is Tensor.to else ())]
    return next((place for word in words if (place := _as_place(word)) is not None), None)


def _as_place(word: Any) -> torch.device | None:
    if isinstance(word, torch.device) or (isinstance(word, str) and word[:4] in ("cuda", "cpu")):
        place = torch.device(word)
        if place.type == "cuda":
            return torch.device("cuda", place.index or 0)
        return CPU if place.type == "cpu" else None  # tensors on `meta` have no numbers
    return None


@contextmanager
def gpus(monkeypatch: pytest.MonkeyPatch, count: int = 1) -> Iterator[None]:
    """So many GPUs, for as long as this lasts."""
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "synchronize": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 1 << 20,
        "reset_peak_memory_stats": lambda device=None: None,
        "mem_get_info": lambda device=None: (256 << 20, 10 << 30),
        "memory_reserved": lambda device=None: 1 << 30,
        "is_bf16_supported": lambda including_emulation=True: True,
        "get_device_properties": lambda device=None: _Properties(),
    }
    with contextlib.ExitStack() as stack:
        context = stack.enter_context(monkeypatch.context())
        for name, answer in answers.items():
            context.setattr(torch.cuda, name, answer)
        context.setattr(torch.nn.Module, "to", _tied_again(torch.nn.Module.to))
        stack.enter_context(Pretending())
        yield


def _tied_again(to: Any) -> Any:
    """Parameters change their class on the way, and one that two modules share is made twice."""

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        to(module, *args, **kwargs)
        if hasattr(module, "tie_weights"):
            module.tie_weights()
        return module

    return moved


class _Properties:
    name, major, minor, total_memory = "Pretended GPU", 8, 0, 10 << 30
