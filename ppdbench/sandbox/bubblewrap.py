"""bubblewrap, where it is installed: a world whose only files are those that are named.

It may have rights that others do not (some systems let it alone make namespaces), and so it
holds where `namespaces` cannot.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

PATIENCE_S = 20.0


def in_bubblewrap(
    words: Sequence[str], readable: Iterable[Path], folder: Path, folder_bytes: int
) -> list[str]:
    """The command in such a world, where `folder` is a small file system in memory."""
    shown = sorted({path for path in readable if path.exists()} | _interpreter())
    return [
        *("bwrap", "--unshare-all", "--die-with-parent", "--new-session"),
        *(word for path in shown for word in _bound(path)),
        *("--size", str(folder_bytes), "--tmpfs", str(folder), "--chdir", str(folder)),
        *("--remount-ro", "/", "--", *words),
    ]


def _bound(path: Path) -> tuple[str, str, str]:
    """Devices would not open on a file system without devices."""
    return ("--dev-bind" if path.is_char_device() else "--ro-bind", str(path), str(path))


def _interpreter() -> set[Path]:
    """The interpreter by each name that it goes by, and what says which libraries are its."""
    found = {Path(sys.executable), Path(sys.executable).resolve()}
    configuration = Path(sys.prefix) / "pyvenv.cfg"
    return found | ({configuration} if configuration.exists() else set())


@functools.cache
def works(readable: frozenset[Path], folder_bytes: int) -> bool:
    """True if it is here and may do what it is asked; tried once."""
    if shutil.which("bwrap") is None:
        return False
    words = [sys.executable, "-I", "-c", "pass"]
    try:
        tried = subprocess.run(
            in_bubblewrap(words, readable, Path("/tmp"), folder_bytes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0
