"""The cost of showing stored runs: CPU time and memory of every command that only reads.

Runs become large by repeating the samples of small ones, those behind the tables in
`results/tables/runs` unless others are given, as further examples. Each command is a process of
its own, as it is typed. The last column says so where one of them loads torch, which none should.

    python -m benchmarks.stored [--samples 10000] [--shards 8] [--folder /tmp/stored] [RUN...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from ppdbench.machine.garbage import no_collection
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet
from ppdbench.runs.records import DecodedSample, Header, Sample
from ppdbench.runs.samples import to_line
from ppdbench.runs.store import HEADER, read_run, read_run_header
from ppdbench.scoring import NEEDS_EXECUTION, score_parts
from ppdbench.tables import TABLES
from ppdbench.tasks import load_task

RUNS = Path("results/tables/runs")
PROGRAM = """
import sys
from ppdbench.cli.main import run
code = run(sys.argv[1:])
print("torch" if "torch" in sys.modules else "", file=sys.stderr)
sys.exit(code)
"""
KINDS_CHECKED = ("probe", "decode", "bench")


def grow(source: Path, target: Path, wanted: int, shards: int) -> Path:
    """A run like `source` with at least so many samples, as they are written today."""
    if target.exists():
        return target
    target.mkdir(parents=True)
    run = read_run(source)
    names = [f"samples-{n}.jsonl" for n in range(shards)] if shards > 1 else ["samples.jsonl"]
    with no_collection(), ExitStack() as stack:
        samples = [_scored(run.header, sample) for sample in run.samples]
        copies = -(-wanted // len(samples))
        files = [stack.enter_context((target / name).open("wb")) for name in names]
        for copy in range(copies):
            files[copy % shards].writelines(to_line(_copied(s, copy, copies)) for s in samples)
    data = run.header.data.items()
    more = {task: replace(source, examples=source.examples * copies) for task, source in data}
    header = to_builtins(replace(run.header, data=more))
    (target / HEADER).write_text(json.dumps(header), "utf-8")
    return target


def _copied(sample: Sample, copy: int, copies: int) -> Sample:
    """The same sample as that of another example."""
    number = (sample.number or 0) * copies + copy
    return replace(sample, example_id=str(number), number=number)


def _scored(header: Header, sample: Sample) -> Sample:
    """A sample with the parts of its scores, which those of earlier versions lack."""
    metrics = [m for m in load_task(sample.task).metrics if m not in NEEDS_EXECUTION]
    if header.model.synthetic or not metrics or not isinstance(sample, DecodedSample):
        return sample
    return replace(sample, scores=score_parts(metrics, sample.text, sample.references))


def commands(runs: Sequence[Path], place: Path, samples: int, shards: int) -> Iterator[list[str]]:
    """Every command that shows one of these runs, each on so many samples in all."""
    for run in runs:
        grown = str(grow(run, place / str(samples) / run.name, samples, shards))
        kind = read_run_header(run).kind
        yield ["report", grown, "--out", str(place / "page.html")]
        yield ["report", grown, "--format", "table"]
        if kind == "probe":
            yield ["theory", "--run", grown]
        if kind == "sweep":
            yield ["sweep", "--show", grown]
        if kind in KINDS_CHECKED:
            baseline = str(place / f"{run.name}.json")
            yield ["check", grown, "--baseline", baseline, "--update"]
            yield ["check", grown, "--baseline", baseline]
    by_name = {run.name: run for run in runs}
    for name in TABLES:
        steps = [step.name for step in TABLES.get(name).recipe]
        needed = [by_name[step] for step in steps if step in by_name]
        each = samples // max(1, len(needed))
        if needed:
            copies = (grow(run, place / str(each) / run.name, each, shards) for run in needed)
            yield ["table", name, *map(str, copies)]


def measured(words: Sequence[str]) -> tuple[str, float, float, float, int, str]:
    """CPU seconds, seconds, MiB at most, exit code and whether torch was loaded."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    cpu = used.ru_utime + used.ru_stime
    shown = " ".join(Path(w).name if "/" in w and w[0] == "/" else w for w in words)
    return shown, cpu, seconds, used.ru_maxrss / 1024, child.returncode, said.split("\n")[-2]


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, help=f"Small runs ({RUNS}/*).")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--folder", help="Keep the large runs here.")
    asked = parser.parse_args()
    runs = asked.runs or sorted(path.parent for path in RUNS.glob(f"*/{HEADER}"))
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(asked.folder or temporary).resolve()
        rows = [measured(c) for c in commands(runs, place, asked.samples, asked.shards)]
    sheet = Sheet(
        f"{asked.samples} samples",
        ("command", "CPU s", "s", "MiB", "exit code", "torch"),
        tuple(rows),
        digits={"CPU s": 2, "s": 2, "MiB": 0},
    )
    emit([sheet], None, "markdown")


if __name__ == "__main__":
    main()
