"""Outputs that say nothing are counted beside the speedup that they had a part in."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.bench.degenerate import degenerate
from ppdbench.report import outputs
from ppdbench.report.evidence import degenerate_note
from ppdbench.report.page.document import page
from ppdbench.report.page.runs import Run, read_runs
from tests.report.page import made


@pytest.mark.parametrize(
    ("ids", "text", "kind"),
    [
        ([5, 6], "\n####", "empty"),
        ([5], "", "empty"),
        ([5], "7", None),
        ([5], "é", None),
        ([5, 6], None, None),
        (list(range(40)), "a text", None),
        ([*range(10), *[1, 2, 3] * 6], "the same", "loop"),
        ([4] * 12, "dddd", "loop"),
        ([4] * 11, "short", None),
        ([*range(20), *[1, 2] * 6], "less than half of it", None),
        ([*[1, 2, 3, 4, 5, 6] * 2, 1], "two times and a bit", None),
        ([*[1, 2] * 10, *range(20)], "it came out of its loop", None),
    ],
)
def test_empty_outputs_and_loops_are_told_from_others(
    ids: list[int], text: str | None, kind: str | None
) -> None:
    assert degenerate(ids, text) == kind


def run(folder: Path, n_empty: int) -> Run:
    samples = [
        made.decoded("swift", str(i), 2.0 + 0.01 * i, text="\n####" if i < n_empty else "words")
        for i in range(6)
    ]
    head = made.header("bench", methods=made.methods("swift"))
    return read_runs([made.write(folder, head, samples)])[0]


def test_empty_outputs_stand_beside_the_speedup_and_most_of_them_are_warned_of(
    tmp_path: Path,
) -> None:
    few, most = run(tmp_path / "few", 1), run(tmp_path / "most", 4)
    for found, n, warned in ((few, 1, False), (most, 4, True)):
        (sheet, *_) = outputs.of_run(found).sheets
        (note,) = [note for note in sheet.notes if note.startswith("Degenerate outputs")]
        assert f"{n} empty of 6 (swift)" in note
        assert ("says little of others" in note) == warned
        (figures,) = outputs.of_run(found).content
        assert (figures["empty"], figures["loops"]) == (n, 0)
        text = page([found]).text
        tiles = text.partition('class="tiles"')[2].partition("</ul>")[0]
        assert ("4 of 6 outputs are empty or loop" in tiles) == warned


@pytest.mark.parametrize(
    ("looping", "said"),
    [
        (range(6), "method-0, method-1, method-2, method-3, method-4, method-5"),
        (range(7), "all but method-7, method-8"),
        (range(9), "all"),
    ],
)
def test_a_note_on_most_of_many_methods_names_the_others(looping: range, said: str) -> None:
    summaries = [
        {"label": f"method-{n}", "empty": 0, "loops": int(n in looping), "n_examples": 4}
        for n in range(9)
    ]
    assert degenerate_note(summaries) == f"Degenerate outputs: 1 looping of 4 ({said})."


def test_loops_are_counted_by_their_tokens(tmp_path: Path) -> None:
    sample = made.decoded("swift", output_ids=[7] * 14)
    head = made.header("bench", methods=made.methods("swift"))
    found = read_runs([made.write(tmp_path / "run", head, [sample])])[0]
    assert "1 looping of 1 (swift)" in "".join(outputs.of_run(found).sheets[0].notes)
