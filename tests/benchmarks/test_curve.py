"""`python -m benchmarks.curve`: what was measured is kept, and shown again the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import curve, readme
from ppdbench.bench.pass_curve import PassCurve, PassPoint, SideTimes
from ppdbench.engine.flat.choice import PassPath

TINY = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=64"


def kept(threads: int) -> PassCurve:
    points = tuple(
        PassPoint(n, SideTimes((10.0 + n, 11.0 + n, 30.0)), SideTimes((20.0 * n,) * 3))
        for n in (1, 9)
    )
    return PassCurve(
        model="tiny",
        is_synthetic=False,
        dtype="bfloat16",
        device="cpu",
        threads=threads,
        context=128,
        rounds=1,
        points=points,
        same_tokens=9,
        weight_bytes=60_000_000,
        bandwidth_bytes_per_s=1e10,
        path=PassPath("flat, of a kind", "2 times as fast", 0.2),
    )


FOUND = curve.MeasuredCurves(machine="a machine, load 0.0", curves=[kept(1), kept(2)])


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["curve", *words])
    return curve.main()


def test_the_table_holds_times_ratios_the_limit_and_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "curve.json", tmp_path / "curve.svg"
    monkeypatch.setattr(curve, "measured", lambda _: FOUND)
    assert called(monkeypatch, "tiny", "--save", str(file), "--plot", str(picture)) == 0
    said = capsys.readouterr().out
    assert "tiny, bfloat16 on cpu, 2 threads" in said
    assert "| 9 | 20.00 | 180.00 | 1.67 | 9.00 |" in said
    assert "60.0 MB at 10.0 GB/s, takes 6.00 ms: 0.50 of our pass of one row" in said
    assert "our passes: flat, of a kind (2 times as fast); ready after 0.2 s" in said
    assert said.count("a machine, load 0.0") == 2
    assert picture.read_text().count("reading the weights once") >= 2
    again = tmp_path / "again.md"
    assert called(monkeypatch, str(file), "--markdown", str(again)) == 0
    assert capsys.readouterr().out.strip() == again.read_text().strip() == said.strip()


def test_many_curves_are_a_table_of_a_line_each() -> None:
    long = msgspec.structs.replace(FOUND, machine="a machine, load 2.5 before", curves=[kept(1)])
    other = msgspec.structs.replace(FOUND, machine="another")
    sheet = curve.overview([long, FOUND, other])
    assert "x 9" in sheet.header and "x 16" not in sheet.header  # which nothing has rows of
    line = dict(zip(sheet.header, sheet.rows[0], strict=True))
    assert (line["one row ms"], line["x 9"], line["reading / one row"]) == (12.0, 20 / 12, 0.5)
    assert (line["transformers ms"], line["transformers x 9"]) == (20.0, 9.0)
    assert [row[sheet.header.index("threads")] for row in sheet.rows] == [1, 1, 2, 1, 2]
    assert sheet.notes[1:] == ("a machine, load 2.5 before", "a machine, load 0.0", "another")


def test_loads_of_one_machine_are_told_by_their_ends() -> None:
    found = [
        msgspec.structs.replace(FOUND, machine=f"it, load {n} before; torch")
        for n in (2.0, 0.5, 1.0)
    ]
    assert curve.overview(found).notes[1:] == ("it, load 0.5 to 2.0 before; torch",)


@pytest.mark.parametrize(
    ("known", "kind"),
    [({"avx2", "avx512f", "amx_bf16"}, "amx"), ({"avx2", "avx512f"}, "avx512"), (None, "other")],
)
def test_a_file_is_named_after_the_widest_instructions(
    monkeypatch: pytest.MonkeyPatch, known: set[str] | None, kind: str
) -> None:
    monkeypatch.setattr("ppdbench.machine.environment.instruction_sets", lambda: known)
    assert curve.named("curve-long-{kind}.json") == Path(f"curve-long-{kind}.json")


def test_each_type_and_number_of_threads_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ppdbench.bench.pass_curve.measure_bandwidth", lambda *_: 1e10)
    asked = ("--rows", "1,2", "--rounds", "1", "--context", "8", "--threads", "1")
    assert called(monkeypatch, TINY, *asked) == 0
    said = capsys.readouterr().out
    assert [dtype in said for dtype in ("float32 on cpu", "bfloat16 on cpu")] == [True, True]


def test_what_cannot_be_measured_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, TINY, "--rows", "0") == 2
    assert capsys.readouterr().err.splitlines()[-1] == "curve: --rows 0: use 1 or more"


@pytest.mark.parametrize("is_there", [True, False])
def test_pages_show_a_stored_curve_or_say_how_to_measure_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_there: bool
) -> None:
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    if is_there:
        path = tmp_path / "results/readme/curve.json"
        path.parent.mkdir(parents=True)
        monkeypatch.setattr(curve, "measured", lambda _: FOUND)
        called(monkeypatch, "tiny", "--save", str(path))
    title = "Passes by their rows: tiny, bfloat16 on cpu, 2 threads"
    several = "<!-- results/readme/curve*.json: Passes beside as markdown -->\n<!-- end -->\n"
    page = f"<!-- results/readme/curve.json: {title} as markdown -->\n<!-- end -->\n"
    page += several + "<!-- results/readme/curve.json: picture a.png -->\n<!-- end -->"
    shown = readme.rendered(page)
    assert ("](a.png)" in shown) == is_there
    assert ("| 9 | 20.00 |" in shown) == is_there
    assert ("| tiny | of a kind | 2 | 128 | 12.0 |" in shown) == is_there
    assert (readme.AWAITED in shown) != is_there
    assert readme.rendered(shown) == shown


def test_pages_show_a_table_that_is_stored_as_markdown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "MADE_BY", {tmp_path / "results/showcase": "showcase"})
    block = "<!-- results/showcase/showcase.md: the main table as markdown -->\n<!-- end -->"
    assert "`make showcase`" in readme.rendered(block)
    path = tmp_path / "results/showcase/showcase.md"
    path.parent.mkdir(parents=True)
    path.write_text("### Ten tasks\n\n| method |\n| --- |\n| greedy |\n\nA note.\n", "utf-8")
    shown = readme.rendered(block)
    assert "| greedy |\n\nA note.\n<!-- end -->" in shown and "Ten tasks" not in shown
    assert readme.rendered(shown) == shown


def test_only_what_is_timed_says_what_else_the_machine_did() -> None:
    said, untimed = curve.this_machine(), curve.this_machine(timed=False)
    assert re.sub(r", load [\d.]+ before", "", said) == untimed != said
