"""Placement: the device of each layer, where a model is to be spread over several.

accelerate distributes the layers (`auto`, `balanced`, `sequential`): GPUs first, then the CPU,
then the disk. It is told of memory less what must stay free for keys and values, which lie with
their layer. Embedding, final norm and head stay together on the first device, where tokens
enter and leave. A file in transformers' own format may put anything anywhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import nn

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.footprint import Footprint, check_fits, gb, measure, stored_scheme
from ppdbench.engine.quantized import SCHEMES
from ppdbench.errors import ConfigError

if TYPE_CHECKING:
    from ppdbench.engine.loading import ModelSpec

MODES = ("auto", "balanced", "sequential")
DISK = "disk"
SHORTER = "lower --max-new-tokens, or use shorter prompts or --dtype bfloat16"
# As accelerate and transformers write it: the number of a GPU, `cpu` or `disk`.
Place = int | str
DeviceMap = dict[str, Place]


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Free bytes of each place, in the order in which places are filled."""

    free: Mapping[Place, int]

    @classmethod
    def found(cls, device: torch.device, limits: str | None = None) -> FreeMemory:
        """Find the free memory: of all GPUs, unless `device` is one of them or the CPU."""
        free: dict[Place, int] = {}
        if device.type == "cuda":
            one = device.index
            for gpu in range(torch.cuda.device_count()) if one is None else [one]:
                free[gpu] = int(torch.cuda.mem_get_info(gpu)[0])
        free["cpu"] = int(psutil.virtual_memory().available)
        return cls({**free, **_limits(limits, free)} if limits else free)

    @property
    def home(self) -> Place:
        """The place where tokens enter."""
        return next(iter(self.free))

    def for_layers(self, need: Footprint) -> dict[Place, int]:
        """Return the bytes that layers' weights may take: less what stays at home and caches."""
        left = {**self.free, self.home: self.free[self.home] - need.at_home}
        if left[self.home] < 0:
            raise ConfigError(
                f"embedding, head and passes of {need.context} tokens need {gb(need.at_home)}, "
                f"{name_of(self.home)} has {gb(self.free[self.home])}; {SHORTER}"
            )
        share = 1 / (1 + need.kept_per_weight)
        return {place: int(size * share) for place, size in left.items()}


def _limits(text: str, free: Mapping[Place, int]) -> dict[Place, int]:
    """Read limits such as `cuda:0=20GB,cpu=64GB` as bytes."""
    from accelerate.utils import convert_file_size_to_int

    limits: dict[Place, int] = {}
    for part in text.split(","):
        name, _, size = (word.strip() for word in part.partition("="))
        place = _place(name, f"--max-memory {part}")
        if place not in free:
            known = ", ".join(map(name_of, free))
            raise ConfigError(f"--max-memory {part}: there is no {name} here; use {known}")
        try:
            limits[place] = int(convert_file_size_to_int(size))
        except ValueError:
            raise ConfigError(f"--max-memory {part}: use sizes such as 20GB or 500MiB") from None
    return limits


@dataclass(frozen=True, slots=True)
class Placement:
    """A model's need, the memory there is, and where its parts go if not all to one device."""

    need: Footprint
    memory: FreeMemory
    places: DeviceMap | None
    held: Mapping[Place, int]  # bytes that each place will hold


def place_parts(spec: ModelSpec, model: Any, device: torch.device, context: int) -> Placement:
    """The arithmetic for a model on the meta device and sequences of `context` tokens."""
    need = measure(model, device, context, spec.quantize or stored_scheme(model.config))
    memory = FreeMemory.found(device, spec.max_memory)
    if spec.device_map is None:
        return Placement(need, memory, None, {memory.home: need.total})
    adapter = Adapter(model)
    places = device_map(spec.device_map, adapter, need, memory)
    return Placement(need, memory, places, spread(places, adapter, need))


def device_map(asked: str, adapter: Adapter, need: Footprint, memory: FreeMemory) -> DeviceMap:
    """Assign every module that has weights to a device, the layers each as a whole."""
    if asked in MODES:
        return _distributed(asked, adapter, need, memory)
    return _from_file(asked, adapter, memory)


def refuse_too_large(spec: ModelSpec, placement: Placement) -> None:
    """One line where a place has no room for what would go there, with what would help."""
    memory, need = placement.memory, placement.need
    if placement.places is None:
        home = memory.home
        ways = [
            *(["--dtype bfloat16"] if spec.dtype in ("auto", "float32") else []),
            *([f"--quantize {' or '.join(SCHEMES)}"] if spec.quantize is None else []),
            *(["--device-map auto"] if spec.quantize is None else []),
            *(["shorter sequences"] if need.kept + need.passes > need.total / 4 else []),
        ]
        check_fits(need, name_of(home), memory.free[home], ", ".join(ways) or "a smaller model")
        return
    if spec.is_synthetic and DISK in placement.held:
        raise ConfigError(
            f"{spec.name} needs {gb(need.total)}, which is more than there is room for; synthetic "
            "weights have no files to stay in: use fewer layers or --dtype bfloat16"
        )
    if spec.is_gguf and DISK in placement.held:
        raise ConfigError(
            f"{spec.name} needs {gb(need.total)}, which is more than there is room for; weights "
            "of a GGUF file are dequantised and cannot stay in it: use --dtype bfloat16"
        )
    for place, size in placement.held.items():
        if place != DISK and size > memory.free[place]:
            raise ConfigError(
                f"--device-map {spec.device_map} puts {gb(size)} on {name_of(place)}, which has "
                f"{gb(memory.free[place])}: use --device-map auto or move layers elsewhere"
            )


def spread(places: DeviceMap, adapter: Adapter, need: Footprint) -> dict[Place, int]:
    """Bytes that each place holds in the end; of what stays on disk, those of the files."""
    held: Counter[Place] = Counter()
    home = places[adapter.embedding_path()]
    held[home] += need.at_home
    for i, size in enumerate(need.layers):
        place = places[adapter.layer_path(i)]
        held[place] += size
        held[home if place == DISK else place] += need.kept // len(need.layers)
    return dict(held)


def check_asked(asked: str) -> None:
    """Refuse what is neither a mode nor a file."""
    if asked not in MODES and not Path(asked).is_file():
        raise ConfigError(
            f"--device-map {asked}: use {', '.join(MODES)} or a JSON file that maps modules to "
            "devices"
        )


def name_of(place: Place) -> str:
    """A place as torch writes it."""
    return f"cuda:{place}" if isinstance(place, int) else place


# Distributed by accelerate


def _distributed(mode: str, adapter: Adapter, need: Footprint, memory: FreeMemory) -> DeviceMap:
    """Fill the places as accelerate does; the first holds the cache of layers on disk, too."""
    home, rooms = memory.home, memory.for_layers(need)
    around = dict.fromkeys(_around(adapter), home)
    while True:
        layers = _filled(mode, adapter, need, rooms, home)
        found = {**around, **{adapter.layer_path(i): place for i, place in enumerate(layers)}}
        excess = spread(found, adapter, need)[home] - memory.free[home]
        if excess <= 0:
            return found
        if rooms[home] == 0:
            raise ConfigError(
                f"keys and values of {need.context} tokens need {gb(need.kept)}, too much for "
                f"{name_of(home)} with {gb(memory.free[home])}, where layers on disk keep theirs; "
                f"{SHORTER}"
            )
        rooms[home] = max(0, rooms[home] - excess)


def _filled(
    mode: str, adapter: Adapter, need: Footprint, rooms: dict[Place, int], home: Place
) -> list[Place]:
    """A place for each layer, none of which takes more weights than there is room for."""
    from accelerate.utils import get_balanced_memory, infer_auto_device_map

    layers = nn.ModuleList(adapter.layers)
    if mode == "auto" and sum(need.layers) <= rooms[home]:
        return [home] * len(layers)
    whole: Any = [type(adapter.layers[0]).__name__]
    limits: Any = dict(rooms)
    if mode != "sequential":
        limits = get_balanced_memory(layers, limits, no_split_module_classes=whole)
    found = infer_auto_device_map(layers, limits, no_split_module_classes=whole, clean_result=False)
    return [found[str(i)] for i in range(len(layers))]


def _around(adapter: Adapter) -> list[str]:
    """List all modules with weights or tables of their own that belong to no layer."""
    inside = tuple(f"{adapter.layer_path(i)}." for i in range(len(adapter.layers)))
    named: Iterable[tuple[str, nn.Module]] = adapter.model.named_modules()
    return [
        name
        for name, module in named
        if any(t is not None for t in (*module._parameters.values(), *module._buffers.values()))
        and not f"{name}.".startswith(inside)
    ]


# As a file says


def _from_file(path: str, adapter: Adapter, memory: FreeMemory) -> DeviceMap:
    asked = _read(path)
    known = dict(adapter.model.named_modules())
    layers = [adapter.layer_path(i) for i in range(len(adapter.layers))]
    for name, place in asked.items():
        if name not in known:
            raise ConfigError(
                f"{path}: the model has no module {name!r}; layers are {layers[0]} and so on"
            )
        if place not in (*memory.free, DISK):
            there = ", ".join([*map(name_of, memory.free), DISK])
            raise ConfigError(f"{path}: no {name_of(place)} for {name or 'the model'}; use {there}")
        whole = next((layer for layer in layers if name.startswith(f"{layer}.")), None)
        if whole is not None and place != _of(asked, whole, path):
            raise ConfigError(f"{path}: {name} parts from {whole}; a layer goes as a whole")
    found = {name: _of(asked, name, path) for name in (*_around(adapter), *layers)}
    embedding, head = adapter.embedding_path(), adapter.head_path()
    if found[embedding] == DISK:
        raise ConfigError(f"{path}: {embedding} on disk; tokens enter there, use a device")
    if adapter.is_tied():
        found[head] = found[embedding]
    return found


def _of(places: Mapping[str, Place], name: str, path: str) -> Place:
    """The place of a module: its own, or that of what it is a part of."""
    part = name
    while part not in places:
        if not part:
            raise ConfigError(f"{path} does not say where {name} goes")
        part = part.rpartition(".")[0]
    return places[part]


def _read(path: str) -> DeviceMap:
    try:
        content = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no JSON file: {error}") from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f'{path}: expected modules and devices, as {{"model.layers.0": "cpu"}}')
    return {name: _place(place, f"{path}: {name}") for name, place in content.items()}


def _place(text: object, where: str) -> Place:
    """`0`, `cuda`, `cuda:1`, `cpu` or `disk` to what accelerate calls it."""
    if text in ("cpu", DISK):
        return str(text)
    number = "0" if text == "cuda" else str(text).removeprefix("cuda:")
    if isinstance(text, bool) or not number.isdigit():
        raise ConfigError(f"{where}: {text!r} is no device; use cuda:N, cpu or disk")
    return int(number)
