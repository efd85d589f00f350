"""Trees for people: the curve that a size is chosen from, and the nodes of a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console
from rich.text import Text
from rich.tree import Tree as Branches

from ppdbench.report.sheet import Cell, Sheet
from ppdbench.report.terminal import people
from ppdbench.stats import Ratio
from ppdbench.trees.build import Built
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.curve import SizePoint, TreePlan
from ppdbench.trees.dynamic import DynamicTree
from ppdbench.trees.expected import basis, expected, in_states
from ppdbench.trees.latency import Latency
from ppdbench.trees.tree import Node, Tree

# The curve


def curve_sheet(built: Built) -> Sheet:
    """Show what trees of each size promise, the chosen one marked."""
    plan, latency = built.plan, built.latency
    rows = [_row(plan, point, point is built.chosen) for point in built.points]
    on = "" if latency is None else f", {latency.label}"
    rivals = list(built.chosen.others)
    return Sheet.of(
        f"{built.kind.capitalize()} trees for {plan.accuracies.method}{on}",
        rows,
        notes=(*_counting_notes(plan, rivals), basis(plan.accuracies), *_latency_notes(latency)),
        digits={**dict.fromkeys(("tokens/step", "±95%", *rivals), 3), "pass ms": 2, "speedup": 2},
    )


def _row(plan: TreePlan, point: SizePoint, is_chosen: bool) -> dict[str, Cell]:
    row: dict[str, Cell] = {"rows": point.rows, "nodes": point.nodes}
    row["tokens/step"] = point.tokens_per_step
    if plan.accuracies.outputs:
        row["±95%"] = _half(point.tokens_low, point.tokens_high)
    row |= point.others
    if point.seconds is not None:
        row |= {"pass ms": 1e3 * point.seconds, "speedup": point.speedup}
    return {**row, "chosen": "yes" if is_chosen else ""}


def _counting_notes(plan: TreePlan, rivals: Sequence[str]) -> Iterator[str]:
    inserted = "; the others make guesses" if plan.inserted else ""
    yield (
        f"rows: of a pass; nodes: those that hold tokens, the newest included{inserted}. "
        f"tokens/step: expected, the model's own included; {' and '.join(rivals)}: the same for "
        "such a tree with no more rows."
    )
    if plan.accuracies.outputs:
        yield "Trees are judged by the outputs that they are grown from: others may give less."


def _half(low: float | None, high: float | None) -> float | None:
    """Half the width of an interval; what rests on a single output has none."""
    return None if low is None or high is None else (high - low) / 2


def _latency_notes(latency: Latency | None) -> Iterator[str]:
    if latency is None:
        yield "No pass was timed, so no speedup: --model or --latency FILE asks for it."
        return
    yield (
        f"pass: median of {latency.rounds} rounds behind {latency.context} tokens on "
        f"{latency.device}, threads: {latency.threads}, dips smoothed; speedup: over greedy "
        f"decoding at {1e3 * latency.at(1):.2f} ms a token, drafting itself not counted."
    )


def curve_json(built: Built) -> dict[str, Any]:
    """The same for programs."""
    plan, latency = built.plan, built.latency
    return {
        "method": plan.accuracies.method,
        "kind": built.kind,
        "calibration_n": plan.accuracies.n,
        "calibration_outputs": len(plan.accuracies.outputs),
        "basis": basis(plan.accuracies),
        "depth": plan.depth,
        "rows_per_guess": plan.inserted,
        "seed": plan.seed,
        "chosen": _point_json(built.chosen),
        "points": [_point_json(point) for point in built.points],
        "latency": None if latency is None else asdict(latency),
    }


def _point_json(point: SizePoint) -> dict[str, Any]:
    return {
        "size": point.size,
        "rows": point.rows,
        "nodes": point.nodes,
        "tokens_per_step": point.tokens_per_step,
        "tokens_low": point.tokens_low,
        "tokens_high": point.tokens_high,
        "others": point.others,
        "pass_s": point.seconds,
        "speedup": point.speedup,
    }


# A tree


@dataclass(frozen=True)
class TreeView:
    """One tree with what is known of its nodes, each beginning with the newest token.

    A static tree has no `prompts`; nothing has probabilities without accuracies. `reached` says
    how likely each node is to be accepted, `last` to be the last one, `share` how much of the
    time a dynamic tree is in this state and `tokens` what a step in it gives.
    """

    name: str
    tree: Tree
    prompts: tuple[int, ...] | None = None
    reached: tuple[float, ...] | None = None
    last: tuple[float, ...] | None = None
    share: float | None = None
    tokens: float | None = None

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The newest token and the tree's nodes."""
        return ((), *self.tree.paths)

    @property
    def title(self) -> str:
        """A line on what there is in this view."""
        said = [f"{len(self.nodes)} nodes"]
        if self.prompts is not None:
            said.append(f"{sum(self.prompts)} prompt tokens")
        if self.share is not None:
            said.append(f"{100 * self.share:.1f}% of steps")
        if self.tokens is not None:
            said.append(f"{self.tokens:.3f} tokens/step")
        return f"{self.name}: {', '.join(said)}"


@dataclass(frozen=True)
class ShownTree:
    """A static tree, or the states of a dynamic one, and what a step is expected to give.

    `basis` says from what that is known.
    """

    views: tuple[TreeView, ...]
    title: str
    tokens: Ratio | None = None
    basis: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """The meaning of the numbers at the nodes."""
        notes = ["rank: of the guess, 0 the likeliest"]
        if self.tokens is not None:
            notes.append("%: how often accepted, with all above")
        if self.views[0].prompts is not None:
            notes.append("+: prompt tokens that follow")
        return (f"{'; '.join(notes)}.",)


def show(tree: Tree | DynamicTree, accuracies: Accuracies | None) -> ShownTree:
    """Gather what there is to see of a tree, with accuracies or without."""
    kind = "static" if isinstance(tree, Tree) else "dynamic"
    if accuracies is None:
        return ShownTree(tuple(_bare(tree)), f"{kind} tree")
    tokens = expected(tree, accuracies)
    views = (
        replace(view, **vars(known))
        for view, known in zip(_bare(tree), in_states(tree, accuracies), strict=True)
    )
    within = "" if tokens.low is None else f" [{tokens.low:.3f}, {tokens.high:.3f}]"
    title = f"{kind} tree, {accuracies.method}: {tokens.value:.3f}{within} tokens a step expected"
    return ShownTree(tuple(views), title, tokens, basis(accuracies))


def _bare(tree: Tree | DynamicTree) -> Iterator[TreeView]:
    """A view for each state, with nothing known of its nodes."""
    if isinstance(tree, Tree):
        yield TreeView("tree", tree)
        return
    for k, state in enumerate(tree.states, 1):
        yield TreeView(f"state {k} of {tree.reach}", state.tree, prompts=state.prompts)


def print_shown(shown: ShownTree, console: Console | None = None) -> None:
    """Draw trees with lines."""
    console = console or people()
    console.print(Text(shown.title, style="bold"))
    for view in shown.views:
        console.print()
        console.print(Text(view.title, style="bold"))
        console.print(_drawn(view))
    for note in filter(None, (*shown.notes, shown.basis)):
        console.print()
        console.print(Text(note, style="dim"))


def _drawn(view: TreeView) -> Branches:
    root = Branches(_label(view, 0), guide_style="dim")
    made: dict[Node, Branches] = {(): root}
    for place, path in enumerate(view.tree.paths, 1):
        made[path] = made[path[:-1]].add(_label(view, place))
    return root


def _label(view: TreeView, place: int) -> Text:
    path = view.nodes[place]
    label = Text(f"rank {path[-1]}" if path else "newest token")
    if view.reached is not None:
        likely = view.reached[place]
        label.append(f"  {100 * likely:.1f}%", style="bold" if likely >= 0.1 else "")
    if view.prompts is not None:
        label.append(f"  +{view.prompts[place]}", style="dim")
    return label


def nodes_sheet(shown: ShownTree) -> Sheet:
    """Every node in a row."""
    return Sheet.of(
        shown.title,
        [row for view in shown.views for row in _node_rows(view)],
        notes=("node: ranks from the newest token on, from 0.", *filter(None, [shown.basis])),
        percent=frozenset({"accepted", "last accepted"}),
    )


def _node_rows(view: TreeView) -> Iterator[dict[str, Cell]]:
    for place, path in enumerate(view.nodes):
        row: dict[str, Cell] = {} if view.prompts is None else {"state": view.name}
        row |= {"node": " ".join(map(str, path)) or "newest token", "depth": len(path)}
        if view.prompts is not None:
            row["prompts"] = view.prompts[place]
        if view.reached is not None and view.last is not None:
            row |= {"accepted": view.reached[place], "last accepted": view.last[place]}
        yield row


def shown_json(shown: ShownTree) -> dict[str, Any]:
    """The same for programs."""
    return {
        "title": shown.title,
        "tokens_per_step": None if shown.tokens is None else shown.tokens.value,
        "tokens_low": None if shown.tokens is None else shown.tokens.low,
        "tokens_high": None if shown.tokens is None else shown.tokens.high,
        "basis": shown.basis,
        "views": [_view_json(view) for view in shown.views],
    }


def _view_json(view: TreeView) -> dict[str, Any]:
    facts: Mapping[str, Any] = {
        "prompts": view.prompts,
        "accepted": view.reached,
        "last": view.last,
    }
    return {
        "name": view.name,
        "share": view.share,
        "tokens_per_step": view.tokens,
        "nodes": [
            {
                "path": list(path),
                **{name: each[place] for name, each in facts.items() if each is not None},
            }
            for place, path in enumerate(view.nodes)
        ],
    }
