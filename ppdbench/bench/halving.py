"""Successive halving: all cells on few examples, the better half on twice as many, and so on.

Jamieson and Talwalkar 2016. What goes on is decided by stored samples alone, so that a run
that is resumed decides as it did before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ppdbench.errors import ConfigError, counted
from ppdbench.runs.records import SweepHeader

SEARCHES = ("grid", "halving")
FEWEST_CELLS = 2  # the best one, and what it is to be told from
FEWEST_EXAMPLES = 2


@dataclass(frozen=True, slots=True)
class HalvingStage:
    """The number of cells that get here, and their examples: 1/`part` of each task."""

    cells: int
    examples: int
    part: int


def rungs(search: str, n_cells: int, per_task: Sequence[int]) -> tuple[HalvingStage, ...]:
    """The rungs from all cells to all examples; a plain grid has just one."""
    everything = HalvingStage(n_cells, sum(per_task), 1)
    if search == "grid" or n_cells <= FEWEST_CELLS:
        return (everything,)
    parts = _parts(len(_halves(n_cells)), per_task)
    if len(parts) == 1:
        raise ConfigError(
            f"--search halving begins with fewer than {counted(everything.examples, 'example')}, "
            f"and not with fewer than {FEWEST_EXAMPLES}; raise --limit or use --search grid"
        )
    return tuple(
        HalvingStage(cells, _examples(part, per_task), part)
        for cells, part in zip(_halves(n_cells), parts, strict=False)
    )


def _halves(n_cells: int) -> list[int]:
    """List the numbers of cells that are left from stage to stage."""
    left = [n_cells]
    while left[-1] > FEWEST_CELLS:
        left.append(-(-left[-1] // 2))
    return left


def _parts(most: int, per_task: Sequence[int]) -> list[int]:
    """..., 4, 2, 1: at most so many, as long as each rung has fewer examples than the next."""
    parts = [1]
    while len(parts) < most:
        fewer = _examples(2 * parts[0], per_task)
        if not FEWEST_EXAMPLES <= fewer < _examples(parts[0], per_task):
            break
        parts.insert(0, 2 * parts[0])
    return parts


def _examples(part: int, per_task: Sequence[int]) -> int:
    return sum(portion(part, n) for n in per_task)


def portion(part: int, n: int) -> int:
    """Return how many of a task's `n` examples make 1/`part` of them; never none."""
    return -(-n // part)


def expected_samples(header: SweepHeader) -> int:
    """Count the samples of a finished sweep; examples are kept from stage to stage."""
    able = len(header.methods) - len(header.not_run)
    expected = before = 0
    for rung in header.rungs:
        expected += min(able, rung.cells) * (rung.examples - before)
        before = rung.examples
    return expected


def better(labels: Sequence[str], speeds: Mapping[str, float | None], count: int) -> list[str]:
    """The `count` fastest, in their old order; those without a speed are the last to stay."""

    def slowness(label: str) -> float:
        speed = speeds.get(label)
        return float("inf") if speed is None else -speed

    stay = set(sorted(labels, key=slowness)[:count])
    return [label for label in labels if label in stay]
