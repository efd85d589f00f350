"""Files that results go into: refused before work is spent on them, not after."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from ppdbench.errors import ConfigError


def check_path(path: str | Path, suffixes: Iterable[str], what: str) -> Path:
    """Refuse a file that could not be written, or whose suffix says nothing to `what`."""
    if str(path) in ("", "."):
        raise ConfigError(f"the name of a {what} file is empty (--plot, --export, --out)")
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{path}: no {what} format has this suffix; use {', '.join(suffixes)}")
    return check_writable(path)


def check_folder(option: str, name: str) -> Path:
    """Refuse a name that can be no folder, there or not."""
    if not name.strip():
        raise ConfigError(f"{option} is empty; give a folder")
    path = Path(name).expanduser()
    there = _nearest(path)
    if not there.is_dir():
        what = "is a file" if there == path.absolute() else f"lies below a file, {there}"
        raise ConfigError(f"{option} {name} {what}; give a folder")
    return path


def check_writable(path: str | Path) -> Path:
    """Refuse a file that could not be written, whatever its suffix."""
    path = Path(path)
    # Missing folders are made on saving, so ask the nearest one that is there.
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    there = _nearest(path.absolute().parent)
    try:
        # Rights alone do not tell: root has them where nothing can be made.
        with tempfile.TemporaryFile(dir=there):
            return path
    except OSError:
        raise ConfigError(f"cannot write {path}: {there} is not a writable folder") from None


def _nearest(path: Path) -> Path:
    """Return what there is of a path: itself, or the nearest folder or file above it."""
    whole = path.absolute()
    return next(part for part in (whole, *whole.parents) if part.exists())
