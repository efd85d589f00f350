"""Check fast passes of a model many times over: good ones must pass, planted bugs must not.

    python -m benchmarks.pass_checks --model FOLDER --draws 25 --rows 1,3,5,8

Each draw of tokens and trees is one check for each number of rows. `--traced` runs what the
compiler is handed as plain Python; without it passes are compiled, tens of seconds each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ppdbench.engine import artefacts
from ppdbench.engine.artefacts import Runner, Traced
from ppdbench.engine.compiled import MOST_ROWS, CompiledLayers, TracedLayer
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.pass_check import PassPlan, PassRun, PassTruth
from ppdbench.engine.staged import StagedModel, eager, wider
from ppdbench.errors import NumericalError

# The inputs of a compiled layer: hidden, cos, sin, mask, rows, keys, values, weights.
Damage = Callable[[Runner, list[Tensor]], Sequence[Tensor]]
SIN, MASK, FIRST_WEIGHT = 2, 3, 7
BLOCK, DIGITS = 16, 4


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
    weights = [_rounded(w) if w.dim() == 2 else w for w in flat[FIRST_WEIGHT:]]
    return run([*flat[:FIRST_WEIGHT], *weights])


def _rounded(weight: Tensor) -> Tensor:
    size, power = torch.frexp(weight.float())
    return torch.ldexp((size * 2**DIGITS).round(), power - DIGITS).to(weight.dtype)


BUGS: dict[str, Damage] = {
    "states 4 % too large": too_large,
    "last columns forgotten": no_last_block,
    "turned the wrong way": turned_back,
    "keys counted one short": one_short,
    "matrices read coarsely": coarse,
}


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


def check_all(
    staged: StagedModel, plan: PassPlan, tallies: dict[str, CheckTally], bugs: bool
) -> None:
    """Check good passes of each number of rows over a plan, and the same with each bug."""
    with eager(staged):
        truth = PassTruth.of(plan, wider(staged), staged)
    run = PassRun(staged, plan)
    run.prompt()
    for n in plan.passes:
        tallies["good"].add(refusal(truth, run, n))
        for name, damage in BUGS.items() if bugs else ():
            with damaged(staged.compiled, damage):
                tallies[name].add(refusal(truth, run, n))


def refusal(truth: PassTruth, run: PassRun, n: int) -> str | None:
    """Check passes of `n` rows; why they are refused, if they are."""
    try:
        truth.hold(run, n, f"a pass of {n} rows", "")
    except NumericalError as error:
        return str(error).rstrip("; ")
    return None


def check_many(staged: StagedModel, counts: Sequence[int], draws: int, planted: int) -> bool:
    """Print what is refused of good passes and of bad ones; True if all is as it must be."""
    tallies = {name: CheckTally() for name in ("good", *BUGS)}
    for seed in range(draws):
        plan = PassPlan.over(staged.text, counts, staged.adapter.max_positions, seed)
        check_all(staged, plan, tallies, seed < planted)
    for name, tally in tallies.items():
        print(f"{staged.dtype}, {name}: {tally.refused} of {tally.checks} refused; {tally.why}")
    good, *bad = tallies.values()
    return not good.refused and all(tally.refused == tally.checks for tally in bad)


def main() -> None:
    """Parse, check, exit with 1 where anything is not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="reference")
    parser.add_argument("--draws", type=int, default=7, help="of tokens and trees, by dtype")
    parser.add_argument("--planted", type=int, default=2, help="of them, with each bug too")
    parser.add_argument("--rows", default=f"1-{MOST_ROWS}", help="numbers of rows: 1-16 or 1,5")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--traced", action="store_true", help="do not compile")
    asked = parser.parse_args()
    first, _, last = asked.rows.partition("-")
    counts = [*range(int(first), int(last) + 1)] if last else [*map(int, asked.rows.split(","))]
    if asked.traced:
        artefacts.runner = traced
    fine = []
    for dtype in asked.dtypes.split(","):
        staged = load(ModelSpec(name=asked.model, dtype=dtype, device="cpu")).staged
        staged.adapter.unpack()
        staged.compiled.make(counts)
        fine.append(check_many(staged, counts, asked.draws, asked.planted))
    raise SystemExit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
