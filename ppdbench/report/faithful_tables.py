"""The table of a test of faithfulness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ppdbench.methods import LENDERS
from ppdbench.report.sheet import Sheet

if TYPE_CHECKING:
    from ppdbench.bench.drawing import TestedMethod

NOTE = (
    "p: of all tests together, by Holm's correction; below 0.01 a method is unfaithful. Where that "
    "may be chance new outputs decide, and p of the first ones stands in brackets. Total variation "
    "with its 95% interval. Power: to find a total variation of 0.02. Controls: p of the same "
    "method with a rule that accepts with probability 1, and one that forgets the residual; "
    f"* with the drafts of {' or '.join(LENDERS)}. Drafts: how many tokens deep those went that "
    "were verified; + where outputs have no room for deeper ones, which nobody has seen then "
    "(--max-new-tokens)."
)


def p_value(content: Mapping[str, Any]) -> str:
    """p of a method's findings; behind it that of its first outputs, where others decided."""
    before = content.get("before")  # not in what earlier versions stored
    return f"{content['p_value']:.3g}" + (f" ({before['p_value']:.3g})" if before else "")


def sheet(tests: Sequence[TestedMethod]) -> Sheet:
    """A row for each method."""
    rows = []
    for test in tests:
        found, content = test.found, test.to_json()
        far = content["largest_deviation"]
        told = ""
        if far is not None:
            told = f"{far['text']!r}: {far['drawn']:.3f} for {far['expected']:.3f}, {far['where']}"
        rows.append(
            (
                test.label,
                content["faithful"],
                p_value(content),
                f"{found.total_variation:.3f} ({found.low:.3f} to {found.high:.3f})",
                f"{found.power:.0%}",
                ", ".join(
                    f"{control.p_value:.1g}{'' if test.drafts[name] == test.label else '*'}"
                    for name, control in test.controls.items()
                ),
                _deepest(test),
                told,
            )
        )
    head = (
        *("method", "verdict", "p", "total variation", "power", "controls", "drafts"),
        "largest deviation",
    )
    title = "Drawn outputs against the model's probabilities"
    return Sheet(title, head, tuple(rows), (NOTE,), prose="largest deviation")


def _deepest(test: TestedMethod) -> str | None:
    """The depth of the deepest draft that was verified, if there was any."""
    return f"{test.depth}{'+' if test.depth >= test.room else ''}" if test.depth else None
