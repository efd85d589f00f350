"""The GGUF file that a name stands for: a file, one in a folder or on the hub, or SmolLM2."""

from __future__ import annotations

import os
from pathlib import Path

from ppdbench.errors import ConfigError
from ppdbench.files.caches import cache_folder

SUFFIX = ".gguf"
SMOLLM2 = "smollm2"
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FETCH = "make smollm2"


def smollm2() -> Path:
    """The place of SmolLM2's file, there or not."""
    return cache_folder() / "models" / SMOLLM2_FILE


def names_file(name: str, file: str | None) -> bool:
    """True if a model of this name, and this `--gguf`, is to come from a GGUF file."""
    if file is not None or name == SMOLLM2:
        return True
    path = Path(name).expanduser()
    if path.is_dir():
        return not (path / "config.json").exists() and bool(_files(path))
    return name.lower().endswith(SUFFIX)


def is_on_hub(name: str) -> bool:
    """True if a name can only be a hub id."""
    path = Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or path.exists() or name.lower().endswith(SUFFIX)
    return name != SMOLLM2 and not is_path


def find(name: str, file: str | None, revision: str | None, *, offline: bool) -> Path:
    """The file on this machine, fetched from the hub where it has to be."""
    path = Path(name).expanduser()
    if name == SMOLLM2 and not path.is_dir():
        return _smollm2(file)
    if path.is_dir():
        return _in_folder(path, file)
    if file is None or not is_on_hub(name):
        return _alone(path, name, file)
    return _of_hub(name, file, revision, offline=offline)


def _smollm2(file: str | None) -> Path:
    if file is not None:
        raise ConfigError(f"--gguf {file}: --model {SMOLLM2} is one file; leave --gguf out")
    path = smollm2()
    if not path.is_file():
        raise ConfigError(
            f"--model {SMOLLM2}: SmolLM2-135M-Instruct is not on this machine ({path}); fetch it "
            f"with `{FETCH}`"
        )
    return path


def _alone(path: Path, name: str, file: str | None) -> Path:
    if file is not None and path.is_file():
        raise ConfigError(f"--gguf {file}: --model {name} is a file itself; leave --gguf out")
    if not path.is_file():
        kind = "file" if file is None else "folder"
        raise ConfigError(f"model {kind} {name} does not exist")
    return path


def _files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix.lower() == SUFFIX and p.is_file())


def _in_folder(folder: Path, file: str | None) -> Path:
    there = _files(folder)
    shown = ", ".join(there[:6]) + (f" and {len(there) - 6} more" if len(there) > 6 else "")
    if file is None and len(there) > 1:
        raise ConfigError(f"{folder} holds {len(there)} GGUF files; give --gguf one of {shown}")
    path = folder / (there[0] if file is None else file)
    if not path.is_file():
        raise ConfigError(f"--gguf {file}: {folder} has no such file; it has {shown or 'none'}")
    if path.suffix.lower() != SUFFIX:
        raise ConfigError(f"--gguf {file} is no GGUF file; {folder} has {shown or 'none'}")
    return path


def _of_hub(name: str, file: str, revision: str | None, *, offline: bool) -> Path:
    from huggingface_hub import hf_hub_download

    offline = offline or os.environ.get("HF_HUB_OFFLINE") == "1"
    return Path(hf_hub_download(name, file, revision=revision, local_files_only=offline))
