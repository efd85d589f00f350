"""Methods by batch sizes on one model, in float32 and bfloat16: tokens per second and speedups.

    python -m benchmarks.batches [--model smollm2] [--batch 1,2,4,8,16] [--limit 64]
        [--methods greedy prompt-lookup eagle:addon=FOLDER ...] [--against [TYPES]]
        [--save FILE.json]
    python -m benchmarks.batches --exact [--model smollm2] [--limit 16] [--save FILE.json]
        [--also speculative:draft_model=NAME ...] [--kept]

Each number type is one `bench --batch`, whose run folder is kept below `--out` and gone on with
where it is not whole; with `--against`, `generate()` over as many prompts, padded on the left,
takes part in these number types: of bfloat16 that takes hours where the processor has no products
of it. Printed are its tables, and greedy decoding in batches beside one prompt after the other and
beside `generate()`. `--save` keeps what `docs/batches.md` shows. Run it on a machine that does
nothing else.

`--exact` decodes with every method that runs, in batches of six sizes over four tasks, and counts
verdicts: on passes that compute a row alike whatever stands beside it a single tie is a failure,
and so is an output that the same method does not give alone. Each task and number type is a run of
its own; what is cut off goes on where it was, and `--kept` counts what is there by now. Tasks may
be counted one by one: FILE.json keeps those that it has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import verdicts
from benchmarks.curve import this_machine
from benchmarks.measured import keep, told, warned
from ppdbench.bench.choices import every_method
from ppdbench.bench.counterparts import peers
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.bench.sums import add_up
from ppdbench.cli.common import parse_numbers
from ppdbench.engine.loading import ModelSpec
from ppdbench.engine.quiet import quiet
from ppdbench.errors import PpdbenchError
from ppdbench.report import batch_tables
from ppdbench.report.outputs import of_decoding
from ppdbench.report.sheet import Sheet, marked
from ppdbench.report.terminal import print_sheets
from ppdbench.runs.running import Destination
from ppdbench.runs.store import HEADER, read_whole
from ppdbench.runs.workload import FinishedRun

METHODS = ("greedy", "prompt-lookup", "layerskip", "lookahead")
DTYPES = ("float32", "bfloat16")
WARM_UP = 2
EXACT_SIZES = "1,2,3,4,8,16"
EXACT_TASKS = ("gsm8k", "humaneval", "squad", "xsum")
PEERS = [each.name for each in peers() if each.peer_of == "greedy"]

Summary = Mapping[str, Any]


class MeasuredBatches(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of `bench --batch` in each number type, and the machine that it is from."""

    machine: str
    summaries: dict[str, list[dict[str, Any]]]


def sheets(found: MeasuredBatches) -> list[Sheet]:
    """The tables of each number type, with the machine below each."""
    tables: list[Sheet] = []
    for dtype, summaries in found.summaries.items():
        ours = [s for s in summaries if s["method"] not in PEERS]
        own = [*batch_tables.sheets(ours), *_beside_generate(summaries)]
        tables += [replace(sheet, title=f"{dtype}: {sheet.title}") for sheet in own]
    return marked(tables, found.machine)


def _beside_generate(summaries: Sequence[Summary]) -> list[Sheet]:
    """Greedy decoding in batches beside one prompt after the other, and beside `generate()`."""
    speeds = {(s["method"], s["batch"]): s["tokens_per_s"] for s in summaries}
    alone = speeds.get(("greedy", 1))
    rows = []
    for size in sorted({s["batch"] for s in summaries}):
        ours, peer = speeds.get(("greedy", size)), speeds.get((PEERS[0], size))
        rows.append((size, ours, peer, _over(ours, alone), _over(ours, peer)))
    columns = ("batch", "greedy", "generate()", "over batch 1", "over generate()")
    return [
        Sheet(
            "greedy decoding in a batch, tokens/s of all sequences",
            columns,
            tuple(rows),
            notes=("generate(): over as many prompts, the shorter ones padded on the left.",),
            digits=dict.fromkeys(columns[1:3], 1) | dict.fromkeys(columns[3:], 2),
        )
    ]


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def stored(path: Path) -> MeasuredBatches:
    """Read what `--save` wrote."""
    found = msgspec.json.decode(path.read_bytes(), type=MeasuredBatches)
    for summary in (s for of in found.summaries.values() for s in of):
        # Earlier records are of a task without turns, whose examples are questions.
        summary.setdefault("n_questions", summary["n_examples"])
    return found


# Running


def decoded(
    asked: argparse.Namespace,
    dtype: str,
    methods: Sequence[Choice],
    task: str,
    optional: Sequence[Choice] = (),
) -> FinishedRun:
    """A run of these methods, as far as it is not there."""
    config = DecodeConfig(
        model=ModelSpec(name=asked.model, dtype=dtype, device=asked.device, offline=True),
        tasks=(task,),
        data=asked.data,
        limit=asked.limit,
        max_new_tokens=asked.max_new_tokens,
        threads=asked.threads,
        warmup=0 if asked.exact else WARM_UP,
        methods=tuple(methods),
        batch=tuple(parse_numbers("--batch", asked.batch)),
    )
    folder = _folder(asked, dtype, task)
    to = Destination(out=folder, resume=_is_begun(folder), report=told, warn=warned)
    return run_decode(config, to, kind="bench", optional=optional, predict=not asked.exact)


def _folder(asked: argparse.Namespace, dtype: str, task: str) -> Path:
    """The place of a run: those that count verdicts are one for each task."""
    name = f"{_named(asked)}-{dtype}"
    return Path(asked.out) / (f"exact/{name}-{task}" if asked.exact else f"runs/{name}")


def _is_begun(folder: Path) -> bool:
    return (folder / HEADER).exists()


def _named(asked: argparse.Namespace) -> str:
    return Path(str(asked.model)).name.replace(":", "-")


def measure(asked: argparse.Namespace) -> int:
    """Measure each number type, print and keep it; an exit code."""
    machine, found = this_machine(), dict[str, list[dict[str, Any]]]()
    methods = [Choice.parse(text) for text in asked.methods]
    for dtype in asked.dtype:
        beside = [Choice(name=PEERS[0])] if dtype in asked.against else []
        run = decoded(asked, dtype, [*methods, *beside], asked.task)
        found[dtype] = of_decoding(run.header, add_up(run.samples)).content
    kept = MeasuredBatches(machine=machine, summaries=found)
    print_sheets(sheets(kept))
    keep(kept, asked.save)
    return int(any(s["mismatch"] for each in found.values() for s in each))


# Exactness


def exact(asked: argparse.Namespace) -> int:
    """Count the verdicts of every method in batches of every size; an exit code."""
    methods, usual, lacking = _wanted(asked)
    for words in lacking:
        warned(words)
    runs = list(_counted_runs(asked, methods, usual))
    found = verdicts.VerdictCounts(
        machine=this_machine(),
        model=_named(asked),
        examples=asked.limit,
        tokens=asked.max_new_tokens,
        methods=verdicts.counted(runs),
        lacking=[*lacking, *verdicts.left_out(runs)],
    )
    print_sheets([*map(verdicts.by_label, runs), *verdicts.sheets(found)])
    keep(verdicts.joined(found, asked.save), asked.save)
    return int(any(verdicts.is_wrong(run, flat=verdicts.is_flat(run)) for run in runs))


def _wanted(asked: argparse.Namespace) -> tuple[list[Choice], list[Choice], list[str]]:
    """The methods to count, those of them that nobody named, and what others lack."""
    if asked.named:
        return [Choice.parse(text) for text in asked.methods], [], []
    also = [Choice.parse(text) for text in asked.also]
    usual, lacking = every_method(asked.model)
    names = {choice.name for choice in also}
    return [*usual, *also], usual, [w for w in lacking if w.partition(":")[0] not in names]


def _counted_runs(
    asked: argparse.Namespace, methods: Sequence[Choice], optional: Sequence[Choice]
) -> Iterator[verdicts.CountedRun]:
    """Yield the run of each task and type, decoded or as far as it is there."""
    for task in asked.tasks:
        for dtype in asked.dtype:
            if not asked.kept:
                run = decoded(asked, dtype, methods, task, optional)
                for label, why in verdicts.not_there(run).items():
                    warned(f"{label}: {why}")
                yield run
            elif _is_begun(folder := _folder(asked, dtype, task)):
                yield read_whole(folder)


def _types(text: str) -> tuple[str, ...]:
    """The number types of a list, if this measures them."""
    found = tuple(text.split(","))
    if wrong := [each for each in found if each not in DTYPES]:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong)}: use {' or '.join(DTYPES)}")
    return found


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("--model", default="reference")
    made.add_argument("--device", default="cpu")
    made.add_argument("--dtype", type=_types, default=DTYPES, metavar="TYPES")
    made.add_argument("--methods", nargs="+", help="as --method of bench; all with --exact")
    made.add_argument(
        "--against",
        nargs="?",
        type=_types,
        const=DTYPES,
        default=(),
        metavar="TYPES",
        help="generate() in batches, too, in these number types (all)",
    )
    made.add_argument("--batch", help=f"default 1,2,4,8,16; with --exact {EXACT_SIZES}")
    made.add_argument("--task", default="gsm8k")
    made.add_argument("--tasks", nargs="+", default=EXACT_TASKS, help="of --exact")
    made.add_argument("--data", default="builtin")
    made.add_argument("--limit", type=int, default=16)
    made.add_argument("--max-new-tokens", type=int, default=64)
    made.add_argument("--threads", type=int)
    made.add_argument("--exact", action="store_true", help="count verdicts alone")
    made.add_argument("--also", nargs="+", default=(), help="with --exact: beside all methods")
    made.add_argument("--kept", action="store_true", help="with --exact: decode nothing more")
    made.add_argument("--save", type=Path, help="keep what was measured, as .json")
    made.add_argument("--out", default="results/batches")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure, or count verdicts; an exit code."""
    quiet()
    asked = parser().parse_args(words)
    asked.named = asked.methods is not None
    asked.methods = asked.methods or METHODS
    asked.batch = asked.batch or (EXACT_SIZES if asked.exact else "1,2,4,8,16")
    try:
        return exact(asked) if asked.exact else measure(asked)
    except PpdbenchError as error:
        print(f"batches: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
