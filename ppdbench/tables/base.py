"""The parts of a table: a paper's numbers, stored runs, and a layout that shows both.

    PROBE = RecipeStep("my-probe", "probe --task squad --layers {10/40},{20/40} -k 1,3,5")

    @table("ppd/2", recipe=(PROBE,))
    def match_rates(paper: Paper, runs: Sequence[StoredRun]) -> Sheet:

A layout gets runs of one model that hold samples. The setting of the paper and ours stand above
every table without its doing. A table whose numbers cannot be measured here has no recipe; its
layout gets no runs and shows what the package itself can tell.

Where the paper's own layout is wide, a layout returns `TableSheets`: one sheet with a column for
every number, for CSV and JSON, and the sheets that people read, with cells like `36.1 (38.9)`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ppdbench.errors import ConfigError, DataError
from ppdbench.files import papers
from ppdbench.files.papers import Paper as Paper
from ppdbench.registry import Registry
from ppdbench.report.sheet import Sheet, marked
from ppdbench.runs.store import StoredRun
from ppdbench.runs.unfinished import unfinished
from ppdbench.tables.accepted import check_runs, check_shown, not_run
from ppdbench.tables.recipe import GIVEN, RecipeStep, TableRecipe
from ppdbench.tables.setting import setting_lines

if TYPE_CHECKING:
    from ppdbench.report.pictures.drawing import Drawing


@dataclass(frozen=True, slots=True)
class TableSheets:
    """A table laid out twice: for programs and for people."""

    data: Sheet
    shown: tuple[Sheet, ...]


TableLayout = Callable[[Paper, Sequence[StoredRun]], Sheet | TableSheets]
Draw = Callable[[Paper, Sequence[StoredRun]], "Drawing"]


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One table of a paper: where its numbers are, and how ours stand beside them."""

    name: str
    recipe: TableRecipe
    layout: TableLayout
    tasks: frozenset[str] = frozenset()
    draw: Draw | None = None
    drawn: bool = False

    @property
    def needs(self) -> str:
        """The commands that a user has to run first; {20/40} is that share of the layers."""
        commands = "; ".join(f"ppdbench {step.command}" for step in self.recipe)
        return f"ppdbench table {self.name} --run, which is: {commands}"

    def build(self, runs: Sequence[StoredRun]) -> TableSheets:
        """The table from these runs, with both settings above it."""
        check_runs(runs)
        lacking, without = _lacking(runs), not_run(runs)
        runs, paper = self._on_its_tasks(runs), papers.read_paper(self.name)
        check_shown(self.name, runs, drawn=self.drawn)
        laid = self._laid_out(paper, runs, without)
        above = setting_lines(paper, runs)
        first, *others = marked(laid.shown, lacking)
        (data,) = marked([laid.data], lacking)
        return TableSheets(
            _between(data, above, without), (_between(first, above, without), *others)
        )

    def _laid_out(
        self, paper: Paper, runs: Sequence[StoredRun], without: Sequence[str]
    ) -> TableSheets:
        """The layout filled, or what keeps it empty, methods that did not run among it."""
        try:
            made = self.layout(paper, runs)
        except DataError as error:
            raise DataError("; ".join([str(error), *without])) from error
        return TableSheets(made, (made,)) if isinstance(made, Sheet) else made

    def picture(self, runs: Sequence[StoredRun]) -> Drawing:
        """The figure whose points the table holds, if it is one."""
        assert self.draw is not None
        return self.draw(papers.read_paper(self.name), self._on_its_tasks(runs))

    def check_picture(self) -> None:
        """Refuse a picture of a table that is none."""
        if self.draw is None:
            raise ConfigError(f"--plot: {self.name} is no figure; leave it out")

    def _on_its_tasks(self, runs: Sequence[StoredRun]) -> list[StoredRun]:
        """The runs with those samples alone that the table is about."""
        if not self.tasks:
            return list(runs)
        kept = [
            replace(run, samples=[s for s in run.samples if s.task in self.tasks]) for run in runs
        ]
        if not any(run.samples for run in kept):
            raise DataError(
                f"none of these runs is on {' or '.join(sorted(self.tasks))}; it takes {self.needs}"
            )
        return [run for run in kept if run.samples]


def _lacking(runs: Sequence[StoredRun]) -> str | None:
    """Say how much of which runs is missing."""
    told = [(run.path, unfinished(run.header, run.samples)) for run in runs]
    return " ".join(f"{path}: {words}" for path, words in told if words) or None


def _between(sheet: Sheet, above: Sequence[str], below: Sequence[str]) -> Sheet:
    return replace(sheet, lead=(*above, *sheet.lead), notes=(*sheet.notes, *below))


TABLES: Registry[PaperTable] = Registry("table")
STEPS: dict[str, RecipeStep] = {}


def table(
    name: str,
    *,
    recipe: TableRecipe = (),
    tasks: Collection[str] = (),
    draw: Draw | None = None,
    drawn: bool = False,
) -> Callable[[TableLayout], TableLayout]:
    """Register a layout as the table called `name`.

    It gets samples of `tasks`, or all if none are named; `draw` makes the picture of a figure. A
    table is of greedy decoding, unless it tells by itself which tokens were `drawn`.
    """

    def register(layout: TableLayout) -> TableLayout:
        known = set(GIVEN)
        for step in recipe:
            if STEPS.setdefault(step.name, step) != step:
                raise ValueError(f"{name}: step {step.name!r} is another command elsewhere")
            if unknown := step.names - known:
                raise ValueError(f"{name}: step {step.name!r} uses {unknown}, not run before it")
            known.add(step.name)
        TABLES.add(name, PaperTable(name, recipe, layout, frozenset(tasks), draw, drawn))
        return layout

    return register


def pair(ours: str, theirs: str) -> str:
    """A cell that holds both numbers."""
    return f"{ours} ({theirs})"
