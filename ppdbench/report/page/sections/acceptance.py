"""The section on acceptance: how many drafted tokens a step keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

from ppdbench.report.html import Child
from ppdbench.report.page.parts import Section, by_run, gallery, paragraphs
from ppdbench.report.page.runs import DECODES, Run, of_kind
from ppdbench.report.pictures.drawing import Drawing, slug
from ppdbench.report.pictures.histogram import histogram

WORDS = (
    "Every step commits the drafts that it accepts and one token of the model's own. Methods that "
    "propose nothing have no picture here."
)


def section(runs: Sequence[Run]) -> Section | None:
    """A histogram for each method of each run, over all its tasks."""
    body = by_run(of_kind(runs, DECODES), _of_run)
    return Section("acceptance", "Acceptance", [*paragraphs(WORDS), *body]) if any(body) else None


def _of_run(run: Run) -> list[Child]:
    own = [drawing for s in run.overall if (drawing := _of_method(run, s["label"])) is not None]
    return [gallery(own)] if own else []


def _of_method(run: Run, label: str) -> Drawing | None:
    own = [s for s in run.sums if s.method == label and not s.failed]
    proposed = sum(s.proposed for s in own)
    counts = Counter(chain.from_iterable(s.accepted_each for s in own))
    if not proposed or not counts:
        return None
    accepted = sum(n * steps for n, steps in counts.items())
    share, steps = accepted / proposed, counts.total()
    return histogram(
        slug(run.name, "accepted", label),
        f"{label}: accepted per step",
        f"{accepted} of {proposed} proposed tokens accepted ({100 * share:.1f}%) in {steps} steps.",
        {n: counts[n] for n in range(max(counts) + 1)},
        "drafts accepted in a step",
    )
