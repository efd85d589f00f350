"""The memory that a run would take, from configurations and file sizes, before anything loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdbench.bench.runner import Choice
from ppdbench.engine.loading import ModelSpec, reckon
from ppdbench.engine.placement import Place, Placement, name_of
from ppdbench.files.resources import SHIPPED, trained_part

TENSORS = (".safetensors", ".pt", ".bin", ".npy")


@dataclass(frozen=True, slots=True)
class Needs:
    """A model, where its parts go, and what methods hold besides."""

    model: str
    placement: Placement
    methods: dict[str, int]

    @property
    def held(self) -> dict[Place, int]:
        """Bytes of each place in the end; what methods hold lies where tokens enter."""
        home = self.placement.memory.home
        held = dict(self.placement.held)
        return {**held, home: held.get(home, 0) + sum(self.methods.values())}

    @property
    def fits(self) -> bool:
        """True if every place has room for what would go there."""
        free = self.placement.memory.free
        return all(size <= free[place] for place, size in self.held.items() if place in free)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        need, memory = self.placement.need, self.placement.memory
        return {
            "model": self.model,
            "context": need.context,
            "layers_bytes": sum(need.layers),
            "embedding_and_head_bytes": need.around,
            "packed_head_bytes": need.packed,
            "turned_keys_bytes": need.turned,
            "cache_bytes": need.cache,
            "states_bytes": need.states,
            "passes_bytes": need.passes,
            "methods_bytes": self.methods,
            "total_bytes": need.total + sum(self.methods.values()),
            "free_bytes": {name_of(place): size for place, size in memory.free.items()},
            "held_bytes": {name_of(place): size for place, size in self.held.items()},
            "fits": self.fits,
        }


def reckon_needs(spec: ModelSpec, context: int, choices: Sequence[Choice]) -> Needs:
    """The arithmetic of `spec` for sequences of `context` tokens, and of methods."""
    methods = {str(choice): added_bytes(choice, spec, context) for choice in choices}
    return Needs(spec.name, reckon(spec, context), methods)


def added_bytes(choice: Choice, spec: ModelSpec, context: int) -> int:
    """About what a method adds: its draft model with a cache of its own, files it reads."""
    method, strategy = choice.build(spec.name)
    values = method.values(strategy)
    size = sum(_files(str(value), name, method.name, spec) for name, value in values.items())
    if draft := values.get("draft_model"):
        drafter = ModelSpec(
            name=str(draft), dtype=spec.dtype, device=spec.device, offline=spec.offline
        )
        size += reckon(drafter, context).need.total
    return size


def _files(asked: str, option: str, method: str, spec: ModelSpec) -> int:
    """Bytes of tensors in the file or folder that an option names."""
    if option == "draft_model":
        return 0
    path = Path(asked).expanduser()
    model = spec.name if option == "addon" and not asked else asked
    if model in SHIPPED:
        path = trained_part(model, option if option == "datastore" else method)
    elif not asked or not path.exists():
        return 0
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.suffix in TENSORS)
