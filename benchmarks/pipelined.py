"""Predictive Pipelined Decoding on real units: how much of the promised gain each form gets.

    python -m benchmarks.pipelined [--out results/pipelined] [--dtype bfloat16] [--points 0.85]

Five match rates, set by `agree`, in float32 and bfloat16, and the embedded model as it is.
Everything within a point runs interleaved, each with its baseline, one thread per unit. A run
folder per point; what is there is not measured again, so that an interrupted benchmark goes on
where it stopped. About 10 minutes on two cores that do nothing else.

The table has for each form the measured match rate p; the speedup over greedy decoding on one unit
by Theorem 4.1, on two units like these with a memory each, on this machine if units could talk for
nothing (both from `benchmarks.halves`), and as measured; how much of the theorem's gain that is,
and where the rest went: to the heads, of which the theorem knows none, to the memory that units
share, and to talking and waiting; communication as a share of a token's time, and weights over
greedy's. `record.json` holds the same, unrounded, and more.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import torch

from benchmarks.halves import Halves, added_bytes, measure
from benchmarks.sharding import at_once
from ppdbench.bench.pipelined import beside_greedy, gain_efficiency
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.bench.summary import VERDICTS, summarize
from ppdbench.bench.sums import add_up
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.machine.bandwidth import measure_bandwidth
from ppdbench.machine.environment import describe, set_threads
from ppdbench.report.decode_tables import verdict_text
from ppdbench.report.export import emit, write
from ppdbench.report.sheet import Sheet
from ppdbench.runs.running import Destination
from ppdbench.runs.store import StoredRun, read_whole
from ppdbench.stats import median

RANDOM, REFERENCE = "synthetic:layers=16,hidden=512", "reference"
DTYPES = ("float32", "bfloat16")
POINTS = ("0.65", "0.75", "0.85", "0.92", "0.97")
REPLICATED_AT = "0.85"  # replicas wait for each other on two cores: one point says it all
DEPTHS = (8, 16, 32)
KS = (1, 3, 5)
HALVES = ("lower", "upper")
ROUNDS = 6  # of each half, a burst of calls each
SPEEDUPS = ("theorem", "apart", "allowed", "measured", "low", "high")
LOST = ("heads", "memory", "waiting")
SHARES = ("efficiency", *LOST)
SHOWN = ("form", "k", "p", *SPEEDUPS, *SHARES, "communication", "weights", "output")
NOTES = (
    "apart: with a memory for each unit; allowed: if talking took no time; low, high: 95%",
    "efficiency: share of the theorem's gain; heads, memory, waiting: what took the rest of it",
    "memory below 0: both halves at once were faster than in turns on one core",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    """A model in one type, and what decodes with it."""

    model: str
    dtype: str
    agree: str = ""

    @property
    def spec(self) -> ModelSpec:
        """The model to load."""
        name = f"{self.model},agree={self.agree}" if self.agree else self.model
        return ModelSpec(name=name, dtype=self.dtype, device="cpu", offline=True)

    @property
    def folder(self) -> str:
        """The name of its run."""
        named = (self.model.partition(":")[0], self.dtype, self.agree)
        return "-".join(filter(None, named))

    @property
    def kind(self) -> str:
        """The kind it shares with others, whatever their match rates."""
        return f"{self.model} {self.dtype}"

    @property
    def methods(self) -> tuple[Choice, ...]:
        """Two units for every k, and at one point of each model one replica per candidate."""
        whole = self.agree in ("", REPLICATED_AT)
        forms = ("split", "replicated") if whole else ("split",)
        return tuple(Choice.parse(f"ppd:form={form},k={k}") for form in forms for k in KS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The options of the benchmark."""

    out: Path
    task: str
    examples: int
    tokens: int


def points(dtypes: Sequence[str], agrees: Sequence[str]) -> Iterator[BenchCase]:
    """Yield all cases."""
    for dtype in dtypes:
        yield BenchCase(model=REFERENCE, dtype=dtype)
        for agree in agrees:
            yield BenchCase(model=RANDOM, dtype=dtype, agree=agree)


def decoded(point: BenchCase, asked: BenchOptions) -> StoredRun:
    """The run of a point, measured as far as it is not there."""
    config = DecodeConfig(
        model=point.spec,
        tasks=(asked.task,),
        data="builtin",
        limit=asked.examples,
        max_new_tokens=asked.tokens,
        methods=point.methods,
        warmup=1,
    )
    out = asked.out / point.folder
    begun = (out / "run.json").is_file()
    run_decode(config, Destination(out=out, resume=begun), kind="bench")
    return read_whole(out)


def limits(out: Path, dtypes: Sequence[str]) -> dict[str, Any]:
    """Measure the machine's limits by model, type and k; kept in a file beside the runs."""
    path = out / "limits.json"
    known: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    deep = [RANDOM.replace("layers=16", f"layers={n}") for n in DEPTHS]
    for dtype, model in product(dtypes, (REFERENCE, *deep)):
        point = BenchCase(model=model, dtype=dtype)
        if point.kind in known:
            continue
        loaded = load(point.spec)
        wanted = KS if model in (REFERENCE, RANDOM) else KS[:1]
        known[point.kind] = {
            "weight_bytes": loaded.staged.weight_bytes(),
            "added_bytes": added_bytes(loaded, KS[-1]),
            "halves": {str(k): asdict(measure(loaded, k, ROUNDS)) for k in wanted},
        }
        path.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    return known


def readers(out: Path) -> dict[str, float]:
    """Bytes per second that one process reads from memory, and two at once; kept like limits."""
    path = out / "readers.json"
    if not path.is_file():
        found = {name: at_once(_bandwidth, n) for n, name in enumerate(("one", "both"), start=1)}
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    known: dict[str, float] = json.loads(path.read_text("utf-8"))
    return known


def _bandwidth() -> float:
    set_threads(1)
    return measure_bandwidth(torch.device("cpu"))


def rows(point: BenchCase, run: StoredRun, allowed: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the part of the promised gain that each form got in one case."""
    halves = allowed[point.kind]["halves"]
    sums, held, path = add_up(run.samples), run.header.memory, run.header.passes
    assert held is not None and path is not None
    for summary in summarize(run.header, sums, scores=False):
        k, p = summary["options"]["k"], summary["p"]
        ideal = Halves(**halves[str(k)]) if summary["form"] == "split" else None
        apart, possible = (ideal.speedup_apart(p), ideal.speedup(p)) if ideal else (None, None)
        theorem, measured = summary["predicted_speedup"], summary["speedup_one_unit"]
        ours = [s for s in sums if s.method == summary["label"] and s.steps]
        pairs = [beside_greedy(s, min) for s in ours]
        yield {
            "model": point.model,
            "dtype": point.dtype,
            "passes": path.kernels,
            "agree": point.agree or None,
            **{name: summary[name] for name in ("form", "p", "units", "n_examples", *VERDICTS)},
            "output": verdict_text(summary),
            "k": k,
            "theorem": theorem,
            "matches": summary["predicted_speedup_matches"],
            "times": summary["predicted_speedup_times"],
            "apart": apart,
            "allowed": possible,
            "measured": measured,
            "low": summary["speedup_one_unit_low"],
            "high": summary["speedup_one_unit_high"],
            "median": median([greedy / own for greedy, own in pairs]),
            "all_units": summary["speedup_all_units"],
            "efficiency": summary["gain_efficiency"],
            **lost(theorem, apart, possible, measured),
            "communication": summary["communication_ms_per_token"] / summary["ms_per_token"],
            "weights": sum(summary["weight_bytes_per_unit"]) / held.weights,
        }


def lost(theorem: float, *reached: float | None) -> dict[str, float | None]:
    """Return the parts of the theorem's gain lost from each of these speedups to the next."""
    kept = [1.0, *(gain_efficiency(speedup, theorem) for speedup in reached)]
    return {
        name: None if before is None or after is None else before - after
        for name, (before, after) in zip(LOST, pairwise(kept), strict=True)
    }


def gains(found: Sequence[dict[str, Any]]) -> Iterator[Sheet]:
    """One table per model and type."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        kind = f"{row['model']}, {row['dtype']}, one thread per unit; passes: {row['passes']}"
        by_kind.setdefault(kind, []).append(row)
    for kind, chosen in by_kind.items():
        yield Sheet(
            kind,
            SHOWN,
            tuple(
                tuple(row[name] for name in SHOWN)
                for row in sorted(chosen, key=lambda row: (row["form"] == "replicated", row["k"]))
            ),
            NOTES,
            digits=dict.fromkeys(("p", *SPEEDUPS, *SHARES, "weights"), 2) | {"communication": 1},
            percent=frozenset({"communication"}),
        )


def halves_sheet(allowed: dict[str, Any], reading: dict[str, float]) -> Sheet:
    """Show what two cores lose by working at once, without a word between them."""
    cells = []
    for name, found in allowed.items():
        for k, ms in found["halves"].items():
            slower = [ms[f"{half}_together"] / ms[f"{half}_alone"] - 1 for half in HALVES]
            alone = [ms[f"{half}_alone"] for half in HALVES]
            rate = found["weight_bytes"] / ms["greedy"] / 1e6
            added = found["added_bytes"] / found["weight_bytes"]
            shown = (rate, added) if k == "1" else (None, None)
            cells.append((name, int(k), ms["greedy"], *alone, ms["missed"], *slower, *shown))
    times = ("greedy ms", "lower ms", "upper ms", "missed ms")
    one, both = (reading[name] / 1e9 for name in ("one", "both"))
    return Sheet(
        "Each half alone, and how much longer it takes while the other is at work",
        ("model", "k", *times, *HALVES, "GB/s", "memory added"),
        tuple(cells),
        notes=(
            "missed: the lower half for a token that was not among the candidates",
            f"GB/s: weights over greedy's time; a core can read {one:.1f}, two at once {both:.1f}",
            "memory added: by a second unit, over the weights; shared pages count once",
        ),
        digits=dict.fromkeys((*times, "memory added"), 2) | dict.fromkeys((*HALVES, "GB/s"), 1),
        percent=frozenset(HALVES),
    )


def main() -> None:
    """Measure what is not there yet; print and keep all tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/pipelined"), help="folder")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="both by default")
    parser.add_argument("--points", default=",".join(POINTS), help="values of agree")
    parser.add_argument("--task", default="alpaca", help="where prompts come from")
    parser.add_argument("--examples", type=int, default=5, help="per point")
    parser.add_argument("--tokens", type=int, default=48, help="per example, at most")
    told = parser.parse_args()
    asked = BenchOptions(out=told.out, task=told.task, examples=told.examples, tokens=told.tokens)
    quiet()
    set_threads(1)
    asked.out.mkdir(parents=True, exist_ok=True)
    dtypes = told.dtype or DTYPES
    allowed, reading = limits(asked.out, dtypes), readers(asked.out)
    found: list[dict[str, Any]] = []
    for point in points(dtypes, told.points.split(",")):
        found += rows(point, decoded(point, asked), allowed)
    sheets = [*gains(found), halves_sheet(allowed, reading)]
    record = {"environment": describe(), "limits": allowed, "readers": reading, "rows": found}
    (asked.out / "record.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    write(asked.out / "table.md", sheets, record)
    emit(sheets, record, "markdown")


if __name__ == "__main__":
    main()
