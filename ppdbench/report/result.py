"""A run as people get it: it prints as its command's tables and turns into a pandas frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions
from rich.text import Text

from ppdbench.errors import counted
from ppdbench.report.decode_tables import differing
from ppdbench.report.export import PrintedOutput
from ppdbench.report.html import Child, h
from ppdbench.report.outputs import of_run
from ppdbench.report.page.parts import html_table
from ppdbench.report.page.runs import Run
from ppdbench.report.terminal import printed_width, table_lines
from ppdbench.runs.records import FailedSample, Header, Sample
from ppdbench.runs.store import StoredRun

if TYPE_CHECKING:
    from pandas import DataFrame

    from ppdbench.runs.workload import FinishedRun

WRONG, BROKEN = 1, 3  # exit codes


@dataclass(frozen=True, slots=True)
class Problem:
    """A reason why a run is not all that was asked for, and the exit code that says so."""

    text: str
    code: int


def problems(header: Header, samples: Sequence[Sample]) -> list[Problem]:
    """All that went wrong in a run that decodes."""
    found = [
        Problem(f"{label} did not run: {error}", BROKEN) for label, error in header.not_run.items()
    ]
    failed = [sample for sample in samples if isinstance(sample, FailedSample)]
    if failed:
        first = failed[0]
        where = f"{first.method} on {first.task} {first.example_id}"
        n = counted(len(failed), "example")
        found.append(Problem(f"{n} failed; the first: {where}: {first.error}", BROKEN))
    mismatches = sum(sample.verdict == "mismatch" for sample in samples)
    if mismatches:
        found.append(Problem(f"{differing(mismatches)} (see verdict in the run's samples)", WRONG))
    return found


@dataclass(frozen=True)  # no slots: what is computed once is kept
class Result:
    """The findings of a run; `print`, rich and notebooks show its tables."""

    run: Run

    @classmethod
    def of(cls, run: FinishedRun) -> Result:
        """The result of a run that is just over."""
        stored = StoredRun(run.path, run.header, run.samples)
        return cls(Run(run.path.name, stored))

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.run.stored.path

    @property
    def header(self) -> Header:
        """The content of its run.json."""
        return self.run.header

    @property
    def samples(self) -> Sequence[Sample]:
        """All that is stored of each example."""
        return self.run.stored.samples

    @cached_property
    def output(self) -> PrintedOutput:
        """The tables that its command prints, and their figures."""
        return of_run(self.run)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """All that went wrong: outputs that differ from greedy's, examples that failed."""
        return tuple(p.text for p in problems(self.header, self.run.samples))

    def frame(self) -> DataFrame:
        """Every figure, a row for each method and task, or what else the run compares."""
        from pandas import DataFrame

        sheet = self.output.long
        return DataFrame(list(sheet.rows), columns=list(sheet.header))

    def __repr__(self) -> str:
        return f"<{self.run.kind} run {self.path}>"

    def __str__(self) -> str:
        return "\n".join(line.plain for line in self._lines(printed_width()))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from self._lines(options.max_width)

    def _lines(self, width: int) -> Iterator[Text]:
        for number, sheet in enumerate(self.output.sheets):
            if number:
                yield Text()
            yield from table_lines(sheet.cleaned("terminal"), width)
        if self.problems:
            yield Text()
        yield from map(Text, self.problems)

    def _repr_html_(self) -> str:
        wrong: list[Child] = [h("p", h("strong", text)) for text in self.problems]
        return str(h("div", map(html_table, self.output.sheets), wrong))
