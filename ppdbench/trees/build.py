"""From accuracies to the tree that pays on this machine: grow, time, choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_path
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.curve import SizePoint, TreePlan, curve, fastest, timed
from ppdbench.trees.latency import Latency, measure_latency

if TYPE_CHECKING:
    from ppdbench.engine.loading import ModelSpec
    from ppdbench.runs.workload import Report

SIZES = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
LARGEST = 4096


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """The options of building a tree; `size` None: the best of `sizes`.

    `measuring` holds what was said of the measurement, by the names of `Latency`. With a size
    and nothing said, no pass is timed.
    """

    calibration: Path
    kind: str | None = None
    size: int | None = None
    sizes: tuple[int, ...] = ()
    depth: int | None = None
    rows_per_guess: float | None = None
    seed: int = 0
    latency: Path | None = None
    model: ModelSpec
    threads: int | None = None
    context: int = 256
    rounds: int = 48
    measuring: Mapping[str, Any]

    def __post_init__(self) -> None:
        for option, sizes in (("--size", (self.size,)), ("--sizes", self.sizes)):
            for size in sizes:
                if size is not None and not 1 <= size <= LARGEST:
                    raise ConfigError(f"{option} {size}: use 1..{LARGEST} rows")
        if self.latency is not None:
            check_path(self.latency, (".json",), "latency")


@dataclass(frozen=True)
class Built:
    """The chosen tree among those it was compared with."""

    plan: TreePlan
    kind: str
    points: tuple[SizePoint, ...]
    chosen: SizePoint
    latency: Latency | None


def build_tree(config: BuildConfig, report: Report | None = None) -> Built:
    """Grow a tree of each size, time passes of as many rows, and choose."""
    accuracies = Accuracies.load(config.calibration)
    plan = TreePlan.of(accuracies, config.depth, config.rows_per_guess, config.seed)
    kind = config.kind or plan.kinds[0]
    latency = _stored(config)
    if latency is not None:
        accuracies.check_model(latency.model, latency.weight_hash)
    sizes = config.sizes or (SIZES if latency is None else latency.sizes)
    wanted = set(sizes) if config.size is None else {*sizes, config.size}
    points = curve(plan, kind, wanted)
    if latency is None and (config.size is None or config.measuring):
        # Trees need not have all the rows they may have.
        rows = {*wanted, *(point.rows for point in points)}
        latency = _measured(config, accuracies, rows, report)
    if latency is not None:
        points = timed(points, latency)
    chosen = fastest(points) if config.size is None else _of_size(config.size, kind, points)
    return Built(plan, kind, tuple(points), chosen, latency)


def _of_size(size: int, kind: str, points: list[SizePoint]) -> SizePoint:
    """The tree of a size, which may be that of a smaller one where it cannot grow."""
    fitting = [point for point in points if point.rows <= size]
    if not fitting:
        least = points[0].rows
        raise ConfigError(f"no {kind} tree has {size} rows or fewer; use {least} or more")
    return fitting[-1]


def _stored(config: BuildConfig) -> Latency | None:
    """The times in the file given, if it is there, checked against what was said of them."""
    if config.latency is None or not config.latency.exists():
        return None
    latency = Latency.load(config.latency)
    for name, asked in config.measuring.items():
        if (otherwise := latency.other(name, asked)) is not None:
            wanted = "with it" if asked is True else asked
            raise ConfigError(
                f"{config.latency} was measured {otherwise}, not {wanted}; drop "
                f"--{name.replace('_', '-')} or give --latency another file"
            )
    return latency


def _measured(
    config: BuildConfig, accuracies: Accuracies, rows: set[int], report: Report | None
) -> Latency:
    from ppdbench.engine.loading import load
    from ppdbench.machine.environment import set_threads

    quiet()
    set_threads(config.threads)
    loaded = load(config.model, context=config.context)
    accuracies.check_model(config.model.name, loaded.fingerprint)
    latency = measure_latency(
        loaded, rows, context=config.context, rounds=config.rounds, report=report
    )
    settings = {n: asked for n, asked in config.measuring.items() if not hasattr(latency, n)}
    latency = replace(latency, settings=settings)
    if config.latency is not None:
        latency.save(config.latency)
    return latency
