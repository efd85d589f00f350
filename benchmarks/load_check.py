"""The share of loading that the check at load takes: our passes held against the stock model's.

    python -m benchmarks.load_check [--models reference smollm2 synthetic:llama-100m]
        [--dtype float32,bfloat16] [--threads N] [--rounds 7] [--save FILE.json]

Loading is all of `load`, behind which the first pass can run: files, weights and their fingerprint,
the choice of kernels, the check. Models of random weights are written to a folder first, so that
they are read as others are. Each model is loaded in a process of its own, which has imported what
the command line imports before it loads, with the check and without, in turns. The time of the
check is taken inside of those that run it, as other programs disturb loads by more than it takes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

from benchmarks.curve import this_machine
from benchmarks.measured import carry_out
from ppdbench.engine import held_family
from ppdbench.engine.loading import ModelSpec, load, load_stock
from ppdbench.engine.shapes import PREFIX
from ppdbench.machine import environment
from ppdbench.report.sheet import Cell, Sheet, marked
from ppdbench.stats import median

T = TypeVar("T")

MODELS = ("reference", "smollm2", "synthetic:llama-100m")
FILE = "load_check.json"  # under results/readme
PARTS = ("stock_pass", "hold")  # of the check, by their names in `held_family`


class Seconds(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds on the wall, and of the processor's time."""

    wall: float
    cpu: float


class LoadRound(msgspec.Struct, frozen=True, kw_only=True):
    """A load without the check, one with it, and the check's own time within."""

    without: Seconds
    beside: Seconds
    check: Seconds


class LoadedModel(msgspec.Struct, frozen=True, kw_only=True):
    """The rounds of a model in one number type, and how many of its layers are compared."""

    model: str
    dtype: str
    passes: str
    layers: int
    compared: int
    rounds: list[LoadRound]


class MeasuredLoads(msgspec.Struct, frozen=True, kw_only=True):
    """The loads of all models, and the machine."""

    machine: str
    threads: int
    models: list[LoadedModel]


class OneLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The times of one load, and what was loaded."""

    whole: Seconds
    check: Seconds
    passes: str
    layers: int
    compared: int


class Watch:
    """Adds up the time of calls."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @property
    def seconds(self) -> Seconds:
        """All of it so far."""
        return Seconds(wall=self.wall, cpu=self.cpu)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what passes meanwhile."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


def apart(call: Callable[..., T], *given: Any) -> T:
    """Call a function in a forked process and return what it does."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(call, given)


def one_load(name: str, dtype: str, check: bool) -> OneLoad:
    """Load a model and time it; for a process of its own, which is not used for anything else."""
    # A pool of threads does not survive a fork; the first call makes a new one.
    torch.set_num_threads(torch.get_num_threads())
    whole, within, compared = Watch(), Watch(), [0]

    def timed(part: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            with within.running():
                made = part(*given)
            if isinstance(made, held_family.StockPass):
                compared[0] = len(made.states)
            return made

        return run

    for part in PARTS:
        setattr(held_family, part, timed(getattr(held_family, part)))
    spec = ModelSpec(name=name, dtype=dtype, device="cpu", offline=True, family_check=check)
    with whole.running():
        loaded = load(spec)
    return OneLoad(
        whole=whole.seconds,
        check=within.seconds,
        passes=loaded.staged.path.kernels,
        layers=loaded.staged.n_layers,
        compared=compared[0],
    )


def write_folder(name: str, folder: Path) -> None:
    """Write a model of random weights as transformers does."""
    for part in load_stock(ModelSpec(name=name, dtype="float32", device="cpu")):
        part.save_pretrained(folder)


def measured(asked: argparse.Namespace) -> MeasuredLoads:
    """Measure each model in each number type."""
    machine = this_machine()
    environment.set_threads(asked.threads)
    models = [each for name in asked.models for each in of_types(name, asked)]
    return MeasuredLoads(machine=machine, threads=torch.get_num_threads(), models=models)


def of_types(name: str, asked: argparse.Namespace) -> list[LoadedModel]:
    """Measure a model in each number type."""
    with tempfile.TemporaryDirectory() as folder:
        place = folder if name.startswith(PREFIX) else name
        if place == folder:
            apart(write_folder, name, Path(folder))
        return [of_type(name, place, dtype, asked.rounds) for dtype in asked.dtype.split(",")]


def of_type(name: str, place: str, dtype: str, rounds: int) -> LoadedModel:
    """Load a model with the check and without, in turns; the first of each is not counted."""
    found, last = [], None
    for number in range(rounds + 1):
        print(f"{name}, {dtype}, round {number} of {rounds}", file=sys.stderr, flush=True)
        without, last = (apart(one_load, place, dtype, check) for check in (False, True))
        if number:
            times = LoadRound(without=without.whole, beside=last.whole, check=last.check)
            found.append(times)
    assert last is not None
    return LoadedModel(
        model=name,
        dtype=dtype,
        passes=last.passes,
        layers=last.layers,
        compared=last.compared,
        rounds=found,
    )


def sheets(found: MeasuredLoads) -> list[Sheet]:
    """The table of all models, with the machine below it."""
    rows: list[tuple[Cell, ...]] = []
    for each in found.models:
        kept = each.rounds
        rows.append(
            (
                *(each.model, each.dtype, f"{each.compared} of {each.layers}"),
                median([r.beside.cpu for r in kept]),
                1e3 * median([r.check.cpu for r in kept]),
                median([r.check.cpu / r.beside.cpu for r in kept]),
                median([r.check.wall / r.beside.wall for r in kept]),
                median([r.beside.cpu / r.without.cpu for r in kept]),
            )
        )
    header = (
        *("model", "dtype", "layers compared", "loading, CPU s", "check, CPU ms", "share, CPU"),
        *("share, wall", "with / without, CPU"),
    )
    table = Sheet(
        f"The check at load, {found.threads} threads",
        header,
        tuple(rows),
        notes=(
            "Medians of loads in processes of their own, with the check and without in turns; the "
            "last column is as noisy as the machine.",
        ),
        digits={header[3]: 2, header[4]: 0, header[7]: 2},
        percent=frozenset(header[5:7]),
    )
    return marked([table], found.machine)


def stored(path: Path) -> MeasuredLoads:
    """Read what `--save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=MeasuredLoads)


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--models", nargs="+", default=MODELS)
    made.add_argument("--dtype", default="float32,bfloat16")
    made.add_argument("--threads", type=int)
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--save", type=Path, help="keep what was measured, as .json")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure, show, and keep what was asked for; an exit code."""
    asked = parser().parse_args(words)
    return carry_out("load_check", lambda: measured(asked), sheets, asked.save)


if __name__ == "__main__":
    sys.exit(main())
