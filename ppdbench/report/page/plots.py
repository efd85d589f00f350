"""Every drawing of a page as files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ppdbench.errors import ConfigError
from ppdbench.files.whole import write_whole
from ppdbench.report.page.drawing import Drawing, svg_file


def save_all(drawings: Sequence[Drawing], folder: Path) -> None:
    """Write each as SVG, which follows its reader's light or dark, and as PNG."""
    from ppdbench.report.page.raster import save_png  # matplotlib takes half a second

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}; choose --plots") from error
    for drawing in drawings:
        write_whole(folder / f"{drawing.name}.svg", svg_file(drawing))
        save_png(drawing, folder / f"{drawing.name}.png")
