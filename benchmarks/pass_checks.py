"""Check fast passes of a model many times over: good ones must pass, planted bugs must not.

    python -m benchmarks.pass_checks --model FOLDER [--passes compiled,flat] [--draws 25]
        [--rows 1,3,5,8] [--save FILE.json]

Each draw of tokens and trees is one check for each number of rows. `--traced` runs what the
compiler is handed as plain Python; without it passes are compiled, tens of seconds each. What the
file that `--save` names holds already is not checked again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.curve import this_machine
from benchmarks.flat_bugs import BLOCK, FLAT_BUGS, rounded
from ppdbench.engine import artefacts
from ppdbench.engine.artefacts import Runner, Traced
from ppdbench.engine.compiled import MOST_ROWS, CompiledLayers, TracedLayer
from ppdbench.engine.flat.choice import EAGER, FLAT
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.pass_check import PassPlan, PassRun, PassTruth
from ppdbench.engine.staged import StagedModel, eager, wider
from ppdbench.errors import NumericalError, PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import set_threads
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

# The inputs of a compiled layer: hidden, cos, sin, mask, rows, keys, values, weights.
Damage = Callable[[Runner, list[Tensor]], Sequence[Tensor]]
SIN, MASK, FIRST_WEIGHT = 2, 3, 7


def too_large(run: Runner, flat: list[Tensor]) -> Sequence[Tensor]:
    """Give states four percent too large."""
    return [1.04 * run(flat)[0]]


def no_last_block(run: Runner, flat: list[Tensor]) -> Sequence[Tensor]:
    """Forget the last columns of the output, as a loop without its rest does."""
    out = run(flat)[0].clone()
    out[..., -BLOCK:] = flat[0][..., -BLOCK:]
    return [out]


def turned_back(run: Runner, flat: list[Tensor]) -> Sequence[Tensor]:
    """Turn queries and keys the wrong way."""
    return run([*flat[:SIN], -flat[SIN], *flat[SIN + 1 :]])


def one_short(run: Runner, flat: list[Tensor]) -> Sequence[Tensor]:
    """Count the keys that a row sees one short, so that it does not see itself."""
    seen = flat[MASK].roll(-1, dims=-1) & flat[MASK]
    seen[..., -1] = False
    return run([*flat[:MASK], seen, *flat[MASK + 1 :]])


def coarse(run: Runner, flat: list[Tensor]) -> Sequence[Tensor]:
    """Read matrices with few of their digits, less than bfloat16 has."""
    weights = [rounded(w) if w.dim() == 2 else w for w in flat[FIRST_WEIGHT:]]
    return run([*flat[:FIRST_WEIGHT], *weights])


BUGS: dict[str, Damage] = {
    "states 4 % too large": too_large,
    "last columns forgotten": no_last_block,
    "turned the wrong way": turned_back,
    "keys counted one short": one_short,
    "matrices read coarsely": coarse,
}


GOOD = "as they are"


def traced(what: str, make: Callable[[], Traced]) -> Runner:
    """Run what the compiler is handed, as plain Python."""
    module, _, _ = make()
    first = FIRST_WEIGHT if isinstance(module, TracedLayer) else 1

    def run(flat: list[Tensor]) -> list[Tensor]:
        out = module(*flat[:first], flat[first:])
        return [out] if isinstance(out, Tensor) else list(out)

    return run


@contextmanager
def damaged(compiled: CompiledLayers, damage: Damage) -> Iterator[None]:
    """Plant a bug into all compiled layers for a while."""
    layers = next(iter(compiled._made.values())).layers
    before = dict(layers)
    layers.update({n: _with(run, damage) for n, run in before.items()})
    try:
        yield
    finally:
        layers.update(before)


def _with(run: Runner, damage: Damage) -> Runner:
    return lambda flat: damage(run, flat)


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
    """A model that runs fast passes, the same that runs none, and bugs to plant into the first."""

    fast: StagedModel
    plain: StagedModel
    bugs: Mapping[str, Callable[[], AbstractContextManager[None]]]


def with_compiled(spec: ModelSpec, counts: Sequence[int]) -> Subject:
    """A model whose passes of these numbers of rows are compiled."""
    staged = load(spec, passes=EAGER).staged  # flat passes would run before compiled ones
    staged.adapter.unpack()
    staged.compiled.make(counts)
    bugs = {name: partial(damaged, staged.compiled, damage) for name, damage in BUGS.items()}
    return Subject(staged, staged, bugs)


def with_flat(spec: ModelSpec, counts: Sequence[int]) -> Subject:
    """A model whose passes are flat, of whatever number of rows."""
    fast = load(spec, passes=FLAT).staged
    if fast.flat is None:
        raise PpdbenchError(f"no flat passes of {spec.name} here: {fast.path.words}")
    bugs = {name: partial(plant, fast.flat) for name, plant in FLAT_BUGS.items()}
    return Subject(fast, load(spec, passes=EAGER).staged, bugs)


KINDS = {"compiled": with_compiled, "flat": with_flat}


def check_all(subject: Subject, plan: PassPlan, tallies: dict[str, CheckTally], bugs: bool) -> None:
    """Check good passes of each number of rows over a plan, and the same with each bug."""
    with eager(subject.plain):
        truth = PassTruth.of(plan, wider(subject.plain), subject.plain)
    run = PassRun(subject.fast, plan)
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
    fast, tallies = subject.fast, {name: CheckTally() for name in (GOOD, *BUGS)}
    for seed in range(draws):
        plan = PassPlan.over(fast.text, counts, fast.adapter.max_positions, seed)
        check_all(subject, plan, tallies, seed < planted)
        print(f"{seed + 1} of {draws} draws, {tallies[GOOD].checks} checks", flush=True)
    return tallies


def is_right(tallies: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if no good pass is refused, and no bad one is let through."""
    good, *bad = tallies.values()
    return not good["refused"] and all(tally["refused"] == tally["checks"] for tally in bad)


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """A row for good passes and for each bug, a column for each kind of passes and of numbers."""
    checked: Mapping[str, Any] = content["checked"]
    rows = tuple(
        (name, *(_share(found["tallies"][name]) for found in checked.values()))
        for name in (GOOD, *BUGS)
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
    parser.add_argument(
        "--passes", default="compiled", help="compiled, flat or both: flat,compiled"
    )
    parser.add_argument("--draws", type=int, default=7, help="of tokens and trees, by dtype")
    parser.add_argument("--planted", type=int, default=2, help="of them, with each bug too")
    parser.add_argument("--rows", default=f"1-{MOST_ROWS}", help="numbers of rows: 1-16 or 1,5")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--traced", action="store_true", help="do not compile")
    parser.add_argument("--save", type=Path, help="keep what was counted, as .json")
    return parser.parse_args(words)


def _stored(path: Path | None) -> dict[str, Any]:
    """Read what a file holds; nothing where there is none."""
    if path is None or not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def checked(asked: argparse.Namespace, kind: str, dtype: str) -> dict[str, Any]:
    """Check one kind of passes with one type of numbers."""
    first, _, last = asked.rows.partition("-")
    counts = [*range(int(first), int(last) + 1)] if last else [*map(int, asked.rows.split(","))]
    spec = ModelSpec(name=asked.model, dtype=dtype, device="cpu", offline=True)
    tallies = check_many(KINDS[kind](spec, counts), counts, asked.draws, asked.planted)
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
    if asked.traced:
        artefacts.runner = traced
    set_threads(asked.threads)
    content = {"model": asked.model, "machine": this_machine(timed=False), "checked": {}}
    content = _stored(asked.save) or content
    for kind in asked.passes.split(","):
        for dtype in asked.dtypes.split(","):
            column = f"{'traced' if asked.traced and kind == 'compiled' else kind}, {dtype}"
            if column not in content["checked"]:
                content["checked"][column] = checked(asked, kind, dtype)
            if asked.save is not None:  # each time: a type takes minutes
                write_whole(asked.save, json.dumps(content, indent=1) + "\n", make_folder=True)
    print_sheets(sheets(content))
    return 0 if all(is_right(found["tallies"]) for found in content["checked"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
