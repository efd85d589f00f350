"""A sweep: the cells of a grid as the methods of one interleaved run.

At most `AT_ONCE` cells are ready at a time, in a heat with a baseline of its own, so that
memory for caches and add-ons does not grow with the grid; weights of further models are
loaded once for all. A cell that spreads over processes has its heat to itself.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import structs

from ppdbench.bench.batch_sizes import check_examples, check_memory
from ppdbench.bench.claims import measured, over_greedy
from ppdbench.bench.compiling import settle
from ppdbench.bench.grid import Grid
from ppdbench.bench.halving import SEARCHES, HalvingStage, better, expected_samples, portion, rungs
from ppdbench.bench.interleaved import BASELINE, ExampleResult, Interleaved, PreparedMethod
from ppdbench.bench.labels import label_of
from ppdbench.bench.made_sample import sample_of
from ppdbench.bench.runner import (
    Choice,
    DecodeConfig,
    Places,
    about,
    begin,
    decode_sizes,
    is_left,
    prepare,
)
from ppdbench.bench.sums import SampleSums, add_up
from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoder import Decoder
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import ModelSpec, load_depth
from ppdbench.errors import ConfigError, DataError, UnitError
from ppdbench.methods.base import Exiting, Method, Strategy
from ppdbench.runs.records import Compilation, Stage, SweepHeader
from ppdbench.runs.running import Destination, Ready
from ppdbench.runs.store import RunFolder, read_run_header
from ppdbench.runs.workload import FinishedRun, Item, Report, Workload

AT_ONCE = 8

PreparedCells = Mapping[str, tuple[Method, Strategy]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig(DecodeConfig):
    """The options of a sweep; `methods` are the cells of `space`."""

    space: Grid
    search: str = "grid"

    def __post_init__(self) -> None:
        DecodeConfig.__post_init__(self)
        if self.search != "grid" and max(self.sizes) > 1:
            raise ConfigError(
                f"--search {self.search} ranks cells of one batch size; use --search grid"
            )
        if self.space.temperatures() and self.target.greedy:
            raise ConfigError(
                "--grid temperature is about drawn outputs; give --target top-p, top-k or min-p"
            )
        if self.search not in SEARCHES:
            raise ConfigError(f"--search {self.search!r} is not known; use {' or '.join(SEARCHES)}")


def choices(space: Grid) -> tuple[Choice, ...]:
    """The cells as `bench` would be told them; those that differ in temperature alone are one."""
    told = [Choice(name=space.method, options=options) for options in space.cells().values()]
    return tuple({str(choice): choice for choice in told}.values())


def run_sweep(config: SweepConfig, to: Destination) -> FinishedRun:
    """Decode what the run folder does not hold yet, rung by rung."""
    built = config.space.build(config.model.name)
    for found, strategy in built.values():
        found.check_named(strategy, config.model)
    to.check()
    if config.search == "halving" and to.shard.is_job:
        raise ConfigError(
            "--search halving needs all results of a rung before the next, and jobs do not wait "
            "for each other; leave --shard out, or use torchrun or --search grid"
        )
    _check_depths(built, config.model)
    work = Workload.read(config, to.warn)
    if max(config.sizes) > 1:
        check_examples(work, max(config.sizes), to.shard)
        check_memory(config.model, work.context(), max(config.sizes))
    per_task = [len(examples) for _, examples in work.examples]
    built = {label_of(label, size): pair for size in config.sizes for label, pair in built.items()}
    steps = rungs(config.search, len(built), per_task)
    ready = Ready.load(to, work, conversations=True)
    sweep = Sweep(config, built, steps, ready)
    header = ready.header("sweep", config, **sweep.audition(to.report, to.compilation()))
    assert isinstance(header, SweepHeader)
    run = ready.store(header, partial(sweep.run, to.report), (), longer=False)
    return replace(run, missing=max(0, expected_samples(header) - len(run.samples)))


def _check_depths(built: PreparedCells, model: ModelSpec) -> None:
    """Refuse exits that the model does not have while its weights are not loaded yet."""
    exiting = [strategy for _, strategy in built.values() if isinstance(strategy, Exiting)]
    if exiting:
        n_layers = load_depth(model)
        for strategy in exiting:
            strategy.exit_in(n_layers)


class Sweep:
    """The cells and examples of a sweep, and who decodes what together."""

    def __init__(
        self,
        config: SweepConfig,
        built: PreparedCells,
        steps: Sequence[HalvingStage],
        ready: Ready,
    ) -> None:
        self.config, self.built, self.steps = config, built, steps
        self.loaded, self.setup = ready.loaded, ready.setup
        self.sizes = {
            label_of(n, size): size for size in config.sizes for n in config.space.cells()
        }
        self.targets = {
            label_of(n, size): replace(config.target, temperature=temperature)
            for size in config.sizes
            for n, temperature in config.space.temperatures().items()
        }
        self.batch, self._kept = Batch(ready.setup, prefill=config.prefill), ready.to.chosen()
        self._of_rung = [first(ready.items, step.part, config.seed) for step in steps]
        self._able: dict[str, Decoder] = {}  # cells that can run, in outline

    def audition(self, report: Report, begun: Compilation | None = None) -> dict[str, Any]:
        """Prepare the cells one at a time and return what the header says of all of them.

        Before passes are captured, to learn which are wanted; and after, as it will decode.
        `begun` is what it says of captured passes already.
        """
        parts = ("methods", "not_run", "facts", "used", "chosen")
        told: dict[str, Any] = {part: {} for part in parts}
        for label in self.built:
            entry = self._prepare(label)
            if isinstance(entry, PreparedMethod):
                self._able[label] = _outline(entry.decoder)
                _close(entry)
            else:
                told["not_run"][label] = entry
        self._check_any(told["not_run"])
        apart = self.config.strict or max(self.config.sizes) > 1
        mode = "off" if apart else self.config.compile
        compilation = settle(mode, self.setup, self._able, report, begun)
        for label in self.built:
            entry = told["not_run"].get(label) or self._begin(label)
            for part, content in about([(label, self.built[label], entry)], self.sizes).items():
                told[part] |= content
            if label in self.targets:
                cell = told["methods"][label]
                drawn_at = self.targets[label].temperature
                told["methods"][label] = structs.replace(cell, temperature=drawn_at)
            if isinstance(entry, PreparedMethod):
                _close(entry)
            else:
                self._able.pop(label, None)
        self._check_any(told["not_run"])
        steps = zip(self.steps, self._of_rung, strict=True)
        rungs = [Stage(cells=step.cells, examples=len(items)) for step, items in steps]
        return {**told, "rungs": rungs, "compilation": compilation}

    def _check_any(self, not_run: Mapping[str, str]) -> None:
        if not self._able:
            raise ConfigError(f"no cell can run: {next(iter(not_run.values()))}")

    def run(self, report: Report, folder: RunFolder) -> None:
        """Run rung after rung; who goes on follows from what the folder holds."""
        going = list(self._able)
        for number, (step, items) in enumerate(zip(self.steps, self._of_rung, strict=True)):
            if number:
                folder.meet()
                going = self._next(number, going, step.cells, folder)
            ours = folder.shard.part(items)
            heats = self._heats([n for n in going if any(is_left(i, n, folder) for i in ours)])
            for turn, heat in enumerate(heats, 1):
                where = f"rung {number + 1}/{len(self.steps)}, cells {turn}/{len(heats)}"
                self._heat(heat, items, folder, _prefixed(report, where))

    def _next(self, number: int, going: Sequence[str], cells: int, folder: RunFolder) -> list[str]:
        """The cells that get to a rung, as the run folder says where that was decided before.

        Times of failures that are tried again, or of another machine, would decide otherwise.
        """
        header = read_run_header(folder.path)
        assert isinstance(header, SweepHeader)
        told = list(header.rungs)
        if (decided := told[number].going) is not None:
            return [label for label in going if label in decided]
        found = better(going, _speeds(going, self._of_rung[number - 1], folder), cells)
        if not folder.shard.follows:
            told[number] = structs.replace(told[number], going=found)
            folder.amend(rungs=told)
        return found

    def _prepare(self, label: str) -> PreparedMethod | str:
        size = self.sizes[label]
        places = Places(self.setup, self.batch, size) if size > 1 else None
        told = (*self.built[label], self.setup, self._target(label))
        return prepare(label, *told, alone=False, places=places, kept=self._kept.get(label))

    def _begin(self, label: str) -> PreparedMethod | str:
        return begin(self._prepare(label), alone=False)

    def _heats(self, labels: Sequence[str]) -> list[list[str]]:
        """Group the cells that decode side by side."""
        shared = [label for label in labels if self._able[label].units == 1]
        heats = []
        kinds = {label: (self.sizes[label], self._target(label).temperature) for label in shared}
        for kind in sorted(set(kinds.values())):
            alike = [label for label in shared if kinds[label] == kind]
            heats += [alike[i : i + AT_ONCE] for i in range(0, len(alike), AT_ONCE)]
        return heats + [[label] for label in labels if label not in shared]

    def _heat(
        self, labels: Sequence[str], items: Sequence[Item], folder: RunFolder, report: Report
    ) -> None:
        methods = []
        with ExitStack() as started:
            for label in labels:
                entry = self._begin(label)
                if isinstance(entry, str):
                    self._give_up(label, items, folder, entry)
                    continue
                started.callback(_close, entry)
                methods.append(entry)
            try:
                decode_sizes(
                    self._interleaved(methods),
                    *(self.batch, methods, items, folder),
                    warmup=self.config.warmup,
                    report=report,
                )
            except UnitError as error:
                # Only cells that are alone have units: the others go on.
                self._give_up(labels[0], items, folder, str(error))

    def _target(self, label: str) -> Target:
        """The way to pick tokens in a cell."""
        return self.targets.get(label, self.config.target)

    def _interleaved(self, methods: Sequence[PreparedMethod]) -> Interleaved:
        """Cells of one heat have one temperature, that of the greedy decoding beside them, too."""
        target = self._target(methods[0].label) if methods else self.config.target
        return Interleaved(
            *(self.loaded, [m for m in methods if m.size == 1], self.setup, target),
            strict=self.config.strict,
        )

    def _give_up(self, label: str, items: Sequence[Item], folder: RunFolder, error: str) -> None:
        """Record for each example left to us why it was not decoded."""
        outcomes = dict.fromkeys((label, *BASELINE), ExampleResult("failed", error=error))
        for item in folder.shard.part(items):
            if is_left(item, label, folder):
                folder.append(sample_of(item, label, outcomes, self.loaded))


def _close(method: PreparedMethod) -> None:
    """End what was started for it."""
    for decoder in method.slots:
        decoder.close()


def _outline(decoder: Decoder) -> Decoder:
    """Return what is known of a decoder that is closed: neither weights nor caches."""
    outline = Decoder()
    outline.rows, outline.foreign = decoder.rows, decoder.foreign
    outline.units = decoder.units
    return outline


def first(items: Sequence[Item], part: int, seed: int) -> list[Item]:
    """1/`part` of each task's examples, in an order drawn from the seed.

    Data sets are sorted by kind often enough that their first examples stand for nothing.
    """
    by_task: dict[str, list[list[Item]]] = {}  # the turns of a question stay together
    for item in items:
        questions = by_task.setdefault(item.task.name, [])
        if item.after is None:
            questions.append([])
        questions[-1].append(item)
    taken = []
    for task, questions in by_task.items():
        order = random.Random(f"{seed} {task}").sample(questions, len(questions))
        taken += [turn for question in order[: portion(part, len(order))] for turn in question]
    return taken


def _speeds(
    labels: Sequence[str], items: Sequence[Item], folder: RunFolder
) -> dict[str, float | None]:
    """The paired ratio of each cell on these examples; none where one failed."""
    keys = [item.key(label) for label in labels for item in items]
    if any(key not in folder.done for key in keys):
        raise DataError("another process ended before its share was done; continue with --resume")
    found: dict[str, list[SampleSums]] = {}
    for one in add_up(folder.done[key] for key in keys):
        found.setdefault(one.method, []).append(one)
    return {label: _pace(group) for label, group in found.items()}


def _pace(group: Sequence[SampleSums]) -> float | None:
    """Return the speed that the search goes by, on however few examples; it claims nothing."""
    failed = any(one.failed for one in group)
    return None if failed else measured([over_greedy(one) for one in group])


def _prefixed(report: Report, where: str) -> Report:
    def told(text: str, done: int, total: int | None) -> None:
        report(f"{where}: {text}", done, total)

    return told
