"""Measurements of benchmarks: shown, and in files that pages and tables are made of later."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ppdbench.engine.quiet import quiet
from ppdbench.errors import PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

M = TypeVar("M", bound=msgspec.Struct)


def carry_out(
    name: str,
    measure: Callable[[], M],
    sheets: Callable[[M], Sequence[Sheet]],
    path: Path | None,
) -> int:
    """Measure, show, and keep where that was asked for; an exit code."""
    quiet()
    try:
        found = measure()
    except PpdbenchError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    print_sheets(sheets(found))
    keep(found, path)
    return 0


def keep(found: msgspec.Struct, path: Path | None) -> None:
    """Write what was measured where somebody asked for it, a field a line."""
    if path is not None:
        content = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
        write_whole(path, content)


def told(what: str, done: int, total: int | None) -> None:
    """Say how far a run is, a line each time."""
    print(f"{what}, {done} of {total}", file=sys.stderr, flush=True)


def warned(words: str) -> None:
    """Say what a run warns of."""
    print(f"note: {words}", file=sys.stderr, flush=True)
