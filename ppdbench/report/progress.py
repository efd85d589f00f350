"""The progress of a command: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ppdbench.files.clean import clean
from ppdbench.runs.shards import Shard

if TYPE_CHECKING:
    from rich.progress import Task

    from ppdbench.runs.workload import Report

EVERY_S = 30.0  # between two lines where there is no terminal


class Pace:
    """The last report, and how long the rest will take at the speed seen so far.

    The speed is that of all steps since the work began, so that slow ones count however long
    they take. Work of another total begins anew.
    """

    def __init__(self) -> None:
        self.text, self.done = "loading", 0
        self.total: int | None = None
        self.began = time.monotonic()
        self._first, self._since = 0, self.began  # where the speed is measured from
        self._latest = self.began  # when the last step was done

    def report(self, text: str, done: int, total: int | None) -> None:
        """Take in how far it is."""
        now = time.monotonic()
        if total != self.total or done < self.done or done == self._first:
            self._first, self._since = done, now
        if (done, total) != (self.done, self.total):
            self._latest = now
        self.text, self.done, self.total = text, done, total

    def left_s(self) -> float | None:
        """Seconds until the end, or None before the first step is done."""
        steps = self.done - self._first
        if self.total is None or steps <= 0:
            return None
        each = (self._latest - self._since) / steps
        since = time.monotonic() - self._latest  # already spent on the step that is on its way
        return max(0.0, each * (self.total - self.done) - since)

    def line(self) -> str:
        """Write all of it in words."""
        where = self.text if self.total is None else f"{self.text}, {self.done} of {self.total}"
        left = self.left_s()
        rest = "" if left is None else f", about {spoken(left)} left"
        return f"{where}; {spoken(time.monotonic() - self.began)} so far{rest}"


def spoken(seconds: float) -> str:
    """`40 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def progress() -> Iterator[Report]:
    """A bar with the time left on stderr, or lines where that is no terminal.

    Of several processes of one launch only the first says anything.
    """
    from ppdbench.report.terminal import people

    console = people(stderr=True)
    if Shard.launched().follows:
        yield lambda text, done, total: None
    elif console.is_terminal and console.color_system is not None:  # a bar is made of codes
        with _bar(console) as report:
            yield report
    else:
        with _lines() as report:
            yield report


@contextmanager
def _bar(console: Any) -> Iterator[Report]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn
    from rich.text import Text

    pace = Pace()

    class TimeLeft(ProgressColumn):
        """rich's own forgets steps that took longer than half a minute."""

        def render(self, task: Task) -> Text:
            left = pace.left_s()
            return Text("" if left is None else f"{spoken(left)} left", style="progress.remaining")

    told = TextColumn("{task.description}", markup=False)
    columns = (told, BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(pace.text, total=None)

        def report(text: str, done: int, total: int | None) -> None:
            pace.report(text, done, total)
            bar.update(task, description=text, completed=done, total=total)

        yield report


@contextmanager
def _lines() -> Iterator[Report]:
    """Lines come by the clock, so that a step that hangs is seen to hang."""
    pace, over = Pace(), threading.Event()

    def tell() -> None:
        while not over.wait(EVERY_S):
            sys.stderr.write(clean(f"ppdbench: {pace.line()}", "line") + "\n")
            sys.stderr.flush()

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield pace.report
    finally:
        over.set()
        teller.join()
