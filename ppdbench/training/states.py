"""States that a frozen model comes to in blocks of text, kept on disk: each block is run once.

What drafts for a model learns from its states alone. Those of a block are the same in every epoch
and for everything that is trained on it, and computing them is most of the work.

Each layer has a file of states, [length, width] in bfloat16 for a block, and one of the blocks'
keys in the same order. A key is written behind its states, so that what a kill has torn is not
found. States are rounded when they are computed, too: a step is the same whether it finds them or
not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from ppdbench.errors import ConfigError, DataError
from ppdbench.files.lock import hold
from ppdbench.files.whole import write_whole

KEY = 16  # bytes
STAMP = "states.json"

Compute = Callable[[Tensor, Collection[int]], dict[int, Tensor]]


class LayerFile:
    """The states of blocks after one number of layers."""

    def __init__(self, folder: Path, layer: int, length: int, width: int) -> None:
        self.states, self.keys = (folder / f"after-{layer}.{kind}" for kind in ("states", "keys"))
        self.shape, self.bytes = (length, width), 2 * length * width
        found = self.keys.read_bytes() if self.keys.exists() else b""
        whole = [found[i : i + KEY] for i in range(0, len(found) - len(found) % KEY, KEY)]
        self.places = {key: place for place, key in enumerate(whole)}
        if len(found) % KEY:
            write_whole(self.keys, b"".join(whole))
        if whole and self.states.stat().st_size < len(whole) * self.bytes:
            raise DataError(f"{self.states} is damaged: it is too short; remove {folder}")

    def read(self, key: bytes) -> Tensor:
        """The states of a block that is there."""
        with self.states.open("rb") as file:
            file.seek(self.places[key] * self.bytes)
            found = bytearray(file.read(self.bytes))
        return torch.frombuffer(found, dtype=torch.bfloat16).view(self.shape)

    def add(self, key: bytes, states: Tensor) -> None:
        """Keep the states of a block; first they, then what finds them."""
        place = len(self.places)
        with self.states.open("r+b" if place else "wb") as file:
            file.seek(place * self.bytes)
            file.write(states.contiguous().view(torch.uint8).numpy().tobytes())
        with self.keys.open("ab") as file:
            file.write(key)
        self.places[key] = place


@dataclass
class StatesOnDisk:
    """States of blocks of `length` tokens, of a model with states of this `width`."""

    folder: Path
    length: int
    width: int
    lock: FileLock
    """Held by the process: of two that write, each would take the other's states for its own."""
    _files: dict[int, LayerFile] = field(default_factory=dict)

    @classmethod
    def open(
        cls, folder: Path, facts: Mapping[str, object], length: int, width: int
    ) -> StatesOnDisk:
        """Begin a folder, or go on with one of the same model (`facts`) and length."""
        told, stamp = {**facts, "length": length, "width": width}, folder / STAMP
        lock = hold(folder, "--states", by_process=True)  # trainings of one process share it
        try:
            if not stamp.exists():
                write_whole(stamp, json.dumps(told, indent=1) + "\n")
            elif json.loads(stamp.read_text("utf-8")) != told:
                raise ConfigError(
                    f"{folder} holds states of another model, precision or length of sequences; "
                    "give --states another folder"
                )
        except (OSError, ValueError) as error:
            raise DataError(f"--states {folder}: {error}") from error
        return cls(folder, length, width, lock)

    def states(
        self, tokens: Tensor, layers: Collection[int], compute: Compute, dtype: torch.dtype
    ) -> dict[int, Tensor]:
        """States [batch, length, width] after so many layers: read, or computed and kept."""
        files = {layer: self._file(layer) for layer in layers}
        rows = tokens.cpu().numpy().astype(np.int64)
        keys = [hashlib.blake2b(row.tobytes(), digest_size=KEY).digest() for row in rows]
        if all(key in file.places for file in files.values() for key in keys):
            return {
                layer: torch.stack([file.read(key) for key in keys]).to(tokens.device, dtype)
                for layer, file in files.items()
            }
        rounded = {}
        for layer, found in compute(tokens, layers).items():
            kept = found.to(torch.bfloat16)
            for key, states in zip(keys, kept.cpu(), strict=True):
                if key not in files[layer].places:
                    files[layer].add(key, states)
            rounded[layer] = kept.to(found)
        return rounded

    def _file(self, layer: int) -> LayerFile:
        if layer not in self._files:
            self._files[layer] = LayerFile(self.folder, layer, self.length, self.width)
        return self._files[layer]
