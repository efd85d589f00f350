"""`make demo`: match rates, exactness, speedups and the page, on one screen.

    python -m benchmarks.demo results/demo bench --offline --task gsm8k ...

The words after the folder are the comparison to run on the embedded model. Where `make smollm2`
has run, a few examples of a real model follow. What a step is and how long it takes is said before
it. Threads wait for each other, so that on a busy machine each of them waits for programs that have
nothing to do with it; there the demo takes one thread, less work, and ends each step after some
minutes with what it has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ppdbench.engine.gguf import source
from ppdbench.errors import PpdbenchError
from ppdbench.files.resources import came_with
from ppdbench.methods import method
from ppdbench.probe.summary import TOTAL
from ppdbench.report import decode_tables, evidence, theory_tables
from ppdbench.report.outputs import of_run
from ppdbench.report.page.runs import Run, read_runs
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

BUSY = 0.3  # of the cores, by other programs
LESS = ("--limit", "5", "--max-new-tokens", "32", "--threads", "1")
PAGE = "report.html"
LONGEST_S = 300.0  # for a step on a busy machine
LONGEST_QUIET_S = 1200.0
K = 3
INTERRUPTED = 130
MOST_LAYERS = 9  # that have a column
REAL = source.SMOLLM2
ON_REAL = ("--model", REAL, "--dtype", "bfloat16", "--offline", "--data", "builtin")
TRAINED = ("medusa", "eagle", "hybrid", "hidden-transfer", "prompt-tokens")


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A command, and what is said of it."""

    what: str
    quiet_s: int  # on two cores with nothing else to do
    words: tuple[str, ...]
    log: str  # its folder, and where its tables go


class DemoRuns(NamedTuple):
    """The two runs of a model."""

    probe: Run
    bench: Run


def steps(folder: Path, comparison: Sequence[str], *, busy: bool) -> list[DemoStep]:
    """List the steps to run, with less work where the machine is busy."""
    less = LESS if busy else ()
    probe = (
        *("probe", "--offline", "--task", "gsm8k", "--task", "squad", "--limit", "8"),
        *("--max-new-tokens", "64", "--head", "reference", "--show-example", "0"),
        *("--plot", str(folder / "match-rates.png"), "--out", str(folder / "probe"), *less),
    )
    bench = (*comparison, "--out", str(folder / "bench"), *less)
    return [
        DemoStep(
            "match rates: what every layer already knows of the next token", 15, probe, "probe"
        ),
        DemoStep("decoding with five methods, in turns with greedy", 30, bench, "bench"),
        *(real_steps(folder, less) if source.smollm2().is_file() else ()),
    ]


def real_steps(folder: Path, less: Sequence[str]) -> list[DemoStep]:
    """The same with SmolLM2, on so few examples that both together stay quick."""
    trained = [name for name in TRAINED if came_with(REAL, method(name).needs or name)]
    methods = ("greedy", "layerskip", "prompt-lookup", "lookahead", *trained)
    few = ("--task", "gsm8k", "--limit", "5", "--max-new-tokens")
    probe = ("probe", *ON_REAL, *few, "32", "--out", str(folder / "smollm2-probe"), *less)
    bench = (
        *("bench", *ON_REAL, *few, "48", *(w for name in methods for w in ("--method", name))),
        *("--compile", "off", "--warmup", "1", "--out", str(folder / "smollm2-bench"), *less),
    )
    return [
        DemoStep("match rates of SmolLM2, a real model of 30 layers", 15, probe, "smollm2-probe"),
        DemoStep("decoding with it", 20 + 7 * len(methods), bench, "smollm2-bench"),
    ]


def page_step(folder: Path, done: Sequence[DemoStep]) -> DemoStep:
    """One page of the runs that have finished anything."""
    there = [folder / step.log for step in done if any((folder / step.log).glob("samples*.jsonl"))]
    words = ("report", *map(str, there), "--out", str(folder / PAGE))
    return DemoStep("one page of it all", 5, words, "report")


def carry_out(step: DemoStep, folder: Path, longest_s: float) -> int:
    """Run a step, its tables into a file; its exit code, or that of being stopped."""
    program = [sys.executable, "-m", "ppdbench", *step.words]
    with (folder / f"{step.log}.txt").open("w", encoding="utf-8") as tables:
        running = subprocess.Popen(program, stdout=tables)
        try:
            return running.wait(longest_s)
        except subprocess.TimeoutExpired:
            print(f"      stopped after {longest_s / 60:.0f} minutes; what is done counts")
            running.send_signal(signal.SIGINT)
            running.wait()
            return INTERRUPTED
        except KeyboardInterrupt:
            running.wait()  # the terminal has told it too
            raise


def share_in_use(over_s: float = 1.0) -> float | None:
    """The share of all cores that other programs use just now; None where it cannot be told."""
    before = _ticks()
    time.sleep(over_s)
    after = _ticks()
    if before is None or after is None or after[1] == before[1]:
        return None
    return 1 - (after[0] - before[0]) / (after[1] - before[1])


def _ticks() -> tuple[int, int] | None:
    """Idle and all ticks of all cores since start, as Linux counts them."""
    try:
        first = Path("/proc/stat").read_text("utf-8").split("\n", 1)[0]
    except OSError:
        return None
    user, nice, system, idle, waiting, *rest = map(int, first.split()[1:9])
    return idle + waiting, user + nice + system + idle + waiting + sum(rest)


def shown(embedded: DemoRuns, page: Path, real: DemoRuns | None = None) -> None:
    """The screen at the end; with two models it leaves out what the page explains."""
    every = [embedded] if real is None else [embedded, real]
    for runs in every:
        table = faster(runs.bench)
        print_sheets([known(runs.probe), table if real is None else brief(table, runs.bench)])
        for line in (*exactness(runs.bench), *promised(runs.probe)):
            print(line)
        print(end="" if real is None else "\n")
    if real is not None:
        print("What a method that loses would need, and what it has, stands on the page.")
    print(f"The page with all of it: {page}")


def brief(table: Sheet, bench: Run) -> Sheet:
    """The table less what explains it: only what warns stays."""
    summaries = [*bench.summaries, *bench.overall]
    longer = {evidence.PAIRED, *map(evidence.why_no_gain, summaries)}
    return replace(table, notes=tuple(note for note in table.notes if note not in longer))


def known(probe: Run) -> Sheet:
    """Match rates by layer."""
    name, n_layers = probe.header.model.name, probe.header.model.n_layers
    rates = [r for r in probe.rates if (r.bucket, r.head, r.k) == (TOTAL, "N", K)]
    tasks = dict.fromkeys(rate.task for rate in rates)
    layers = spread(sorted({rate.layer for rate in rates}))
    of = {(rate.task, rate.layer): round(100 * rate.match_rate, 1) for rate in rates}
    return Sheet(
        f"How early is the next token known? {name}: in % after so many of {n_layers} layers",
        ("task", *map(str, layers)),
        tuple((task, *(of[task, layer] for layer in layers)) for task in tasks),
        notes=(f"The share of tokens that are among the {K} likeliest after so many layers.",),
        digits={str(layer): 1 for layer in layers},
    )


def spread(layers: Sequence[int]) -> list[int]:
    """All layers, or as many of them as there is room for, as far apart as can be."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    last = len(layers) - 1
    return [layers[round(i * last / (MOST_LAYERS - 1))] for i in range(MOST_LAYERS)]


def faster(bench: Run) -> Sheet:
    """The comparison over all tasks, or over the one that a run came to before it was stopped."""
    sheets = of_run(bench).sheets
    together = next((s for s in sheets if s.title.startswith("all tasks")), sheets[0])
    notes = tuple(note for note in together.notes if note != decode_tables.PER_STEP)
    return replace(together.without("per step"), notes=notes)


def exactness(bench: Run) -> Iterator[str]:
    """Say how many outputs are greedy's."""
    judged, same, ties = bench.held_to_greedy
    words = f", {ties} more up to rounding" if ties else ""
    yield f"Exact: {same} of {judged} outputs are greedy's, token by token{words}."


def promised(probe: Run) -> Iterator[str]:
    """Say what theory makes of the match rates half-way up."""
    half = (probe.header.model.n_layers + 1) // 2
    rows = theory_tables.measured_rows(probe.stored, theory_tables.RowFilter(), probe.ranks).rows
    found = [r for r in rows if (r.layer, r.k, r.head) == (half, K, "N") and r.speedup is not None]
    if found:
        speedups = ", ".join(f"{row.speedup:.2f}x on {row.task}" for row in found)
        yield f"Promised by theory for pipelined decoding: {speedups}."


def main(arguments: Sequence[str]) -> int:
    """Run all steps and show what came of them."""
    folder, comparison = Path(arguments[0]), arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    in_use = share_in_use()
    busy = in_use is not None and in_use > BUSY
    print("The demo measures a small real model that comes with the package; no network.")
    if busy:
        print(
            f"Other programs use {100 * (in_use or 0):.0f}% of this machine's {os.cpu_count()} "
            "cores: times would be\nunfit to be believed and long to wait for. So: one thread, "
            f"less work, and no step\nlonger than {LONGEST_S / 60:.0f} minutes."
        )
    work = steps(folder, comparison, busy=busy)
    for number in range(len(work) + 1):
        step = work[number] if number < len(work) else page_step(folder, work)
        usual = "" if busy else f" (about {step.quiet_s} s on two quiet cores)"
        print(f"{number + 1}/{len(work) + 1} {step.what}{usual}", flush=True)
        code = carry_out(step, folder, LONGEST_S if busy else LONGEST_QUIET_S)
        if code not in (0, INTERRUPTED):
            print(f"demo: ppdbench {' '.join(step.words)} ended with exit code {code}")
            return code
    print()
    try:
        show_all(folder, work)
    except PpdbenchError as error:  # stopped before there was anything to show
        print(f"demo: {error}")
        return error.exit_code
    return 0


def show_all(folder: Path, work: Sequence[DemoStep]) -> None:
    """Read the runs and show them; a real model's that came to nothing are named."""
    embedded = DemoRuns(*read_runs([folder / "probe", folder / "bench"]))
    places = [folder / step.log for step in work if step.log.startswith(REAL)]
    real = None
    try:
        real = DemoRuns(*read_runs(places)) if places else None
    except PpdbenchError as error:
        print(f"SmolLM2: {error}")
    shown(embedded, folder / PAGE, real)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("demo: interrupted; `make demo` begins anew", file=sys.stderr)
        sys.exit(INTERRUPTED)
