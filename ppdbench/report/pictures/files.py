"""Drawings as files, in the format of their suffix."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ppdbench.files import paths
from ppdbench.files.lock import unwritable
from ppdbench.files.whole import write_whole
from ppdbench.report.pictures.drawing import Drawing, side_by_side, svg_file

SUFFIXES = (".png", ".svg", ".pdf")


def check_picture_path(path: str | Path) -> Path:
    """Refuse a picture that could not be written, before work is spent on it."""
    return paths.check_path(path, SUFFIXES, "picture")


def save_picture(drawing: Drawing, path: str | Path) -> None:
    """Write a drawing; as SVG it follows its reader's light or dark."""
    path = check_picture_path(path)
    suffix = path.suffix.lower()
    if suffix == ".svg":
        write_whole(path, svg_file(drawing))
        return
    with _without_word_on_caches():
        from ppdbench.report.pictures.raster import image_bytes  # matplotlib takes half a second
    write_whole(path, image_bytes(drawing, suffix[1:]))


@contextmanager
def _without_word_on_caches() -> Iterator[None]:
    """Import matplotlib in silence: where home cannot be written to it keeps its fonts elsewhere.

    Such a temporary folder is of its own making, and goes with the process.
    """
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def save_all(drawings: Sequence[Drawing], folder: Path) -> None:
    """Write each as SVG and as PNG, under its title."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error, "--plots") from error
    for drawing in drawings:
        for suffix in (".svg", ".png"):
            save_picture(side_by_side([drawing]), folder / f"{drawing.name}{suffix}")
