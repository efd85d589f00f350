"""A model folder seen from outside: what it lacks, and whether its files can be what they say.

Nothing is loaded and nothing is asked of the network, so that a wrong name costs no time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import orjson

from ppdbench.engine.families import FAMILIES, sizes
from ppdbench.engine.known import known, of_text_and_more
from ppdbench.engine.shapes import MOST
from ppdbench.errors import ConfigError, UnsupportedModel

BY_LAYER = ("intermediate_size",)  # what may be a list of numbers, one of each layer

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
INDEXES = {  # by the file that they stand for, in the order in which they are looked for
    "model.safetensors": "model.safetensors.index.json",
    "pytorch_model.bin": "pytorch_model.bin.index.json",
}
QUANTISED = ("quantization_config", "compression_config")
ZIPPED = b"PK"  # what files that torch writes begin with
ADAPTER = "adapter_config.json"  # of weights that change others, such as LoRA
READ = (  # besides config.json
    *("tokenizer.json", "tokenizer_config.json", "vocab.json", "special_tokens_map.json"),
    *("added_tokens.json", "generation_config.json", "chat_template.json"),
)
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")


def check_model_folder(folder: Path) -> None:
    """Refuse a folder that lacks something, has too much, or holds what cannot be read."""
    if (folder / ADAPTER).is_file():
        raise _adapter_found(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no model folder: it has no config.json")
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        raise ConfigError(f"{folder} holds no weights; expected *.safetensors or pytorch_model.bin")
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ConfigError(f"{folder} holds no tokenizer; expected one of {', '.join(TOKENIZERS)}")
    check_config(folder)
    for path in filter(Path.is_file, map(folder.joinpath, READ)):
        _check_json(folder, path)
    index = _index_in_use(folder)
    if index is not None:
        _check_shards(folder, index)
    files = sorted(folder.glob("*.safetensors"))
    types = {file: check_tensors(f"model {folder}", file) for file in files}
    _check_types(folder, types)
    if not files:
        _check_pickles(folder)


def _check_json(folder: Path, path: Path) -> None:
    """Refuse a file that transformers would name no more than a line of, or go on without."""
    content = path.read_bytes()
    try:
        orjson.loads(content)
    except orjson.JSONDecodeError:
        try:
            json.loads(content)  # slower, but takes NaN
        except (ValueError, RecursionError) as error:
            raise _damaged(f"model {folder}", path) from error


def _index_in_use(folder: Path) -> Path | None:
    """The index that weights are found by, if any; others may have stayed behind."""
    for whole, name in INDEXES.items():
        if (folder / whole).is_file():
            return None
        if (folder / name).is_file():
            return folder / name
    return None


def _check_shards(folder: Path, index: Path) -> None:
    """Refuse an index of files that are not all there."""
    try:
        files = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        lacking = sorted(file for file in files if not (folder / file).is_file())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(f"model {folder}", index) from error
    if lacking:
        raise ConfigError(
            f"model {folder} does not load: {index.name} names {lacking[0]}, which is not there; "
            "fetch the model again"
        )


def _check_types(folder: Path, types: Mapping[Path, Collection[str]]) -> None:
    """Refuse numbers in 8 bits that nothing is said of: they stand for others, by a scale."""
    small = next((file for file, held in types.items() if any(map(_is_small, held))), None)
    config = (folder / "config.json").read_text("utf-8")
    if small is not None and not any(f'"{name}"' in config for name in QUANTISED):
        raise ConfigError(
            f"model {folder} does not load: {small.name} holds weights in fp8, and config.json has "
            "no quantization_config that says what they stand for; fetch the model again"
        )


def _is_small(dtype: str) -> bool:
    return dtype.startswith("F8_")


def _check_pickles(folder: Path) -> None:
    """Refuse files that are empty, or zipped and without their end."""
    for file in sorted(folder.glob("pytorch_model*.bin")):
        with file.open("rb") as stream:
            begins = stream.read(len(ZIPPED))
        if not begins or (begins == ZIPPED and not is_zipfile(file)):
            raise _damaged(f"model {folder}", file)


def _adapter_found(folder: Path) -> ConfigError:
    """Tell how an adapter is used; beside weights, transformers may apply it or pass it over."""
    if (folder / "config.json").is_file():
        return ConfigError(
            f"{folder} holds an adapter such as LoRA ({ADAPTER}), and weights beside it: move it "
            "to a folder of its own, and --adapter with that folder will merge it into them"
        )
    return ConfigError(
        f"{folder} is an adapter such as LoRA ({ADAPTER}) and no model; give --model what it was "
        f"trained for, and --adapter {folder}"
    )


def check_config(folder: Path) -> None:
    """Refuse a config.json that is none, or that is of a model which cannot be."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"model {folder} does not load: {path.name} is not valid JSON") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise ConfigError(f"model {folder} does not load: {path.name} names no model_type")
    check_family(content["model_type"], str(folder))
    check_sizes(content, str(path))
    stored = content.get("quantization_config")
    if stored is not None and not isinstance(stored, dict):
        raise ConfigError(f"{path}: quantization_config must be an object")


def check_family(model_type: str, name: str) -> None:
    """Refuse a family that does not run, or that nobody has tried."""
    found = known().get(model_type)
    if found is not None and not found.runs:
        raise UnsupportedModel(
            f"model {name} does not load: family {model_type} does not run: {found.why}; "
            "`ppdbench list models` names those that do"
        )
    if found is None and model_type not in {*FAMILIES, *of_text_and_more()}:
        raise UnsupportedModel(
            f"model {name} does not load: family {model_type[:60]!r} is not known; "
            "`ppdbench list models` names those that run"
        )


def check_sizes(config: Mapping[str, Any], where: str) -> None:
    """Refuse numbers that no model has, before anything is built by them."""
    for name, size in sizes().items():
        value, most = config.get(name), MOST[size]
        each = value if name in BY_LAYER and isinstance(value, list) and value else [value]
        if value is not None and not all(type(n) is int and 1 <= n <= most for n in each):
            shown = repr(value)[:40]
            raise ConfigError(f"{where}: {name} is {shown}; use a whole number from 1 to {most}")


def check_tensors(what: str, file: Path) -> set[str]:
    """Refuse a safetensors file that is not as long as it says; `what` is told to have it.

    Returns the types of its tensors.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header: Any = json.loads(stream.read(length)) if length < size else None
        tensors = [about for name, about in header.items() if name != "__metadata__"]
        ends = [int(about["data_offsets"][1]) for about in tensors]
        types = {str(about["dtype"]) for about in tensors}
    except (OSError, ValueError, struct.error, AttributeError, KeyError, TypeError, IndexError):
        raise _damaged(what, file) from None
    if 8 + length + max(ends, default=0) != size:
        raise _damaged(what, file)
    return types


def _damaged(what: str, file: Path) -> ConfigError:
    return ConfigError(f"{what} does not load: {file.name} is cut off or damaged; fetch it again")
