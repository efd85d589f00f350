"""The per-token view of one example, like Figure 2 of LayerSkip.

Rows are layers, the deepest at the bottom as in the paper; columns are output tokens. A cell
holds the token that its layer alone would have chosen, and its colour says how far down that
layer ranks the token that was chosen in the end.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ppdbench.errors import ConfigError, DataError
from ppdbench.files.clean import SUBSTITUTE
from ppdbench.report.terminal import cut_to_columns
from ppdbench.runs.records import ProbedSample

VISIBLE = {"\n": "↵", "\t": "⇥", " ": "␣"}
# The last rank of each class; the mark serves where there is no colour.
CLASS_ENDS = (0, 2, 9)
CLASS_NAMES = ("rank 0 (match)", "rank 1-2", "rank 3-9", "rank 10 and more")
MARKS = ("●", "○", "·", " ")
STYLES = ("bold white on #0b5394", "black on #9fc5e8", "#3d85c6", "dim")
WIDEST_CELL = 8  # columns of a terminal, without mark and gap


@dataclass(frozen=True, slots=True)
class TokenGrid:
    """The first choice of every layer for every output token."""

    title: str
    layers: tuple[int, ...]
    tokens: tuple[str, ...]
    """The final tokens as text."""
    predictions: tuple[tuple[str, ...], ...]
    """For each layer, its own first choices as text."""
    ranks: tuple[tuple[int, ...], ...]
    """For each layer, the ranks of the final tokens."""

    def __post_init__(self) -> None:
        for name in ("predictions", "ranks"):
            rows = getattr(self, name)
            if len(rows) != len(self.layers) or any(len(r) != len(self.tokens) for r in rows):
                raise ValueError(f"{name}: want {len(self.layers)} rows of {len(self.tokens)}")


def grid_of(sample: ProbedSample, layers: Sequence[int], decode: Callable[[int], str]) -> TokenGrid:
    """The grid of a probe sample that kept its layers' predictions."""
    output = sample.output_ids
    if not output:
        raise DataError(f"example {sample.example_id} has no output tokens to show")
    texts: dict[int, str] = {}

    def words(ids: Sequence[int]) -> tuple[str, ...]:
        texts.update({i: decode(i) for i in set(ids) - texts.keys()})
        return tuple(texts[i] for i in ids)

    return TokenGrid(
        title=f"{sample.task} {sample.example_id}",
        layers=tuple(layers),
        tokens=words(output),
        predictions=tuple(words(_of_layer(sample, "predictions", n)) for n in layers),
        ranks=tuple(tuple(_of_layer(sample, "ranks", n)) for n in layers),
    )


def _of_layer(sample: ProbedSample, key: str, layer: int) -> Sequence[int]:
    found: Mapping[str, Sequence[int]] = getattr(sample, key) or {}
    values = found.get(str(layer))
    if values is None:
        known = ", ".join(found) or "none"
        raise ConfigError(
            f"example {sample.example_id} has no {key} of layer {layer}; it has {known}"
        )
    if len(values) != len(sample.output_ids):
        raise DataError(
            f"example {sample.example_id}: {len(values)} {key} of layer {layer} for "
            f"{len(sample.output_ids)} output tokens"
        )
    return values


def rank_class(rank: int) -> int:
    """0 for a match, then up to 3 the further down the final token is ranked."""
    return sum(rank > end for end in CLASS_ENDS)


def visible(text: str) -> str:
    """Text of a token with everything in it to be seen."""
    # An accent on its own stands on a dotted circle, as in code charts.
    alone = "◌" if text and unicodedata.category(text[0]).startswith("M") else ""
    return alone + "".join(VISIBLE.get(c) or _shown(c) for c in text)


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    # Unicode has pictures of the ASCII control characters, in their order.
    return chr(0x2400 + ord(character)) if character < " " else SUBSTITUTE


def print_grid(grid: TokenGrid, console: Console) -> None:
    """Draw the grid, in as many blocks of columns as the terminal's width makes necessary."""
    console.print(Text(visible_title(grid.title), style="bold"))
    label = max(len("layer"), *(len(str(n)) for n in grid.layers))
    for columns in _blocks(grid, console.width - label):
        console.print()
        for line in _block_lines(grid, columns, label):
            console.print(line, no_wrap=True, overflow="crop", soft_wrap=False)
    console.print()
    console.print(_legend())


def visible_title(title: str) -> str:
    """A title with nothing in it that could move the cursor; spaces stay spaces."""
    return " ".join(visible(word) for word in title.split(" "))


def _blocks(grid: TokenGrid, width: int) -> Iterator[dict[int, int]]:
    """Column -> width of its text, block by block."""
    block: dict[int, int] = {}
    for column, token in enumerate(grid.tokens):
        texts = [token, *(row[column] for row in grid.predictions)]
        needed = min(WIDEST_CELL, max(1, *(cell_len(visible(text)) for text in texts)))
        # Each column has a gap and a mark before its text.
        if block and sum(block.values()) + needed + 2 * (len(block) + 1) > width:
            yield block
            block = {}
        block[column] = needed
    if block:
        yield block


def _block_lines(grid: TokenGrid, columns: Mapping[int, int], label: int) -> Iterator[Text]:
    head = Text("token".rjust(label), style="dim")
    for column, width in columns.items():
        head.append("  " + exact_columns(visible(grid.tokens[column]), width), style="not dim bold")
    yield head
    for layer, words, ranks in zip(grid.layers, grid.predictions, grid.ranks, strict=True):
        line = Text(str(layer).rjust(label))
        for column, width in columns.items():
            kind = rank_class(ranks[column])
            line.append(" ")
            line.append(
                MARKS[kind] + exact_columns(visible(words[column]), width), style=STYLES[kind]
            )
        yield line


def exact_columns(text: str, width: int) -> str:
    """Text in exactly `width` terminal columns."""
    text = cut_to_columns(text, width)
    return text + " " * (width - cell_len(text))


def _legend() -> Text:
    legend = Text()
    for mark, name, style in zip(MARKS, CLASS_NAMES, STYLES, strict=True):
        legend.append(f"{mark}{name}", style=style)
        legend.append("  ")
    legend.append("\n\nRows: layers, the deepest at the bottom. Cells: the layer's own choice.")
    return legend
