"""Parts trained for a model that stays as it is: one schema for all that `train` makes.

An add-on is a folder with `addon.json` ({format, version, method, model, vocabulary,
vocab_size, hidden_size, options}) and `addon.safetensors`. `model` is the fingerprint of the
weights that the parts were trained for, `vocabulary` the hash of the tokenizer's words. Both
must be those of the model that an add-on is opened for: with others it would draft nonsense,
and nothing but a low acceptance would tell.

Heads for exit layers are older than this schema. Their header names no vocabulary and holds
the options beside the other facts; an `AddonLayout` says so.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.loading import Loaded, tensor_fingerprint, weight_fingerprint
from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_json
from ppdbench.files.keys import Keys, kind
from ppdbench.files.resources import SHIPPED, came_with, trained_part
from ppdbench.files.whole import replacing, write_whole

FORMAT, VERSION = "ppdbench-addon", 1
KEYS = (
    *("format", "version", "method"),
    *("model", "vocab_size", "hidden_size", "vocabulary", "options"),
)
RECORD = "training.json"  # what a training run wrote down of itself, where it is kept beside
SHOWN = 5  # names of tensors in one line of an error

TensorShape = tuple[int | None, ...]  # None: any size


@dataclass(frozen=True, slots=True, kw_only=True)
class AddonLayout:
    """The files of an add-on; `flat`: options stand beside the facts, and no vocabulary."""

    header: str = "addon.json"
    tensors: str = "addon.safetensors"
    flat: bool = False


ADDON = AddonLayout()


class Weights:
    """The tensors of one file, each taken by name with the shape that it must have.

    The file is read once something is asked of it, so that a header can be refused before.
    """

    def __init__(self, file: Path, loaded: Loaded) -> None:
        self.file = file
        self._loaded = loaded

    @cached_property
    def _read(self) -> tuple[dict[str, Tensor], str, int]:
        """The tensors that nobody has taken yet; of all of them the fingerprint and the size."""
        tensors = read_tensors(self.file)
        size = sum(tensor.numel() for tensor in tensors.values())
        return tensors, tensor_fingerprint(tensors.items()), size

    @property
    def fingerprint(self) -> str:
        """A hash of all tensors."""
        return self._read[1]

    def facts(self) -> dict[str, Any]:
        """Return facts for a run's header: the size beside its model, and how it was trained."""
        return {
            "added_parameters": self._read[2],
            "model_parameters": self._loaded.staged.parameters,
            "training": _training(self.file.parent / RECORD),
        }

    def names(self) -> list[str]:
        """List the names that nobody has taken yet."""
        return sorted(self._read[0])

    def take(self, name: str, shape: TensorShape) -> Tensor:
        """A tensor on the model's device, numbers in the model's type; None fits any size."""
        left = self._read[0]
        if name not in left:
            raise ConfigError(f"{self.file} lacks the tensor {name}")
        tensor = left.pop(name)
        found = tuple(tensor.shape)
        if len(found) != len(shape) or any(
            wanted not in (None, size) for wanted, size in zip(shape, found, strict=True)
        ):
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise ConfigError(f"{self.file}: {name} has shape {list(found)}, not [{wanted}]")
        staged = self._loaded.staged
        return tensor.to(staged.device, staged.dtype if tensor.is_floating_point() else None)

    def close(self) -> None:
        """Refuse what nobody took: it may be what the method hangs on."""
        names = self.names()
        if names:
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            raise ConfigError(
                f"{self.file} holds unexpected tensors: {', '.join(names[:SHOWN])}{more}"
            )


class Addon(Weights):
    """The parts trained for one method and one model, with the options they were trained with."""

    def __init__(
        self, folder: Path, options: dict[str, Any], loaded: Loaded, layout: AddonLayout = ADDON
    ) -> None:
        super().__init__(folder / layout.tensors, loaded)
        self.folder = folder
        self.options = options
        self._header = folder / layout.header

    def number(self, name: str, least: int) -> int:
        """An option that must be a whole number."""
        value = self.options.get(name)
        if type(value) is not int or value < least:
            raise ConfigError(f"{self._header}: {name} is {value!r}; use {least} or more")
        return value

    def facts(self) -> dict[str, Any]:
        """Return the facts and the options that it was trained with."""
        return {**super().facts(), "options": self.options}


def addon_folder(asked: str | Path, method: str, loaded: Loaded) -> Path:
    """Return the folder of an add-on: the one asked for, or the one that came with the model."""
    if str(asked) in SHIPPED:
        return trained_part(str(asked), method)
    if str(asked):
        return Path(asked).expanduser()
    if came_with(loaded.spec.name, method):
        return trained_part(loaded.spec.name, method)
    raise ConfigError(no_addon(method, loaded.spec.name))


def no_addon(method: str, model: str) -> str:
    """Explain that a method has nothing that was trained for a model."""
    return (
        f"{method}: no add-on for {model}; train one with `ppdbench train {method} --model {model} "
        "--text FILE --out DIR` and give --set addon=DIR"
    )


def open_addon(
    folder: str | Path, method: str, loaded: Loaded, layout: AddonLayout = ADDON
) -> Addon:
    """The add-on in `folder` ("": the one that came with the model), if it is this model's."""
    home = addon_folder(folder, method, loaded)
    header = read_header(home, method, layout)
    _check_model(home, header, loaded, layout)
    options = header if layout.flat else header.get("options")
    if not isinstance(options, dict):
        raise ConfigError(f"{home / layout.header}: options must be an object")
    return Addon(home, options, loaded, layout)


def read_header(folder: Path, method: str, layout: AddonLayout) -> dict[str, Any]:
    """Read the header of an add-on; refuse one of another method."""
    path = folder / layout.header
    try:
        header = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{folder} holds no trained {method}: {layout.header} is missing; give a folder that "
            f"`ppdbench train {method}` wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ConfigError(f"{path} does not describe trained {method}")
    if header.get("method") != method:
        raise ConfigError(f"{path} does not describe trained {method} but {header.get('method')!r}")
    if header.get("version") != VERSION:
        raise ConfigError(
            f"{path} has version {header.get('version')}, this ppdbench reads {VERSION}"
        )
    if not layout.flat and (unknown := sorted(header.keys() - set(KEYS))):
        raise ConfigError(f"{path}: unknown key {unknown[0]}; allowed: {', '.join(KEYS)}")
    return header


def _check_model(
    folder: Path, header: Mapping[str, Any], loaded: Loaded, layout: AddonLayout
) -> None:
    facts: dict[str, Any] = {
        "model": loaded.fingerprint,
        "vocab_size": loaded.staged.vocab_size,
        "hidden_size": loaded.staged.hidden_size,
    }
    if not layout.flat:
        facts["vocabulary"] = vocabulary_hash(loaded.tokenizer)
    for name, value in facts.items():
        if header.get(name) != value:
            raise ConfigError(
                f"the weights in {folder} were trained for another model: their {name} is "
                f"{header.get(name)}, this model's is {value}"
            )


def _training(path: Path) -> dict[str, Any] | None:
    """Return a training run's options, less where its files lay; None where they were not kept."""
    if not path.is_file():
        return None
    content = read_json(path, "record of a training", "training writes one")
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be an object, not {kind(content)}")
    keys = Keys(content, str(path))
    config = keys.section("config") if "config" in content else Keys({}, str(path))
    return {
        **{name: _count(config, name) for name in ("steps", "batch_size", "sequence")},
        "tokens": _count(keys, "tokens"),
        "start": keys.optional_text("start", None),
    }


def _count(keys: Keys, name: str) -> int | None:
    return keys.number(name) if name in keys.names() else None


def save_addon(
    folder: Path,
    method: str,
    model: Any,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    options: Mapping[str, Any],
    layout: AddonLayout = ADDON,
) -> None:
    """Write what `open_addon` reads; `model` is the transformers model trained for."""
    from safetensors.torch import save_file

    header = {
        "format": FORMAT,
        "version": VERSION,
        "method": method,
        "model": weight_fingerprint(model),
        "vocab_size": int(model.config.vocab_size),
        "hidden_size": int(model.config.hidden_size),
    }
    if layout.flat:
        header |= options
    else:
        header |= {"vocabulary": vocabulary_hash(tokenizer), "options": dict(options)}
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / layout.tensors) as partial:
        save_file(kept, partial)
    write_whole(folder / layout.header, json.dumps(header, indent=2) + "\n")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a .safetensors file, or of a .pt or .bin file with nothing else in it."""
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"{path} is refused: it holds more than plain tensors, or is damaged, and what else "
            "a pickle holds could run code when read; use a .safetensors file"
        ) from error
    except Exception as error:  # what damaged files raise shares no narrower root
        text = " ".join(str(error).split())
        raise ConfigError(f"{path} cannot be read: {text[:200]}") from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in found.items()
    ):
        raise ConfigError(f"{path} does not hold tensors by name")
    return found
