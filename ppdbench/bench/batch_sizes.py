"""The sizes of batches that a run is told, and what they must fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from ppdbench.bench.labels import APART
from ppdbench.engine.footprint import gb
from ppdbench.engine.loading import ModelSpec, reckon
from ppdbench.engine.placement import name_of
from ppdbench.errors import ConfigError, counted
from ppdbench.runs.shards import Shard
from ppdbench.runs.workload import Workload

T = TypeVar("T")

# Examples that one stream takes for each of its places: at its end places are empty, and the more
# there are, the less of the time that is.
REFILLS = 4


def parse_prefill(text: str) -> int | None:
    """`apart`, or so many rows of a prompt beside the steps of others."""
    if text == APART:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--prefill {text}: use {APART}, or rows such as 64")
    return int(text)


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse no size, and sizes that no batch has."""
    if not sizes:
        raise ConfigError("--batch is empty: use 1 or more, such as 1,2,4,8")
    for size in sizes:
        if size < 1:
            raise ConfigError(f"--batch {size}: use 1 or more, such as 1,2,4,8")


def check_examples(work: Workload, size: int, shard: Shard) -> None:
    """Refuse a batch that a task has not enough examples to fill."""
    fewest = shard.fewest((task.name, each) for task, some in work.examples for each in some)
    for task, examples in work.examples:
        ours = fewest.get(task.name, 0)
        if size > ours:
            whose = f", of which one of {shard.count} processes gets {ours}"
            here = f"{counted(len(examples), 'example')} here{whose if shard.count > 1 else ''}"
            raise ConfigError(
                f"--batch {size}: {task.name} has {here}; use {max(1, ours)} or less, or a higher "
                "--limit"
            )


def check_memory(spec: ModelSpec, context: int, size: int) -> None:
    """Refuse a batch whose caches do not fit beside the model, with the largest that does."""
    placement = reckon(spec, context)
    need, home = placement.need, placement.memory.home
    room = placement.memory.free[home] - need.total
    if placement.places is not None or room < 0 or need.kept * size <= room:
        return  # of a model that does not fit itself loading says what would help
    largest = room // need.kept
    raise ConfigError(
        f"--batch {size} needs {gb(need.kept * size)} for keys and values of {need.context} "
        f"tokens each beside the model's {gb(need.total)}, {name_of(home)} has "
        f"{gb(placement.memory.free[home])}: use --batch {max(1, largest)} or less, shorter "
        "sequences or --dtype bfloat16"
    )


def streams(items: Sequence[T], size: int) -> list[list[T]]:
    """Examples in parts of about `REFILLS` for each place of a batch, equal but for one.

    Each is decoded by every method in turn before the next begins, so that what a machine does
    meanwhile hits all alike, and is kept when it is done.
    """
    parts = max(1, len(items) // (REFILLS * size))
    ends = [len(items) * part // parts for part in range(parts + 1)]
    return [list(items[a:b]) for a, b in pairwise(ends)]
