"""Passes of a model by their rows, for each type and number of threads: tables, and a picture.

    python -m benchmarks.curve MODEL [--dtype float32,bfloat16] [--threads 1,2] [--rows 1,9,16]
        [--as-stored] [--save FILE.json] [--markdown FILE.md] [--plot FILE.png]

What `ppdbench env --curve` measures, several times in one process. `--save` keeps what was
measured, `{kind}` in its name being the widest instructions of this processor; FILE.json in place
of MODEL shows it again. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import torch

from benchmarks.measured import keep
from ppdbench.bench.pass_curve import CONTEXT, ROUNDS, ROWS, PassCurve, measure_curve
from ppdbench.cli.common import parse_numbers
from ppdbench.engine.loading import ModelSpec
from ppdbench.engine.quiet import quiet
from ppdbench.errors import PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.machine import environment
from ppdbench.report.curve_tables import pass_curve_sheet
from ppdbench.report.export import emit, to_markdown
from ppdbench.report.pictures.files import save_picture
from ppdbench.report.pictures.passes import curve_picture
from ppdbench.report.sheet import Cell, Sheet, marked
from ppdbench.runs.records import Environment

STORED = ".json"
KINDS = {"amx": "amx_bf16", "avx512": "avx512f", "avx2": "avx2"}  # of processors, the widest first
OVERVIEW = "Passes beside one of one row"
OVERVIEW_WORDS = (
    "x N: a pass of N rows takes so many times as long as one of one row; reading: reading the "
    "weights once"
)
LOAD = re.compile(r"(?<=load )[\d.]+")


class MeasuredCurves(msgspec.Struct, frozen=True, kw_only=True):
    """The curves of a model, and the machine that they are from."""

    machine: str
    curves: list[PassCurve]


def this_machine(*, timed: bool = True) -> str:
    """Name the processor, its cores and the software, and what spoils times: its load before."""
    about = msgspec.convert(environment.describe(), Environment)
    cpu, features = about.cpu, ", ".join(about.cpu.features or ())
    load = f", load {cpu.load_average or 0.0:.1f} before" if timed else ""
    return (
        f"{cpu.model}, {cpu.usable_cores} cores ({features}){load}; "
        f"torch {about.packages['torch']}, transformers {about.packages['transformers']}"
    )


def named(file: str) -> Path:
    """The file with `{kind}` in its name replaced by the widest instructions that there are."""
    known = environment.instruction_sets() or frozenset()
    kind = next((kind for kind, wanted in KINDS.items() if wanted in known), "other")
    return Path(file.replace("{kind}", kind))


def measured(asked: argparse.Namespace) -> MeasuredCurves:
    """Measure each type with each number of threads."""
    machine = this_machine()
    return MeasuredCurves(machine=machine, curves=list(_each(asked)))


def _each(asked: argparse.Namespace) -> Iterator[PassCurve]:
    for dtype in asked.dtype.split(","):
        for threads in parse_numbers("--threads", asked.threads):
            environment.set_threads(threads)
            print(f"{asked.model}, {dtype}, {threads} threads", file=sys.stderr, flush=True)
            yield measure_curve(
                ModelSpec(
                    name=asked.model,
                    dtype=dtype,
                    device="cpu",
                    offline=True,
                    as_stored=asked.as_stored,
                ),
                rows=parse_numbers("--rows", asked.rows),
                context=asked.context,
                rounds=asked.rounds,
            )
            gc.collect()


def stored(path: Path) -> MeasuredCurves:
    """Read what `--save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=MeasuredCurves)


def sheets(found: MeasuredCurves) -> list[Sheet]:
    """The tables of all curves, with the machine below each."""
    return marked([pass_curve_sheet(curve) for curve in found.curves], found.machine)


def overview(found: Sequence[MeasuredCurves]) -> Sheet:
    """All curves in a table, a line for each: real models first, long texts behind short ones."""
    curves = [curve for some in found for curve in some.curves]
    lines = [_line(c) for c in sorted(curves, key=lambda c: (c.is_synthetic, c.context))]
    names = [name for name in lines[0] if any(line[name] is not None for line in lines)]
    lines = [{name: line[name] for name in names} for line in lines]
    digits = {name: 1 if name.endswith(" ms") else 2 for name in names}
    notes = OVERVIEW_WORDS, *_machines([some.machine for some in found])
    return Sheet.of(OVERVIEW, lines, notes=notes, digits=digits)


def _machines(names: Sequence[str]) -> Iterator[str]:
    """Name each machine once, with the least and the most of its loads."""
    loads: dict[str, list[float]] = {}
    for name in names:
        loads.setdefault(LOAD.sub("{}", name), []).extend(map(float, LOAD.findall(name)))
    for name, found in loads.items():
        ends = dict.fromkeys((min(found), max(found))) if found else ()
        yield name.format(" to ".join(map(str, ends)))


def _line(found: PassCurve) -> dict[str, Cell]:
    """A curve as a line of the overview."""
    points = {point.rows: point for point in found.points}
    one = points[1]
    return {
        "model": found.model,
        "passes": found.path.kernels.removeprefix("flat, "),
        "threads": found.threads,
        "behind": found.context,
        "one row ms": one.ours.median,
        "reading / one row": found.reading_share,
        **{
            f"x {rows}": points[rows].ours.median / one.ours.median if rows in points else None
            for rows in ROWS[1:]
        },
        "transformers ms": one.stock.median,
        "transformers x 9": points[9].stock.median / one.stock.median if 9 in points else None,
    }


def main() -> int:
    """Measure or read, show, and write what was asked for; an exit code."""
    quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="as --model of ppdbench, or a file that --save wrote")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--threads", default=str(torch.get_num_threads()))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--as-stored", action="store_true", help="as that of ppdbench")
    parser.add_argument("--save", type=named, help="keep what was measured, as .json")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file, too")
    parser.add_argument("--plot", help="draw all curves as .png, .svg or .pdf")
    try:
        return _carry_out(parser.parse_args())
    except PpdbenchError as error:
        print(f"curve: {error}", file=sys.stderr)
        return 2


def _carry_out(asked: argparse.Namespace) -> int:
    kept = Path(asked.model)
    found = stored(kept) if kept.suffix == STORED else measured(asked)
    tables: Sequence[Sheet] = sheets(found)
    emit(tables, None, "markdown")
    keep(found, asked.save)
    if asked.markdown is not None:
        write_whole(asked.markdown, to_markdown(tables) + "\n")
    if asked.plot is not None:
        save_picture(curve_picture(found.curves), asked.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
