"""Modules that are not where tokens enter the model: on another device, or left in their files.

accelerate's hooks, which `from_pretrained` puts on a model with a device map, copy and check on
every call of every submodule. The engine takes them off. It moves hidden states itself, once
where the device changes, and reads what is on disk layer by layer, memory-mapped, for each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map_only

from ppdbench.errors import DataError


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """A tensor's place in a file, and the type it is wanted in."""

    file: str
    name: str
    dtype: torch.dtype


class StoredWeights:
    """The weights that no device has room for, by their full names."""

    def __init__(self, places: Mapping[str, TensorLocation]) -> None:
        self._places = dict(places)

    @classmethod
    def of(cls, model: nn.Module) -> StoredWeights:
        """Take over what `from_pretrained` left on disk; the model calls its modules again."""
        from accelerate.hooks import remove_hook_from_submodules

        index = _offload_index(model)
        remove_hook_from_submodules(model)
        return cls(
            {
                name: TensorLocation(
                    about["safetensors_file"], about["weight_name"], _dtype(about["dtype"])
                )
                for name, about in index.items()
            }
        )

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def holds(self, module: nn.Module, prefix: str) -> bool:
        """True if weights of `module`, whose full name is `prefix`, are on disk."""
        return bool(self._places) and any(n in self for n in _full_names(module, prefix).values())

    def read(self, names: Iterable[str], device: torch.device) -> dict[str, Tensor]:
        """Read these tensors to a device; on the CPU and in their own type, pages of the file."""
        files: dict[str, list[str]] = {}
        for name in names:
            files.setdefault(self._places[name].file, []).append(name)
        held: dict[str, Tensor] = {}
        for file, wanted in files.items():
            held |= self._read_file(file, wanted, device)
        return held

    def _read_file(self, file: str, names: list[str], device: torch.device) -> dict[str, Tensor]:
        from safetensors import SafetensorError, safe_open

        places = {name: self._places[name] for name in names}
        try:
            with safe_open(file, framework="pt") as stored:
                return {
                    name: stored.get_tensor(place.name).to(device, place.dtype)
                    for name, place in places.items()
                }
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"{file} cannot be read any more, and layers are on disk there: {error}"
            ) from error

    def parameters(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters of a model, those on disk read one after another."""
        cpu = torch.device("cpu")
        for name, parameter in model.named_parameters():
            yield name, self.read([name], cpu)[name] if name in self else parameter


class FromDisk(nn.Module):
    """A module that reads its weights for each call and lets go of them afterwards."""

    def __init__(
        self, module: nn.Module, prefix: str, stored: StoredWeights, device: torch.device
    ) -> None:
        super().__init__()
        self.module, self._stored, self._device = module, stored, device
        full = _full_names(module, prefix)
        self._names = {name: path for name, path in full.items() if path in stored}

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the module on these arguments."""
        read = self._stored.read(self._names.values(), self._device)
        held = {name: read[path] for name, path in self._names.items()}
        return functional_call(self.module, held, arguments, named)


class OnOtherDevice(nn.Module):
    """A module that stands on another device: arguments go there, what it makes comes home."""

    def __init__(self, module: nn.Module, there: torch.device, home: torch.device) -> None:
        super().__init__()
        self.module, self._there, self._home = module, there, home

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the module on these arguments."""
        sent = tree_map_only(Tensor, lambda tensor: tensor.to(self._there), (arguments, named))
        out: Tensor = self.module(*sent[0], **sent[1])
        return out.to(self._home)


NOTHING = StoredWeights({})


def at_home(module: nn.Module, prefix: str, stored: StoredWeights, home: torch.device) -> nn.Module:
    """`module` as it can be called with tensors at `home`, wherever its weights are."""
    if isinstance(module, nn.ModuleList):
        return nn.ModuleList(
            at_home(each, f"{prefix}.{i}", stored, home) for i, each in enumerate(module)
        )
    if stored.holds(module, prefix):
        return FromDisk(module, prefix, stored, home)
    there = next((p.device for p in module.parameters()), None)
    if there is None:
        return module.to(home)  # nothing but tables that are computed
    return module if there == home else OnOtherDevice(module, there, home)


def _full_names(module: nn.Module, prefix: str) -> dict[str, str]:
    named = chain(module.named_parameters(), module.named_buffers())
    return {name: f"{prefix}.{name}" for name, _ in named}


def _offload_index(model: nn.Module) -> Mapping[str, Any]:
    """Return the index that accelerate's hooks read by: name -> file, name in it, type."""
    for module in model.modules():
        weights = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
        index: Mapping[str, Any] | None = getattr(getattr(weights, "dataset", None), "index", None)
        if index is not None:
            return index
    return {}


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
