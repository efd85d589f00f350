"""`make showcase`: run what is missing, then lay everything out on one page.

    python -m benchmarks.showcase FOLDER [--model smollm2] [--dtypes bfloat16,float32]
        [--limit N] [--tokens N] [--threads N] [--text TEXT] [--tasks A,B] [--tables A,B]
        [--estimate | --page | --pack | --unpack]

`--estimate` says what would be run and how long that takes, `--page` makes the page of what is
there. `--pack` puts the runs into one file, which `--unpack` lays out again. The same command goes
on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.showcase import archive, page
from benchmarks.showcase.pace import JobPace, expected_s, in_words
from benchmarks.showcase.plan import PAPERS, RUNS, ShowcaseAsked, ShowcaseJob, jobs, lacking
from ppdbench.engine.gguf import source
from ppdbench.engine.loading import ModelSpec, load_depth
from ppdbench.errors import Interrupted, PpdbenchError
from ppdbench.tables.steps import finished, run_missing

FAILED = 3


@dataclass(frozen=True, slots=True)
class FailedJob:
    """A job that ended without a result, and why."""

    job: ShowcaseJob
    why: str


def main(arguments: Sequence[str]) -> int:
    """Run what is missing and make the page; an exit code."""
    told = _parser().parse_args(arguments)
    asked = ShowcaseAsked(
        folder=Path(told.folder),
        model=told.model,
        dtypes=tuple(told.dtypes.split(",")),
        limit=told.limit,
        tokens=told.tokens,
        threads=told.threads,
        text=told.text or None,
        tasks=tuple(filter(None, told.tasks.split(","))),
        papers=tuple(filter(None, told.tables.split(","))),
    )
    try:
        if told.pack or told.unpack:
            return _keep(asked.folder, packs=told.pack)
        failed = [] if told.page else carry_out(asked, estimate_only=told.estimate)
        if not told.estimate:
            made = page.make(asked, [f"{f.job.what} ({f.job.dtype}): {f.why}" for f in failed])
            print(f"The page with all of it: {made}")
    except PpdbenchError as error:
        print(f"showcase: {error}", file=sys.stderr)
        return error.exit_code
    return FAILED if failed else 0


def _keep(folder: Path, *, packs: bool) -> int:
    """Pack the runs of a showcase or lay them out again; an exit code."""
    if packs:
        made = archive.pack(folder)
        print(f"The runs in one file: {made} ({made.stat().st_size / 1e6:.1f} MB)")
    else:
        print(f"{archive.unpack(folder)} files of runs lie in {folder / RUNS}")
    return 0


def carry_out(asked: ShowcaseAsked, *, estimate_only: bool = False) -> list[FailedJob]:
    """Run all jobs that are not done, saying how long they take; those that failed."""
    depth = load_depth(ModelSpec(name=asked.model, offline=True))
    planned = jobs(asked)
    left = [job for job in planned if not _is_done(job, asked)]
    pace = JobPace(asked)
    for absent in lacking(asked):
        print(f"left out: {absent}")
    print(
        f"{len(planned) - len(left)} of {len(planned)} jobs are done; the others take about "
        f"{in_words(pace.estimate_s(left))} on two quiet cores, less where answers end early."
    )
    failed: list[FailedJob] = []
    for number, job in enumerate(left, 1):
        remaining = in_words(pace.estimate_s(left[number - 1 :]))
        about = in_words(pace.estimate_s([job]))
        print(
            f"{number}/{len(left)} {job.what}, {job.dtype}: about {about}, all that is left "
            f"{remaining}",
            flush=True,
        )
        if not estimate_only and (why := _run(job, asked, pace, depth)) is not None:
            print(f"      failed: {why}", flush=True)
            failed.append(FailedJob(job, why))
    return failed


def _run(job: ShowcaseJob, asked: ShowcaseAsked, pace: JobPace, depth: int) -> str | None:
    """Run a job and return why it failed, if it did; that keeps no other from running."""
    begun, expected = time.monotonic(), expected_s(job, asked)
    scale = asked.scale(job.dtype)
    try:
        run_missing(job.recipe, asked.place(job.dtype), scale, depth=lambda: depth, report=_said)
    except Interrupted:
        raise
    except PpdbenchError as error:
        return str(error)
    pace.learn(expected, time.monotonic() - begun)
    return None


def _is_done(job: ShowcaseJob, asked: ShowcaseAsked) -> bool:
    place, scale = asked.place(job.dtype), asked.scale(job.dtype)
    return all(finished(step, place, scale) for step in job.recipe)


def _said(line: str) -> None:
    print(f"      {line}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.showcase")
    parser.add_argument("folder")
    parser.add_argument("--model", default=source.SMOLLM2)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--text", default="")
    parser.add_argument("--tasks", default="")
    parser.add_argument("--tables", default=",".join(PAPERS))
    instead = parser.add_mutually_exclusive_group()
    for option in ("--estimate", "--page", "--pack", "--unpack"):
        instead.add_argument(option, action="store_true")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        print("showcase: interrupted; the same command goes on from there", file=sys.stderr)
        sys.exit(Interrupted.exit_code)
