"""Every exact method on every task, in float32 and in bfloat16: what became of each output.

    python -m benchmarks.exactness [--model smollm2] [--limit 7] [--max-new-tokens 64]
        [--dtype bfloat16] [--threads 1] [--methods METHOD ...] [--beside DIR] [--save FILE.json]

Each type of numbers is one run of all methods beside greedy decoding, as `ppdbench bench --methods
all` makes it, less those that do not promise greedy's output. Its folder is kept below `--out` and
gone on with where it is not whole; the runs of another `--out` are counted too, as far as they are
there, if `--beside` names it. Counted are verdicts; times are no part of it, so the machine may be
busy. The exit code is 1 where an output is not greedy's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.curve import this_machine
from benchmarks.measured import told, warned
from ppdbench.bench.choices import every_method
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.engine.loading import ModelSpec
from ppdbench.engine.quiet import quiet
from ppdbench.errors import PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import set_threads
from ppdbench.methods import method
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets
from ppdbench.runs.records import DecodedSample, Sample
from ppdbench.runs.running import Destination
from ppdbench.runs.store import StoredRun, read_once
from ppdbench.runs.workload import FinishedRun
from ppdbench.tasks import task_names

VERDICTS = ("identical", "tie", "mismatch", "failed")


def decoded(asked: argparse.Namespace, dtype: str) -> FinishedRun:
    """A run with a type of numbers, as far as it is not there."""
    usual, _ = every_method(asked.model)
    exact = list(map(Choice.parse, asked.methods or ())) or [
        choice for choice in usual if method(choice.name).exact
    ]
    config = DecodeConfig(
        model=ModelSpec(name=asked.model, dtype=dtype, device="cpu", offline=True),
        tasks=tuple(asked.tasks),
        data="builtin",
        limit=asked.limit,
        max_new_tokens=asked.max_new_tokens,
        threads=asked.threads,
        methods=tuple(exact),
        warmup=0,
    )
    folder = _folder(Path(asked.out), asked, dtype)
    begun = (folder / "run.json").exists()
    to = Destination(out=folder, resume=begun, report=told, warn=warned)
    return run_decode(config, to, kind="bench", optional=exact)


def _folder(out: Path, asked: argparse.Namespace, dtype: str) -> Path:
    return out / f"{Path(asked.model).name.replace(':', '-')}-{dtype}"


def found(asked: argparse.Namespace, dtype: str) -> list[FinishedRun | StoredRun]:
    """The run with a type of numbers, and the one to count beside it."""
    run = decoded(asked, dtype)
    beside = None if asked.beside is None else _folder(asked.beside, asked, dtype)
    return [run] if beside is None else [run, read_once(beside)]


def counted(runs: Sequence[FinishedRun | StoredRun]) -> dict[str, Any]:
    """The verdicts by method of runs, each example once, and what they were of."""
    run = runs[0]
    samples = {
        (sample.method, sample.task, sample.example_id): sample
        for each in runs
        for sample in each.samples
    }
    labels = dict.fromkeys(label for each in reversed(runs) for label in each.header.methods)
    verdicts: dict[str, Counter[str]] = {label: Counter() for label in labels}
    for sample in samples.values():
        verdicts[sample.method][str(sample.verdict)] += 1
    return {
        "passes": run.header.passes and run.header.passes.kernels,
        "tasks": len({sample.task for sample in samples.values()}),
        "prompts": len({(sample.task, sample.example_id) for sample in samples.values()}),
        "tokens": sum(map(_tokens, samples.values())),
        "verdicts": {label: dict(found) for label, found in verdicts.items()},
        "left_out": {**(run.header.left_out or {}), **run.header.not_run},
    }


def _tokens(sample: Sample) -> int:
    return len(sample.output_ids) if isinstance(sample, DecodedSample) else 0


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A row for each method, a column for each type: outputs that are greedy decoding's."""
    types: Mapping[str, Any] = content["types"]
    labels = list(dict.fromkeys(label for found in types.values() for label in found["verdicts"]))
    rows = [(label, *_row(types, [label])) for label in labels]
    rows.append(("all", *_row(types, labels)))
    notes = [
        f"{dtype}: {found['prompts']} prompts of {found['tasks']} tasks, {found['tokens']} tokens "
        f"in all outputs; passes: {found['passes']}."
        for dtype, found in types.items()
    ]
    left = {label: why for found in types.values() for label, why in found["left_out"].items()}
    notes += [f"{label} did not run: {why}" for label, why in left.items()]
    notes += [f"Left out: {words}." for words in content["lacking"]]
    title = f"Outputs of every exact method on {content['model']} that are greedy decoding's"
    return [Sheet(title, ("method", *types), tuple(rows), (*notes, content["machine"] + "."))]


def _row(types: Mapping[str, Any], labels: Sequence[str]) -> list[str]:
    return [
        _share([found["verdicts"].get(label, {}) for label in labels]) for found in types.values()
    ]


def _share(found: Sequence[Mapping[str, int]]) -> str:
    """The outputs that are identical, of so many, and what the others are."""
    same, *others = (sum(counts.get(verdict, 0) for counts in found) for verdict in VERDICTS)
    said = [f"{n} {verdict}" for verdict, n in zip(VERDICTS[1:], others, strict=True) if n]
    return ", ".join([f"{same} of {same + sum(others)}", *said])


def is_wrong(content: Mapping[str, Any]) -> bool:
    """True if an output is not greedy's, or was not made."""
    found = [counts for each in content["types"].values() for counts in each["verdicts"].values()]
    return any(counts.get("mismatch") or counts.get("failed") for counts in found)


def measure(asked: argparse.Namespace) -> int:
    """Decode with each type, show and keep what was counted; an exit code."""
    set_threads(asked.threads)
    machine = this_machine(timed=False)
    types = {dtype: counted(found(asked, dtype)) for dtype in asked.dtype.split(",")}
    _, lacking = every_method(asked.model)
    content = {"model": asked.model, "machine": machine, "types": types, "lacking": lacking}
    print_sheets(sheets(content))
    if asked.save is not None:
        write_whole(asked.save, json.dumps(content, indent=1) + "\n")
    return int(is_wrong(content))


def main(words: Sequence[str] | None = None) -> int:
    """Decode and count; an exit code."""
    quiet()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--tasks", nargs="+", default=task_names())
    parser.add_argument("--methods", nargs="+", help="these alone, not every exact one there is")
    parser.add_argument("--limit", type=int, default=7, help="examples of each task")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save", type=Path, help="keep what was counted, as .json")
    parser.add_argument("--out", default="results/exactness")
    parser.add_argument("--beside", type=Path, help="another --out, whose runs are counted too")
    try:
        return measure(parser.parse_args(words))
    except PpdbenchError as error:
        print(f"exactness: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
