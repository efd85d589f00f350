"""`make demo`: the embedded model's match rates, exactness, speedups and page, on one screen.

    python -m benchmarks.demo results/demo bench --offline --task gsm8k ...

The words after the folder are the comparison to run. What a step is and how long it takes is said
before it. Threads wait for each other, so that on a busy machine each of them waits for programs
that have nothing to do with it; there the demo takes one thread, less work, and ends each step
after some minutes with what it has.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdbench.errors import PpdbenchError
from ppdbench.probe.summary import TOTAL
from ppdbench.report import theory_tables
from ppdbench.report.outputs import of_run
from ppdbench.report.page.runs import Run, read_runs
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

BUSY = 0.3  # of the cores, by other programs
LESS = ("--limit", "5", "--max-new-tokens", "32", "--threads", "1")
LONGEST_S = 300.0  # for a step on a busy machine
LONGEST_QUIET_S = 1200.0
K = 3
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class DemoStep:
    """A command, and what is said of it."""

    what: str
    quiet_s: int  # on two cores with nothing else to do
    words: tuple[str, ...]
    log: str  # where its tables go


def steps(folder: Path, comparison: Sequence[str], *, busy: bool) -> list[DemoStep]:
    """List the steps to run, with less work where the machine is busy."""
    less = LESS if busy else ()
    probe = (
        *("probe", "--offline", "--task", "gsm8k", "--task", "squad", "--limit", "8"),
        *("--max-new-tokens", "64", "--head", "reference", "--show-example", "0"),
        *("--plot", str(folder / "match-rates.png"), "--out", str(folder / "probe"), *less),
    )
    bench = (*comparison, "--out", str(folder / "bench"), *less)
    page = ("report", *(str(folder / name) for name in ("probe", "bench")))
    return [
        DemoStep(
            "match rates: what every layer already knows of the next token", 15, probe, "probe"
        ),
        DemoStep("decoding with five methods, in turns with greedy", 50, bench, "bench"),
        DemoStep("one page of it all", 5, (*page, "--out", str(folder / "report.html")), "report"),
    ]


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


def shown(probe: Run, bench: Run, page: Path) -> None:
    """The screen at the end."""
    print_sheets([known(probe), faster(bench)])
    for line in (*exactness(bench), *promised(probe), f"The page with all of it: {page}"):
        print(line)


def known(probe: Run) -> Sheet:
    """Match rates by layer."""
    n_layers = probe.header.model.n_layers
    rates = [r for r in probe.rates if (r.bucket, r.head, r.k) == (TOTAL, "N", K)]
    tasks = dict.fromkeys(rate.task for rate in rates)
    layers = sorted({rate.layer for rate in rates})
    of = {(rate.task, rate.layer): round(100 * rate.match_rate, 1) for rate in rates}
    return Sheet(
        f"How early is the next token known? In % after so many of {n_layers} layers",
        ("task", *map(str, layers)),
        tuple((task, *(of[task, layer] for layer in layers)) for task in tasks),
        notes=(f"The share of tokens that are among the {K} likeliest after so many layers.",),
        digits={str(layer): 1 for layer in layers},
    )


def faster(bench: Run) -> Sheet:
    """The comparison over all tasks, or over the one that a run came to before it was stopped."""
    sheets = of_run(bench).sheets
    together = next((s for s in sheets if s.title.startswith("all tasks")), sheets[0])
    return together.without("per step")


def exactness(bench: Run) -> Iterator[str]:
    """Say how many outputs are greedy's."""
    exact = [s for s in bench.summaries if s["exact"] and s["method"] != "greedy"]
    same, ties = (sum(s[kind] for s in exact) for kind in ("identical", "tie"))
    judged = sum(s["n_examples"] - s["failed"] for s in exact)
    words = f", {ties} more up to rounding" if ties else ""
    yield f"Exact: {same} of {judged} outputs are greedy's, token by token{words}."


def promised(probe: Run) -> Iterator[str]:
    """Say what theory makes of the match rates half-way up."""
    half = (probe.header.model.n_layers + 1) // 2
    rows = theory_tables.measure(probe.stored, theory_tables.RowFilter(), probe.ranks).rows
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
    every = steps(folder, comparison, busy=busy)
    for number, step in enumerate(every, 1):
        usual = "" if busy else f" (about {step.quiet_s} s on two quiet cores)"
        print(f"{number}/{len(every)} {step.what}{usual}", flush=True)
        code = carry_out(step, folder, LONGEST_S if busy else LONGEST_QUIET_S)
        if code not in (0, INTERRUPTED):
            print(f"demo: ppdbench {' '.join(step.words)} ended with exit code {code}")
            return code
    print()
    try:
        probe, bench = read_runs([folder / "probe", folder / "bench"])
        shown(probe, bench, folder / "report.html")
    except PpdbenchError as error:  # stopped before there was anything to show
        print(f"demo: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
