"""Trained heads for exit layers, as `train heads` writes and `--head` reads them.

A folder with `heads.json` ({format, version, method, model, vocab_size, hidden_size,
layers, rank}) and `heads.safetensors`. Per layer either `layer.N.weight` [vocab, hidden],
or, with a rank, `layer.N.down` [rank, hidden] and `layer.N.up` [vocab, rank], which are
added to the model's own head. The model's frozen final norm comes before either.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import linear

from ppdbench.engine.loading import REFERENCE, Loaded
from ppdbench.errors import ConfigError
from ppdbench.resources import reference_model

FORMAT, VERSION = "ppdbench-addon", 1
HEADER, TENSORS = "heads.json", "heads.safetensors"


@dataclass(frozen=True, slots=True)
class ExitHead:
    """One trained head: a full matrix, or a low-rank change of the model's own."""

    weight: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None

    def logits(self, loaded: Loaded, normed: Tensor) -> Tensor:
        """Logits of hidden states that went through the final norm."""
        adapter = loaded.staged.adapter
        if self.weight is not None:
            return adapter.cap(linear(normed, self.weight))
        assert self.down is not None
        assert self.up is not None
        own: Tensor = adapter.head(normed)
        return adapter.cap(own + linear(linear(normed, self.down), self.up))


def load_heads(folder: str | Path, loaded: Loaded) -> dict[int, ExitHead]:
    """The heads in `folder` by number of layers run, checked against the model."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    folder = reference_model("heads") if str(folder) == REFERENCE else Path(folder)
    header = _header(folder)
    _check_model(folder, header, loaded)
    try:
        tensors: dict[str, Tensor] = load_file(folder / TENSORS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / TENSORS} cannot be read: {error}") from error
    heads = {
        layer: _head(folder, layer, header.get("rank"), tensors, loaded)
        for layer in header["layers"]
    }
    if tensors:
        raise ConfigError(f"{folder / TENSORS} holds unexpected tensors: {', '.join(tensors)}")
    return heads


def _header(folder: Path) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads((folder / HEADER).read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{folder} holds no trained heads: {HEADER} is missing; give --head a folder that "
            "`ppdbench train heads` wrote"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{folder / HEADER} is not valid JSON") from error
    if not isinstance(header, dict) or (header.get("format"), header.get("method")) != (
        FORMAT,
        "heads",
    ):
        raise ConfigError(f"{folder / HEADER} does not describe trained heads")
    if header.get("version") != VERSION:
        raise ConfigError(
            f"{folder / HEADER} has version {header.get('version')}, this ppdbench reads {VERSION}"
        )
    layers, rank = header.get("layers"), header.get("rank")
    if not isinstance(layers, list) or not layers or not all(type(n) is int for n in layers):
        raise ConfigError(f"{folder / HEADER}: layers must be a list of layer numbers")
    if len(set(layers)) < len(layers):
        raise ConfigError(f"{folder / HEADER} names a layer twice: {layers}")
    if rank is not None and (type(rank) is not int or rank < 1):
        raise ConfigError(f"{folder / HEADER}: rank {rank!r}; use 1 or more, or leave it out")
    return header


def _check_model(folder: Path, header: dict[str, Any], loaded: Loaded) -> None:
    staged = loaded.staged
    facts = {
        "model": loaded.fingerprint,
        "vocab_size": staged.vocab_size,
        "hidden_size": staged.hidden_size,
    }
    for name, value in facts.items():
        if header.get(name) != value:
            raise ConfigError(
                f"the heads in {folder} were trained for another model: their {name} is "
                f"{header.get(name)}, this model's is {value}"
            )
    # The last layer has a head: the model's own.
    outside = [n for n in header["layers"] if not 1 <= n < staged.n_layers]
    if outside:
        raise ConfigError(f"{folder}: head for layer {outside[0]}; use 1..{staged.n_layers - 1}")


def _head(
    folder: Path, layer: int, rank: int | None, tensors: dict[str, Tensor], loaded: Loaded
) -> ExitHead:
    staged = loaded.staged
    vocab, width = staged.vocab_size, staged.adapter.head_width
    shapes = (
        {"weight": (vocab, width)} if rank is None else {"down": (rank, width), "up": (vocab, rank)}
    )
    parts = {}
    for part, shape in shapes.items():
        name = f"layer.{layer}.{part}"
        if name not in tensors:
            raise ConfigError(f"{folder / TENSORS} lacks the tensor {name}")
        tensor = tensors.pop(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{folder / TENSORS}: {name} has shape {list(tensor.shape)}, not {list(shape)}"
            )
        parts[part] = tensor.to(staged.device, staged.dtype)
    return ExitHead(**parts)
