"""The places of the file system that a program may see: Python, and what Python needs."""

from __future__ import annotations

import inspect
import os
import site
import sysconfig
from pathlib import Path

import ppdbench
from ppdbench import machine
from ppdbench.machine import libc

LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/urandom")
PACKAGE = Path(ppdbench.__file__).resolve().parent


def python() -> list[Path]:
    """The standard library and what is installed, but this package: it carries solutions."""
    libraries = sysconfig.get_config_var("LIBDIR")
    return [
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
        *(part for folder in site.getsitepackages() for part in _but_ours(Path(folder))),
        *([Path(libraries)] if libraries else []),
    ]


def _but_ours(folder: Path) -> list[Path]:
    """The folder, or its parts where this package is one of them."""
    if PACKAGE.parent != Path(os.path.realpath(folder)):
        return [folder]
    return [part for part in folder.iterdir() if part.resolve() != PACKAGE]


def readable() -> list[Path]:
    """List all that a program may read outside its own folder."""
    return [*python(), *map(Path, (*LIBRARIES, *DEVICES))]


def ours() -> list[Path]:
    """The sandbox itself, for an interpreter that starts where nothing else is seen."""
    parts = map(inspect.getfile, (ppdbench, machine, libc))
    return [*map(Path, parts), Path(__file__).parent]
