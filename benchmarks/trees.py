"""The gain expected of trees beside their gain on other text, by size.

    python -m benchmarks.trees CALIBRATED DECODED

Both are run folders of `ppdbench probe --what drafts`. Trees of each method are grown from the
first and expected to give what they give there. Beside it stands what decoding the outputs of
the second with them gives: not timed, but the same steps (tests/trees/test_replay.py).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ppdbench import methods as methods  # tells how their guesses come
from ppdbench.probe.accuracy import calibration
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets
from ppdbench.runs.records import Sample
from ppdbench.runs.store import read_whole
from ppdbench.stats import Ratio
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.curve import TreePlan, curve
from ppdbench.trees.expected import basis, expected

ROWS = (2, 4, 8, 16, 32, 64, 128)  # of a pass


def sheet(method: str, ours: Accuracies, theirs: Accuracies) -> Sheet:
    """A row for each size of tree."""
    plan = TreePlan.of(ours)
    kind, rows = plan.kinds[0], []
    for point in curve(plan, kind, ROWS):
        promised, found = expected(point.tree, ours), expected(point.tree, theirs)
        change = f"{100 * (found.value / promised.value - 1):+.1f}%"
        rows.append((point.rows, point.nodes - 1, _text(promised), _text(found), change))
    return Sheet(
        f"{kind.capitalize()} trees for {method}: tokens of a step",
        ("rows", "nodes", "expected", "decoded", "difference"),
        tuple(rows),
        notes=(basis(ours), basis(theirs).replace("Expected", "Decoded", 1)),
    )


def _text(tokens: Ratio) -> str:
    within = "" if tokens.low is None else f" [{tokens.low:.3f}, {tokens.high:.3f}]"
    return f"{tokens.value:.3f}{within}"


def main(folders: Sequence[str]) -> None:
    """Every method that both runs probed."""
    runs = [read_whole(folder) for folder in folders]
    ours, theirs = (_methods(run.samples) for run in runs)
    print_sheets(
        [
            sheet(m, *(calibration(r.header, r.samples, m) for r in runs))
            for m in sorted(ours & theirs)
        ]
    )


def _methods(samples: Sequence[Sample]) -> set[str]:
    return {sample.method for sample in samples}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1:])
