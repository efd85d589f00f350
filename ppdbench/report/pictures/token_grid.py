"""The token grid as a picture: layers by output tokens of one example."""

from __future__ import annotations

from ppdbench.report.grid import CLASS_NAMES, TokenGrid, rank_class, visible
from ppdbench.report.pictures.drawing import Box, Drawing, Label, Shape, side_by_side
from ppdbench.report.pictures.frame import Key, legend

CELL_WIDTH, CELL_HEIGHT, TEXT = 46.0, 14.4, 7.0
LEFT, BLOCK_HEAD = 40.0, 30.0  # names of layers; gap and tokens above a block
CHARACTERS = 9  # of a cell
COLUMNS = 16  # of a block
PAINTS = ("heat-10", "heat-5", "heat-2", "sunken")
INKS = ("on-heat-10", "on-heat-5", "on-heat-2", "muted")
WORDS = "Cells: the layer's own choice; colour: rank of the final token, which heads its column."


def token_grid(grid: TokenGrid, foot: str = "") -> Drawing:
    """Cells coloured by the final token's rank.

    The deepest layer is at the bottom; after every 16 tokens a new block begins below.
    """
    width = LEFT + CELL_WIDTH * max(9, min(COLUMNS, len(grid.tokens)))
    keys = [Key(n, p, 1, line=False) for n, p in zip(CLASS_NAMES, PAINTS, strict=True)]
    shapes, top = legend(keys, across=width)
    for first in range(0, len(grid.tokens), COLUMNS):
        columns = range(first, min(first + COLUMNS, len(grid.tokens)))
        shapes += _block(grid, columns, top)
        top += BLOCK_HEAD + CELL_HEIGHT * len(grid.layers)
    drawing = Drawing("grid", grid.title, WORDS, top + 8, tuple(shapes), width)
    return side_by_side([drawing], f"{WORDS} {foot}".strip())


def _block(grid: TokenGrid, columns: range, top: float) -> list[Shape]:
    """One block: the final tokens, and below them a row for each layer."""
    shapes: list[Shape] = [Label(8, top + 22, "layers", size=TEXT)]
    for x, column in enumerate(columns):
        head = _text(grid.tokens[column])
        middle = LEFT + (x + 0.5) * CELL_WIDTH
        shapes.append(Label(middle, top + 22, head, "ink", "middle", TEXT, bold=True))
    for y, layer in enumerate(grid.layers):
        at = top + BLOCK_HEAD - 4 + y * CELL_HEIGHT
        shapes.append(Label(LEFT - 6, at + 10, str(layer), anchor="end", size=TEXT))
        for x, column in enumerate(columns):
            rank, left = grid.ranks[y][column], LEFT + x * CELL_WIDTH
            kind, text = rank_class(rank), _text(grid.predictions[y][column])
            hint = f"layer {layer}: {visible(grid.predictions[y][column])}, rank {rank}"
            shapes.append(Box(left, at, CELL_WIDTH - 1, CELL_HEIGHT - 1, PAINTS[kind], hint))
            middle = left + CELL_WIDTH / 2
            shapes.append(Label(middle, at + 9.6, text, INKS[kind], "middle", TEXT))
    return shapes


def _text(token: str) -> str:
    text = visible(token)
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"
