"""Pictures of results, in one quiet style, the same bytes for the same numbers.

Everything goes through figure objects, never pyplot, so that drawing leaves nothing behind.
Colours are told apart by colour-blind readers too, and colour never says anything alone.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ppdbench.errors import DataError
from ppdbench.files import paths
from ppdbench.files.clean import SUBSTITUTE, clean
from ppdbench.files.whole import write_whole
from ppdbench.report.grid import CLASS_NAMES, TokenGrid, rank_class, visible
from ppdbench.theory import FigurePoint

Row = Mapping[str, Any]

# Okabe and Ito's colours, then three of Tol's for runs with many tasks.
PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#882255",
    "#999933",
    "#332288",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
TEXT_FONT = "DejaVu Sans"  # comes with matplotlib, so pictures look alike everywhere
CELL_FONT = "DejaVu Sans Mono"
INK, RULE = "#222222", "#dddddd"
STYLE = {
    "font.family": TEXT_FONT,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a token is a dollar sign
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "ppdbench",  # element ids come from this instead of chance
}
DPI = 150
LARGEST_PIXELS = 60_000  # Agg's limit is 2**16 on either side
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}


@contextmanager
def quiet_style() -> Iterator[None]:
    """Our style for as long as something is made, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def check_path(path: str | Path) -> Path:
    """Refuse a picture that could not be written, before work is spent on it."""
    return paths.check_path(path, METADATA, "picture")


def save(figure: Figure, path: str | Path) -> None:
    """Write a picture in the format of the path's suffix."""
    path = check_path(path)
    suffix = path.suffix.lower()
    dpi = min(DPI, LARGEST_PIXELS / max(figure.get_size_inches()))
    data = io.BytesIO()
    for text in figure.findobj(Text):  # whoever drew it may have forgotten
        text.set_text(_plain_lines(text.get_text()))
    with quiet_style():
        figure.savefig(data, format=suffix[1:], dpi=dpi, metadata=METADATA[suffix])
    write_whole(path, data.getvalue(), make_folder=True)


@quiet_style()
def sign(figure: Figure, text: str) -> Figure:
    """Put what was measured, synthetic weights included, into the picture's corner."""
    figure.text(
        0.995, 0.01, _plain_lines(text), ha="right", va="bottom", fontsize=7, color="#666666"
    )
    return figure


@cache
def _drawable(font: str) -> frozenset[int]:
    return frozenset(get_font(findfont(font)).get_charmap())


def plain(text: object) -> str:
    """Text with a visible substitute for whatever the font cannot draw."""
    known, text = _drawable(TEXT_FONT), clean(str(text), "picture")
    return "".join(c if c.isprintable() and ord(c) in known else SUBSTITUTE for c in text)


def _plain_lines(text: str) -> str:
    return "\n".join(map(plain, text.split("\n")))


def _title(text: object, inches: float, lines: int = 1) -> str:
    """A title cut to the width it has; bold letters of 10 pt are 0.1 inch wide at most times."""
    columns = max(8, int(inches / 0.1))
    return "\n".join(textwrap.wrap(plain(text), columns, max_lines=lines, placeholder=" …") or [""])


# --- Figures 3 and 4 -----------------------------------------------------------------------

PANELS = {
    3: ("Figure 3", "compute per time unit (processes busy, greedy = 1)", "figure_3"),
    4: ("Figure 4", "compute per token (greedy = 1)", "figure_4"),
}


@quiet_style()
def tradeoff(
    points_by_series: Mapping[str, Sequence[FigurePoint]],
    figure: Literal[3, 4] | None = None,
) -> Figure:
    """Latency against compute, as in Figure 3 or 4 of the paper, or both side by side.

    Of several series the first is the backdrop, drawn hollow: give the paper's points there.
    """
    panels = [PANELS[n] for n in ((3, 4) if figure is None else (figure,))]
    points = [point for series in points_by_series.values() for point in series]
    if not points:
        raise DataError("no points to draw")
    looks = _Looks(points)
    picture = Figure(figsize=(4.6 * len(panels) + 1.9, 4.2), layout="constrained")
    for axes, (title, label, attribute) in zip(
        picture.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True
    ):
        for index, series in enumerate(points_by_series.values()):
            looks.draw(axes, series, attribute, _is_backdrop(index, points_by_series))
        axes.set_title(title)
        axes.set_xlabel(label)
    picture.axes[0].set_ylabel("latency per token (greedy = 1)")
    picture.legend(handles=looks.legend(list(points_by_series)), loc="outside right center")
    return picture


class _Looks:
    """Which colour a task has, which marker a k, and which line a head."""

    def __init__(self, points: Sequence[FigurePoint]) -> None:
        self.colours = dict(zip(dict.fromkeys(p.task for p in points), cycle(PALETTE)))
        self.markers = dict(zip(sorted({p.k for p in points}), cycle(MARKERS)))
        self.trained = any(p.trained for p in points)

    def draw(self, axes: Axes, series: Sequence[FigurePoint], attribute: str, hollow: bool) -> None:
        curves: dict[tuple[str, bool], list[FigurePoint]] = {}
        for point in sorted(series, key=lambda p: p.k):
            curves.setdefault((point.task, point.trained), []).append(point)
        for (task, trained), points in curves.items():
            colour = self.colours[task]
            places = [getattr(point, attribute) for point in points]
            line = "--" if trained else "-"
            xs, ys = zip(*places, strict=True)
            axes.plot(xs, ys, line, color=colour, linewidth=0.9, alpha=0.55, zorder=2)
            for point, (x, y) in zip(points, places, strict=True):
                axes.plot(
                    x,
                    y,
                    self.markers[point.k],
                    color=colour,
                    markerfacecolor="white" if hollow else colour,
                    zorder=3,
                )

    def legend(self, series: Sequence[str]) -> list[Line2D]:
        handles = [Line2D([], [], color=c, label=plain(t)) for t, c in self.colours.items()]
        if self.trained:
            handles += [
                Line2D([], [], color=INK, linestyle=line, label=label)
                for line, label in (("-", "model's own head"), ("--", "trained head"))
            ]
        handles += [_dot(m, INK, f"k = {k}") for k, m in self.markers.items()]
        fills = ["white" if _is_backdrop(i, series) else INK for i in range(len(series))]
        handles += [_dot("o", f, plain(s)) for f, s in zip(fills, series, strict=True)]
        return handles


def _is_backdrop(index: int, series: Collection[str]) -> bool:
    return index == 0 and len(series) > 1


def _dot(marker: str, fill: str, label: str) -> Line2D:
    return Line2D([], [], color=INK, marker=marker, linestyle="", markerfacecolor=fill, label=label)


# --- Match rates ---------------------------------------------------------------------------


@quiet_style()
def match_rates(rows: Sequence[Row]) -> Figure:
    """Match rate by layer: a panel for each task, a line for each k, trained heads dashed."""
    rows = [row for row in rows if row["bucket"] == "total"]
    panels = _panels(rows, ("task", "target"), always=1)
    colours = dict(zip(sorted({row["k"] for row in rows}), cycle(PALETTE)))
    picture, all_axes = _small_multiples(len(panels), width=3.4, height=2.9)
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        for (k, head), curve in _split(panel, ("k", "head")).items():
            _curve(axes, curve, colours[k], dashed=head == "Y")
        axes.set_title(_title(title, 3.0))
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    picture.supxlabel("layers run", fontsize=9)
    picture.supylabel("match rate (final token among the layer's top k)", fontsize=9)
    handles: list[Any] = [Line2D([], [], color=c, label=f"k = {k}") for k, c in colours.items()]
    if any(row["head"] == "Y" for row in rows):
        handles.append(Line2D([], [], color=INK, linestyle="--", label="trained head"))
    if any(row["low"] is not None for row in rows):
        handles.append(Patch(facecolor=INK, alpha=0.15, label="95% interval"))
    picture.legend(handles=handles, loc="outside right center")
    return picture


def _curve(axes: Axes, rows: Sequence[Row], colour: str, dashed: bool) -> None:
    rows = sorted(rows, key=lambda row: row["layer"])
    layers = [row["layer"] for row in rows]
    rates = [row["match_rate"] for row in rows]
    marker = "o" if len(rows) <= 16 else ""
    line = "--" if dashed else "-"
    axes.plot(layers, rates, line, color=colour, marker=marker, markersize=3.5)
    if all(row["low"] is not None for row in rows):
        low, high = [row["low"] for row in rows], [row["high"] for row in rows]
        axes.fill_between(layers, low, high, color=colour, alpha=0.15, linewidth=0)


@quiet_style()
def draft_accuracies(rows: Sequence[Row]) -> Figure:
    """Accuracy of the first k guesses: a panel for each task and distance, a line per method."""
    panels = _split(rows, ("task", "distance"))
    several = len({task for task, _ in panels}) > 1
    columns = len({distance for _, distance in panels})
    colours = dict(zip(dict.fromkeys(row["method"] for row in rows), cycle(PALETTE)))
    picture, all_axes = _small_multiples(len(panels), 2.6, 2.5, columns)
    for axes, ((task, distance), panel) in zip(all_axes, panels.items(), strict=True):
        for (method,), curve in _split(panel, ("method",)).items():
            ks, accuracy = [row["k"] for row in curve], [row["accuracy"] for row in curve]
            low, high = [row["low"] for row in curve], [row["high"] for row in curve]
            axes.plot(ks, accuracy, color=colours[method], marker="o", markersize=3.5)
            axes.fill_between(ks, low, high, color=colours[method], alpha=0.15, linewidth=0)
        title = f"{task}, distance {distance}" if several else f"distance {distance}"
        axes.set_title(_title(title, 2.3))
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    picture.supxlabel("guesses k", fontsize=9)
    picture.supylabel("the model's token among the first k", fontsize=9)
    handles: list[Any] = [Line2D([], [], color=c, label=plain(m)) for m, c in colours.items()]
    handles.append(Patch(facecolor=INK, alpha=0.15, label="95% interval"))
    picture.legend(handles=handles, loc="outside right center")
    return picture


@quiet_style()
def similarities(rows: Sequence[Row]) -> Figure:
    """Similarity by layer: a panel for each task and method, a line for each step."""
    panels = _panels(rows, ("task", "method"), always=1)
    colours = dict(zip(sorted({row["step"] for row in rows}), cycle(PALETTE)))
    picture, all_axes = _small_multiples(len(panels), width=3.4, height=2.9)
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        for (step,), curve in _split(panel, ("step",)).items():
            layers, means = [row["layer"] for row in curve], [row["similarity"] for row in curve]
            axes.plot(layers, means, color=colours[step], marker="o", markersize=3.5)
        axes.set_title(_title(title, 3.0))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    picture.supxlabel("layers run", fontsize=9)
    picture.supylabel("cosine of pseudo and true state", fontsize=9)
    handles = [Line2D([], [], color=c, label=f"step {step}") for step, c in colours.items()]
    picture.legend(handles=handles, loc="outside right center")
    return picture


@quiet_style()
def bucket_heatmap(rows: Sequence[Row], k: int) -> Figure:
    """Match rate by layer and token position: a panel for each task."""
    rows = [row for row in rows if row["k"] == k and row["bucket"] != "total"]
    panels = _panels(rows, ("task", "head", "target"), always=1)
    n_layers = len({row["layer"] for row in rows})
    n_buckets = len({row["bucket"] for row in rows})
    width, height = 1.1 + 0.42 * max(n_buckets, 5), 0.7 + 0.19 * max(n_layers, 6)
    kinds = len(_split(rows, ("head", "target")))
    picture, all_axes = _small_multiples(len(panels), width, height, kinds if kinds > 1 else 3)
    scale = ScalarMappable(Normalize(0, 1), "Blues")
    for axes, (title, panel) in zip(all_axes, panels.items(), strict=True):
        _heat(axes, panel, scale)
        axes.set_title(_title(title, width - 0.5))
    picture.supxlabel("token position", fontsize=9)
    picture.supylabel("layers run", fontsize=9)
    bar = picture.colorbar(scale, ax=all_axes, format=PercentFormatter(1), aspect=30, pad=0.02)
    bar.set_label(f"match rate, k = {k}")
    bar.outline.set_visible(False)
    return picture


def _heat(axes: Axes, rows: Sequence[Row], scale: ScalarMappable) -> None:
    layers = sorted({row["layer"] for row in rows})
    buckets = list(dict.fromkeys(row["bucket"] for row in rows))
    for row in rows:
        y, x = layers.index(row["layer"]), buckets.index(row["bucket"])
        rate = row["match_rate"]
        axes.add_patch(square(x, y, scale.to_rgba(rate)))
        ink = "white" if rate > 0.6 else INK
        axes.text(x, y, f"{100 * rate:.0f}", ha="center", va="center", fontsize=6.5, color=ink)
    grid_axes(axes, len(buckets), len(layers))
    axes.set_xticks(range(len(buckets)), [plain(b) for b in buckets], rotation=45, fontsize=7)
    axes.set_yticks(range(len(layers)), layers, fontsize=7)


# --- Training ------------------------------------------------------------------------------

NO_LOSSES = {"step", "learning_rate", "tokens", "tokens_per_s", "gradient_norm"}


@quiet_style()
def training_curves(lines: Sequence[Row]) -> Figure:
    """Losses by tokens seen, each smoothed over about a fiftieth of the run."""
    if not lines:
        raise DataError("no steps to draw")
    picture = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = picture.subplots()
    # What is trained in phases has losses that other phases do not have.
    logged = dict.fromkeys(name for line in lines for name in line)
    names = [name for name in logged if name not in NO_LOSSES]
    for name, colour in zip(names, cycle(PALETTE)):
        points = [(line["tokens"], line[name]) for line in lines if name in line]
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, _smooth(ys, max(1, len(ys) // 50)), color=colour, label=plain(name))
    axes.set_xlabel("tokens seen")
    axes.set_ylabel("loss (nats per token)")
    axes.legend()
    return picture


def _smooth(values: Sequence[float], width: int) -> list[float]:
    """The mean of the last `width` values at each place."""
    return [
        sum(part := values[max(0, i + 1 - width) : i + 1]) / len(part) for i in range(len(values))
    ]


# --- The token grid ------------------------------------------------------------------------

CELL_WIDTH, CELL_HEIGHT = 0.64, 0.2  # inches
CELL_CHARACTERS = 9
COLUMNS_PER_BLOCK = 16
LEFT, RIGHT, TOP, BOTTOM = 0.6, 0.15, 0.32, 0.55
BLOCK_HEAD = 0.42  # gap and tokens above a block
CELL_COLOURS = ("#0b5394", "#6fa8dc", "#cfe2f3", "#f6f6f6")
CELL_INKS = ("white", "black", "black", "#777777")


@quiet_style()
def token_grid(grid: TokenGrid) -> Figure:
    """Layers × output tokens of one example, coloured by the final token's rank.

    The deepest layer is at the bottom; after every 16 tokens a new block begins below.
    """
    n_tokens, n_layers = len(grid.tokens), len(grid.layers)
    firsts = range(0, n_tokens, COLUMNS_PER_BLOCK)
    block = n_layers * CELL_HEIGHT
    columns = max(8, min(COLUMNS_PER_BLOCK, n_tokens))  # the legend needs some room
    width = LEFT + RIGHT + columns * CELL_WIDTH
    height = TOP + BOTTOM + len(firsts) * (BLOCK_HEAD + block)
    picture = Figure(figsize=(width, height))
    for index, first in enumerate(firsts):
        size = min(COLUMNS_PER_BLOCK, n_tokens - first)
        bottom = height - TOP - (index + 1) * (BLOCK_HEAD + block)
        box = (LEFT / width, bottom / height, size * CELL_WIDTH / width, block / height)
        _token_block(picture.add_axes(box), grid, range(first, first + size))
    title = _title(grid.title, width - LEFT - RIGHT)
    at = (LEFT / width, 1 - 0.28 / height)
    picture.text(*at, title, fontsize=10, fontweight="bold")
    _grid_legend(picture, width, height)
    return picture


def _token_block(axes: Axes, grid: TokenGrid, columns: range) -> None:
    for y, (words, ranks) in enumerate(zip(grid.predictions, grid.ranks, strict=True)):
        for x, column in enumerate(columns):
            kind = rank_class(ranks[column])
            axes.add_patch(square(x, y, CELL_COLOURS[kind]))
            text = _cell_text(words[column])
            axes.text(x, y, text, color=CELL_INKS[kind], **CELL_TEXT)
    grid_axes(axes, len(columns), len(grid.layers))
    heads = [_cell_text(grid.tokens[column]) for column in columns]
    axes.set_xticks(range(len(columns)), heads, fontfamily=CELL_FONTS, fontsize=6.5)
    axes.tick_params(top=False, labeltop=True, labelbottom=False, pad=1)
    for label in axes.get_xticklabels():
        label.set_fontweight("bold")
    axes.set_yticks(range(len(grid.layers)), map(str, grid.layers), fontsize=7)
    axes.set_ylabel("layers run", fontsize=7)


CELL_FONTS = [CELL_FONT, TEXT_FONT]  # the second has what the first lacks
CELL_TEXT: dict[str, Any] = {
    "ha": "center",
    "va": "center_baseline",
    "fontsize": 6.5,
    "fontfamily": CELL_FONTS,
    "clip_on": True,
}


def _cell_text(token: str) -> str:
    text = plain(visible(token))
    return text if len(text) <= CELL_CHARACTERS else text[: CELL_CHARACTERS - 1] + "…"


def _grid_legend(picture: Figure, width: float, height: float) -> None:
    handles = [
        Patch(facecolor=colour, edgecolor=RULE, label=name)
        for colour, name in zip(CELL_COLOURS, CLASS_NAMES, strict=True)
    ]
    picture.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=((LEFT - 0.1) / width, 0.2 / height),
        ncols=4,
        fontsize=7,
        borderpad=0,
        handlelength=1.2,
        columnspacing=1.2,
    )
    words = (
        "Cells: the layer's own choice; colour: rank of the final token, which heads its column."
    )
    picture.text(LEFT / width, 0.08 / height, words, fontsize=7)


# --- Shared pieces -------------------------------------------------------------------------


def square(x: int, y: int, colour: Any) -> Rectangle:
    """A unit cell around (x, y)."""
    return Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8)


def grid_axes(axes: Axes, columns: int, rows: int) -> None:
    """Axes of unit cells, first row on top, with nothing around them."""
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.grid(False)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _split(rows: Sequence[Row], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def _panels(rows: Sequence[Row], keys: Sequence[str], always: int) -> dict[str, list[Row]]:
    """Rows by panel title, which leaves out what is the same everywhere after `always` keys."""
    if not rows:
        raise DataError("no match rates to draw: no rows of the kind that this plot shows")
    varying = [
        key for i, key in enumerate(keys) if i < always or len({row[key] for row in rows}) > 1
    ]
    groups = _split(rows, varying)
    names = {"N": "own head", "Y": "trained head"}
    return {", ".join(names.get(v, v) for v in key): group for key, group in groups.items()}


def _small_multiples(
    count: int, width: float, height: float, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    columns = min(count, 2 if count == 4 else columns)
    lines = -(-count // columns)
    size = (columns * width + 1.4, lines * height + 0.5)
    picture = Figure(figsize=size, layout="constrained")
    axes = list(picture.subplots(lines, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    return picture, axes[:count]
