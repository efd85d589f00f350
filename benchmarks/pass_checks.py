"""Check flat passes of a model many times over: good ones must pass, planted bugs must not.

    python -m benchmarks.pass_checks --model FOLDER [--draws 25] [--rows 1,3,5,8]
        [--save FILE.json]

Each draw of tokens and trees is one check for each number of rows. What the file that `--save`
names holds already is not checked again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.curve import this_machine
from benchmarks.flat_bugs import FLAT_BUGS
from ppdbench.engine.flat.choice import EAGER, FLAT
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.pass_check import PassPlan, PassRun, PassTruth
from ppdbench.engine.staged import StagedModel, wider
from ppdbench.errors import NumericalError, PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import set_threads
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

ROWS = "1-16"  # of passes that are checked, unless told
GOOD = "as they are"


@dataclass(slots=True)
class CheckTally:
    """A count of checks and of those that refused, with the first one's reason."""

    checks: int = 0
    refused: int = 0
    why: str = ""

    def add(self, why: str | None) -> None:
        """Count a check."""
        self.checks += 1
        self.refused += why is not None
        self.why = self.why or why or ""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model whose passes are flat, the same with eager ones, and bugs to plant into the first."""

    flat: StagedModel
    eager: StagedModel
    bugs: Mapping[str, Callable[[], AbstractContextManager[None]]]


def subject_of(spec: ModelSpec) -> Subject:
    """Load a model both ways."""
    flat = load(spec, passes=FLAT).staged
    if flat.flat is None:
        raise PpdbenchError(f"no flat passes of {spec.name} here: {flat.path.words}")
    bugs = {name: partial(plant, flat.flat) for name, plant in FLAT_BUGS.items()}
    return Subject(flat, load(spec, passes=EAGER).staged, bugs)


def check_all(subject: Subject, plan: PassPlan, tallies: dict[str, CheckTally], bugs: bool) -> None:
    """Check good passes of each number of rows over a plan, and the same with each bug."""
    truth = PassTruth.of(plan, wider(subject.eager), subject.eager)
    run = PassRun(subject.flat, plan)
    run.prompt()
    _count(tallies[GOOD], truth, run)
    for name, plant in subject.bugs.items() if bugs else ():
        with plant():
            _count(tallies[name], truth, run)


def _count(tally: CheckTally, truth: PassTruth, run: PassRun) -> None:
    for n in truth.plan.passes:
        tally.add(refusal(truth, run, n))


def refusal(truth: PassTruth, run: PassRun, n: int) -> str | None:
    """Check passes of `n` rows; why they are refused, if they are."""
    try:
        truth.hold(run, n, f"a pass of {n} rows", "")
    except NumericalError as error:
        return str(error).rstrip("; ")
    return None


def check_many(
    subject: Subject, counts: Sequence[int], draws: int, planted: int
) -> dict[str, CheckTally]:
    """Count what is refused of good passes and of bad ones."""
    flat, tallies = subject.flat, {name: CheckTally() for name in (GOOD, *FLAT_BUGS)}
    for seed in range(draws):
        plan = PassPlan.over(flat.text, counts, flat.adapter.max_positions, seed)
        check_all(subject, plan, tallies, seed < planted)
        print(f"{seed + 1} of {draws} draws, {tallies[GOOD].checks} checks", flush=True)
    return tallies


def is_right(tallies: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if no good pass is refused, and no bad one is let through."""
    good, *bad = tallies.values()
    return not good["refused"] and all(tally["refused"] == tally["checks"] for tally in bad)


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A row for good passes and for each bug, a column for each type of numbers."""
    checked: Mapping[str, Any] = content["checked"]
    rows = tuple(
        (name, *(_share(found["tallies"][name]) for found in checked.values()))
        for name in (GOOD, *FLAT_BUGS)
    )
    notes = (
        *(f"{kind}: passes of {found['rows']} rows." for kind, found in checked.items()),
        f"Refused, of so many checks of chains and trees over a text; {content['machine']}.",
    )
    title = f"Checks that refuse fast passes of {content['model']}"
    return [Sheet(title, ("passes", *checked), rows, notes)]


def _share(tally: Mapping[str, Any]) -> str:
    return f"{tally['refused']} of {tally['checks']}"


def _asked(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="reference")
    parser.add_argument("--draws", type=int, default=7, help="of tokens and trees, by dtype")
    parser.add_argument("--planted", type=int, default=2, help="of them, with each bug too")
    parser.add_argument("--rows", default=ROWS, help="numbers of rows: 1-16 or 1,5")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--save", type=Path, help="keep what was counted, as .json")
    return parser.parse_args(words)


def _stored(path: Path | None) -> dict[str, Any]:
    """Read what a file holds; nothing where there is none."""
    if path is None or not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def checked(asked: argparse.Namespace, dtype: str) -> dict[str, Any]:
    """Check passes with one type of numbers."""
    first, _, last = asked.rows.partition("-")
    counts = [*range(int(first), int(last) + 1)] if last else [*map(int, asked.rows.split(","))]
    spec = ModelSpec(name=asked.model, dtype=dtype, device="cpu", offline=True)
    tallies = check_many(subject_of(spec), counts, asked.draws, asked.planted)
    for name, tally in tallies.items():
        print(f"{dtype}, {name}: {tally.refused} of {tally.checks} refused; {tally.why}")
    return {
        "rows": asked.rows,
        "draws": asked.draws,
        "planted": asked.planted,
        "tallies": {name: asdict(tally) for name, tally in tallies.items()},
    }


def main(words: Sequence[str] | None = None) -> int:
    """Check what is not stored yet, show and keep it; 1 where anything is not as it must be."""
    asked = _asked(words)
    set_threads(asked.threads)
    content = {"model": asked.model, "machine": this_machine(timed=False), "checked": {}}
    content = _stored(asked.save) or content
    for dtype in asked.dtypes.split(","):
        column = f"{FLAT}, {dtype}"
        if column not in content["checked"]:
            content["checked"][column] = checked(asked, dtype)
        if asked.save is not None:  # each time: a type takes minutes
            write_whole(asked.save, json.dumps(content, indent=1) + "\n")
    print_sheets(sheets(content))
    return 0 if all(is_right(found["tallies"]) for found in content["checked"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
