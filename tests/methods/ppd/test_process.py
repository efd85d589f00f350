"""Units in processes of their own: what they report arrives."""

from __future__ import annotations

import multiprocessing

from ppdbench.methods.ppd import process


def test_what_a_unit_reports_while_others_are_waited_for_is_not_lost() -> None:
    ours, theirs = multiprocessing.Pipe()
    unit = process.Unit("B", 1.0, multiprocessing.current_process(), ours)
    theirs.send(("done", 7))
    unit.watch(0.0)
    assert unit.finish() == 7
