"""Pictures of trees: what each size promises, and the nodes of one."""

from __future__ import annotations

from collections.abc import Mapping

from ppdbench.report.pictures.curves import Curve, Value, around, curves
from ppdbench.report.pictures.drawing import Box, Drawing, Label, Line, Shape, side_by_side
from ppdbench.report.pictures.palette import heat
from ppdbench.report.tree_tables import ShownTree, TreeView
from ppdbench.trees.build import Built
from ppdbench.trees.latency import Latency
from ppdbench.trees.tree import Node, Tree

# The curve

ROWS = "rows of a pass"


def speedup_curve(built: Built, foot: str = "") -> Drawing:
    """Tokens of a step by size, the time of a pass, and the speedup that follows from both."""
    panels = [_tokens(built)]
    if built.latency is not None:
        panels += [_times(built.latency, built.points[-1].rows), _speedups(built)]
    return side_by_side(panels, foot)


def _tokens(built: Built) -> Drawing:
    points = built.points
    own = [Value(p.size, p.tokens_per_step, p.tokens_low, p.tokens_high) for p in points]
    given = [Curve(built.kind, 0, own)]
    for i, name in enumerate(points[0].others, start=1):
        given.append(Curve(name, i, [Value(p.size, p.others[name]) for p in points], dash=i))
    ends = [end for c in given for v in c.values for end in (v.y, v.low, v.high)]
    words = f"{built.chosen.tokens_per_step:.3f} with {built.chosen.rows} rows, the chosen size."
    return curves("tokens", "Tokens per step, expected", words, ROWS, given, around(ends))


def _times(latency: Latency, most: int) -> Drawing:
    passes = [each for each in latency.passes if each.rows <= most]
    medians = [Value(p.rows, 1e3 * p.seconds, 1e3 * p.low, 1e3 * p.high) for p in passes]
    smooth = [Value(p.rows, 1e3 * latency.at(p.rows)) for p in passes]
    given = [
        Curve("median, half of all", 0, medians, line=False),
        Curve("without dips", 1, smooth, marks=False),
    ]
    upward = around([0.0, *(value.high for value in medians)])
    words = f"{medians[-1].y:.2f} ms for {passes[-1].rows} rows."
    return curves("times", "Time of a pass, ms", words, ROWS, given, upward)


def _speedups(built: Built) -> Drawing:
    points, best = built.points, built.chosen
    own = [Value(point.rows, point.speedup or 0.0) for point in points]
    label = f"{best.rows} rows: {best.speedup or 0.0:.2f}x"
    chosen = Curve(label, 1, [Value(best.rows, best.speedup or 0.0, shape=3)], line=False)
    given = [Curve("", 0, own), chosen]
    upward = around([1.0, *(value.y for value in own)])
    return curves("speedup", "Speedup, predicted", f"{label}.", ROWS, given, upward, rule=1)


# A tree

LEAF, LEVEL = 26.0, 52.0  # side by side, from depth to depth
LEFT, TOP, NARROWEST = 34.0, 16.0, 475.0
NODE = 9.0  # from its middle to its edge


def tree_picture(shown: ShownTree, foot: str = "") -> Drawing:
    """Nodes by depth, as dark as they are likely, with their ranks; states below each other."""
    places = [_places(view.tree) for view in shown.views]
    leaves = 1 + max(x for place in places for x, _ in place.values())
    width = max(NARROWEST, LEFT + LEAF * leaves + 10)
    drawn = [_drawn(view, place, width) for view, place in zip(shown.views, places, strict=True)]
    return side_by_side(
        drawn, " ".join(["Rows: tokens ahead.", *shown.notes, foot]).strip(), columns=1
    )


def _places(tree: Tree) -> dict[Node, tuple[float, int]]:
    """Place the nodes: leaves side by side, others above the middle of their children."""
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


def _drawn(view: TreeView, places: Mapping[Node, tuple[float, int]], width: float) -> Drawing:
    at = {path: (LEFT + LEAF * (x + 0.5), TOP + LEVEL * y) for path, (x, y) in places.items()}
    shapes: list[Shape] = [
        Label(LEFT - 14, TOP + LEVEL * depth + 4, str(depth), anchor="end")
        for depth in range(view.tree.depth + 1)
    ]
    shapes += [Line([at[path[:-1]], at[path]], "muted", 0.8) for path in view.tree.paths]
    for number, path in enumerate(view.nodes):
        shapes += _node(view, number, *at[path])
    height = TOP + LEVEL * (view.tree.depth + 1) - 8
    return Drawing("tree", view.title, f"Depth {view.tree.depth}.", height, tuple(shapes), width)


def _node(view: TreeView, number: int, x: float, y: float) -> list[Shape]:
    path, likely = view.nodes[number], 0.0 if view.reached is None else view.reached[number]
    paint = heat(likely)
    below = [] if view.reached is None or not path else [f"{100 * likely:.1f}%"]
    if view.prompts is not None:
        below.append(f"+{view.prompts[number]}")
    rank = str(path[-1]) if path else ""
    hint = ", ".join([f"ranks {' '.join(map(str, path))}" if path else "newest token", *below])
    return [
        Box(x - NODE, y - NODE, 2 * NODE, 2 * NODE, paint, hint, outline="muted"),
        Label(x, y + 3, rank, f"on-{paint}", "middle", 8.5),
        Box(x - 10, y + NODE + 2, 20, 7.0 * len(below), "panel"),
        *(
            Label(x, y + NODE + 8 + 7 * i, text, "muted", "middle", 6.5)
            for i, text in enumerate(below)
        ),
    ]
