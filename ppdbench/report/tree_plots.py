"""Pictures of trees: what each size promises, and the nodes of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ppdbench.report.plots import INK, PALETTE, plain, quiet_style
from ppdbench.report.tree_tables import ShownTree, TreeView
from ppdbench.trees.build import Built
from ppdbench.trees.curve import SizePoint
from ppdbench.trees.latency import Latency
from ppdbench.trees.tree import Node, Tree

BLUES = colormaps["Blues"]

# The curve


@quiet_style()
def speedup_curve(built: Built) -> Figure:
    """Tokens of a step by size, the time of a pass, and the speedup that follows from both."""
    points, latency = built.points, built.latency
    panels = 1 if latency is None else 3
    picture = Figure(figsize=(1.2 + 3.1 * panels, 3.1), layout="constrained")
    all_axes = picture.subplots(1, panels, squeeze=False)[0]
    _tokens(all_axes[0], built.kind, points)
    if latency is not None:
        _times(all_axes[1], latency, points[-1].rows)
        _speedups(all_axes[2], points, built.chosen)
    picture.supxlabel("rows of a pass", fontsize=9)
    for axes in all_axes:
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return picture


def _tokens(axes: Axes, kind: str, points: Sequence[SizePoint]) -> None:
    lines = {kind: [point.tokens_per_step for point in points]}
    lines |= {name: [point.others[name] for point in points] for name in points[0].others}
    sizes = [point.size for point in points]
    low = [p.tokens_low for p in points if p.tokens_low is not None]
    high = [p.tokens_high for p in points if p.tokens_high is not None]
    if len(low) == len(points):  # there is none from counts alone
        axes.fill_between(sizes, low, high, color=PALETTE[0], alpha=0.15, linewidth=0)
    for (name, values), colour, style in zip(
        lines.items(), PALETTE, ("-", "--", ":"), strict=False
    ):
        axes.plot(sizes, values, style, color=colour, marker="o", markersize=3.5, label=plain(name))
    axes.set_title("Tokens per step, expected")
    axes.legend()


def _times(axes: Axes, latency: Latency, most: int) -> None:
    passes = [each for each in latency.passes if each.rows <= most]
    rows = [each.rows for each in passes]
    low, high = [1e3 * each.low for each in passes], [1e3 * each.high for each in passes]
    medians = [1e3 * each.seconds for each in passes]
    smooth = [1e3 * latency.at(n) for n in rows]
    blue = PALETTE[0]
    axes.fill_between(rows, low, high, color=blue, alpha=0.15, linewidth=0, label="half of all")
    axes.plot(rows, medians, "o", color=blue, markersize=3.5, label="median")
    axes.plot(rows, smooth, color=blue, label="without dips")
    axes.set_ylim(bottom=0)
    axes.set_title("Time of a pass, ms")
    axes.legend()


def _speedups(axes: Axes, points: Sequence[SizePoint], chosen: SizePoint) -> None:
    axes.axhline(1, color=INK, linewidth=0.8, linestyle="--")
    values = [point.speedup or 0.0 for point in points]
    axes.plot([p.rows for p in points], values, color=PALETTE[0], marker="o", markersize=3.5)
    best = chosen.speedup or 0.0
    axes.plot(chosen.rows, best, "o", color=PALETTE[1], markersize=9, markerfacecolor="none")
    axes.annotate(
        f"{chosen.rows} rows: {best:.2f}x",
        (chosen.rows, best),
        xytext=(6, 8),
        textcoords="offset points",
        color=PALETTE[1],
    )
    axes.margins(y=0.2)
    axes.set_title("Speedup, predicted")


# A tree

LEAF, LEVEL, HEAD = 0.36, 0.72, 0.45  # inches: side by side, from depth to depth, for a title
LEFT, RIGHT, BOTTOM = 0.6, 0.2, 0.45
NARROWEST = 6.6
NODE = 14  # points
LIKELIEST = 0.6  # beyond it nodes are so dark that their text is white


@quiet_style()
def tree_picture(shown: ShownTree) -> Figure:
    """Nodes by depth, as dark as they are likely, with their ranks; states below each other."""
    places = [_places(view.tree) for view in shown.views]
    heights = [HEAD + LEVEL * (view.tree.depth + 1) for view in shown.views]
    leaves = 1 + max(x for place in places for x, _ in place.values())
    width, height = max(NARROWEST, LEFT + RIGHT + LEAF * leaves), BOTTOM + sum(heights)
    room = (width - LEFT - RIGHT) / LEAF
    picture = Figure(figsize=(width, height))
    top = height
    for view, place, tall in zip(shown.views, places, heights, strict=True):
        box = (LEFT / width, (top - tall) / height, room * LEAF / width, (tall - HEAD) / height)
        axes = picture.add_axes(box)
        axes.set_xlim(-0.5, room - 0.5)
        _draw_tree(axes, view, place)
        top -= tall
    picture.text(LEFT / width, 0.22 / height, " ".join(shown.notes), fontsize=7)
    return picture


def _places(tree: Tree) -> dict[Node, tuple[float, int]]:
    """Where each node stands: leaves side by side, others above the middle of their children."""
    children: dict[Node, list[Node]] = {(): []}
    for path in sorted(tree.paths):  # parents come before their children here as well
        children[path] = []
        children[path[:-1]].append(path)
    places: dict[Node, tuple[float, int]] = {}
    leaves = 0
    for path in sorted(children, reverse=True):  # children first, from the right to the left
        below = [places[child][0] for child in children[path]]
        if not below:
            leaves += 1
        x = (below[0] + below[-1]) / 2 if below else -leaves
        places[path] = (x, len(path))
    return {path: (x + leaves, depth) for path, (x, depth) in places.items()}


def _draw_tree(axes: Axes, view: TreeView, places: Mapping[Node, tuple[float, int]]) -> None:
    for path in view.tree.paths:
        ends = (places[path[:-1]], places[path])
        axes.plot(*zip(*ends, strict=True), color="#999999", linewidth=0.8, zorder=1)
    for number, path in enumerate(view.nodes):
        _draw_node(axes, view, number, *places[path])
    axes.set_title(plain(view.title), fontsize=8.5)
    axes.set_ylim(view.tree.depth + 0.55, -0.45)
    axes.set_xticks([])
    axes.set_yticks(range(view.tree.depth + 1))
    axes.set_ylabel("tokens ahead", fontsize=8)
    axes.grid(False)
    axes.spines["bottom"].set_visible(False)


def _draw_node(axes: Axes, view: TreeView, number: int, x: float, y: float) -> None:
    likely = 0.0 if view.reached is None else view.reached[number]
    axes.plot(x, y, "o", color=BLUES(likely), markeredgecolor=INK, markeredgewidth=0.6, ms=NODE)
    path = view.nodes[number]
    ink = "white" if likely > LIKELIEST else INK
    axes.text(x, y, str(path[-1]) if path else "", ha="center", va="center", fontsize=7, color=ink)
    below = [] if view.reached is None or not path else [f"{100 * likely:.1f}%"]
    if view.prompts is not None:
        below.append(f"+{view.prompts[number]}")
    axes.annotate(
        "\n".join(below),
        (x, y),
        xytext=(0, -NODE / 2 - 2),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=5.5,
        linespacing=1.1,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3},
    )
