"""Skip sets: the attention and MLP blocks a draft skips, in a file that is kept per model.

The file is JSON of the form {model: {"attention": [layers], "mlp": [layers]}}, layers counted
from 0; a model is named as `--model` names it, by the last part of that, or by the
fingerprint of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_json
from ppdbench.files.whole import write_whole

KEYS = ("attention", "mlp")


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Layers whose attention, and layers whose MLP, a draft runs without."""

    attention: tuple[int, ...] = ()
    mlp: tuple[int, ...] = ()

    @classmethod
    def default(cls, n_layers: int) -> SkipSet:
        """Return every second attention and every third MLP of the middle half of the layers."""
        edge = max(1, n_layers // 4) if n_layers > 2 else 0
        middle = range(edge, n_layers - edge)
        return cls(tuple(middle[::2]), tuple(middle[1::3]))

    @property
    def size(self) -> int:
        """The number of blocks that are skipped."""
        return len(self.attention) + len(self.mlp)

    def told(self, n_layers: int) -> str:
        """Return the default set as tables show it."""
        blocks = f"{len(self.attention)} attention and {len(self.mlp)} MLP blocks"
        return f"a set in the middle ({blocks} of {n_layers} layers)"

    def check(self, n_layers: int, where: str) -> None:
        """Refuse what a model of that many layers cannot skip, or what would be no draft."""
        for name in KEYS:
            beyond = [layer for layer in getattr(self, name) if layer >= n_layers]
            if beyond:
                raise ConfigError(
                    f"{where}: {name} layer {beyond[0]}, but this model has {n_layers} layers; "
                    f"use 0..{n_layers - 1}"
                )
        if self.size == 2 * n_layers:
            raise ConfigError(f"{where}: all {self.size} blocks are skipped; keep at least one")
        if not self.size:
            raise ConfigError(f"{where}: nothing is skipped, so drafts cost what the model costs")


def read_skips(path: Path) -> dict[str, SkipSet]:
    """Read all entries of a file, by the model they are for."""
    where = f"skip file {path}"
    content = read_json(path, "skip file", f"`ppdbench skips --out {path}` makes one")
    if not isinstance(content, dict) or not content:
        raise ConfigError(f'{where}: use {{model: {{"attention": [...], "mlp": [...]}}}}')
    return {model: _entry(f"{where}: {model}", value) for model, value in content.items()}


def _entry(where: str, value: Any) -> SkipSet:
    if not isinstance(value, dict):
        raise ConfigError(f'{where}: use {{"attention": [...], "mlp": [...]}}')
    unknown = sorted(value.keys() - set(KEYS))
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; use {' and '.join(KEYS)}")
    lacking = [name for name in KEYS if name not in value]
    if lacking:
        raise ConfigError(f"{where}: {lacking[0]!r} is missing; an empty list skips none")
    return SkipSet(*(_layers(f"{where}: {name}", value[name]) for name in KEYS))


def _layers(where: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"{where} is {value!r}; use a list of layers such as [3, 5]")
    for layer in value:
        if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
            raise ConfigError(f"{where} names layer {layer!r}; layers are whole numbers from 0")
        if value.count(layer) > 1:
            raise ConfigError(f"{where} names layer {layer} twice")
    return tuple(sorted(value))


def pick(sets: Mapping[str, SkipSet], name: str, fingerprint: str, path: Path) -> SkipSet:
    """The entry for a model, or an error that says which there are."""
    for known in (fingerprint, name, Path(name).name):
        if known in sets:
            return sets[known]
    raise ConfigError(
        f"skip file {path} has no entry for model {name!r} (fingerprint {fingerprint}); it has "
        f"{', '.join(sets)}; rename one or find a set with `ppdbench skips`"
    )


def save_skips(path: Path, name: str, skips: SkipSet) -> None:
    """Add an entry to the file, or replace the one of the same name."""
    sets = read_skips(path) if path.exists() else {}
    sets[name] = skips
    lines = [
        f'  {json.dumps(model)}: {{\n    "attention": {list(entry.attention)},\n'
        f'    "mlp": {list(entry.mlp)}\n  }}'
        for model, entry in sets.items()
    ]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")
