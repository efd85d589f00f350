"""A probe run: every task and target, one line per example, resumable."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ppdbench.bench.compiling import check_mode, settle
from ppdbench.decoding.decoder import Decoder
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import TARGETS, Target, generator_for
from ppdbench.decoding.stock_check import hold_ranks
from ppdbench.engine.heads import ExitHead, check_heads, load_heads
from ppdbench.engine.loading import Loaded
from ppdbench.engine.truth import StockTruth
from ppdbench.errors import ConfigError
from ppdbench.probe.buckets import divisors
from ppdbench.probe.match import ProbedSequence, Prober, Question
from ppdbench.runs.records import ProbedSample
from ppdbench.runs.running import Destination, Ready
from ppdbench.runs.samples import Key
from ppdbench.runs.store import RunFolder
from ppdbench.runs.workload import FinishedRun, Item, Report, RunConfig, Workload, asked
from ppdbench.tasks import Task

MOST_AT_ONCE = 4096  # sequences; more do not fit any machine's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeConfig(RunConfig):
    """The options of a probe run. Layers are counts of layers run; none means all."""

    layers: tuple[int, ...] = ()
    ks: tuple[int, ...] = (1, 3, 5)
    targets: tuple[Target, ...] = (Target(),)
    bucket: int | None = None
    head: str | None = None
    stop_at_eos: bool | None = None  # or as prompts have it: where they are of a chat
    batch_size: int = 1
    show_example: int | None = None
    compile: str = "auto"

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is a new class, which super() does not know.
        RunConfig.__post_init__(self)
        if not self.ks or min(self.ks) < 1:
            raise ConfigError(f"-k {', '.join(map(str, self.ks)) or 'nothing'}: use 1 or more")
        if not 1 <= self.batch_size <= MOST_AT_ONCE:
            raise ConfigError(
                f"--batch-size {self.batch_size}: use 1 or more, up to {MOST_AT_ONCE}"
            )
        check_mode(self.compile)
        if self.compile == "on" and self.batch_size > 1:
            raise ConfigError(
                "--compile on is for one sequence at a time; leave it or --batch-size out"
            )
        if not self.targets:
            raise ConfigError(f"no --target is given; use {', '.join(TARGETS)}")
        kinds = [target.kind for target in self.targets]
        if len(set(kinds)) < len(kinds):
            raise ConfigError("a --target is given twice")

    def check_bucket(self, task: Task) -> None:
        """Refuse buckets that do not divide the outputs of `task`."""
        length = self.new_tokens(task)
        if self.bucket is not None and (self.bucket < 1 or length % self.bucket):
            raise ConfigError(
                f"--bucket {self.bucket} does not divide the {length} tokens of {task.name}; "
                f"use one of {', '.join(str(d) for d in divisors(length))}"
            )


def parse_layers(text: str | None, n_layers: int) -> tuple[int, ...]:
    """`all`, `4,8,12` or `2-6` to numbers of layers run, checked against the model."""
    if text is None or text == "all":
        return tuple(range(1, n_layers + 1))
    layers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        try:
            ends = int(first), int(last or first)
        except ValueError:
            raise ConfigError(f"--layers {text!r}: use all, or numbers like 4,8 or 2-6") from None
        outside = [n for n in ends if not 1 <= n <= n_layers]
        if outside:
            raise ConfigError(
                f"layer {outside[0]}, but this model has {n_layers} layers; use 1..{n_layers}"
            )
        layers.update(range(ends[0], ends[1] + 1))
    if not layers:
        raise ConfigError(f"--layers {text!r} names no layer; use 1..{n_layers}")
    return tuple(sorted(layers))


def run_probe(
    config: ProbeConfig, layers: str | None, to: Destination, *, loaded: Loaded | None = None
) -> FinishedRun:
    """Probe every example of this process's shard that the run folder does not hold yet."""
    to.check()
    if config.head:
        check_heads(config.head)
    work = Workload.read(config)
    for task, _ in work.examples:
        config.check_bucket(task)
    ready = Ready.load(to, work, loaded)
    loaded, items = ready.loaded, ready.items
    config = dataclasses.replace(
        config,
        layers=parse_layers(layers, loaded.staged.n_layers),
        # What follows the end of an answer is markup of another turn, not text.
        stop_at_eos=any(item.chat is not None for item in items)
        if config.stop_at_eos is None
        else config.stop_at_eos,
    )
    _check(config, loaded, len(items))
    heads, fingerprint = _heads(config, loaded)
    prober = Prober(
        loaded,
        config.layers,
        ready.setup.capacity,
        heads=heads,
        predictions=config.show_example is not None,
    )
    compilation = settle(
        config.compile, ready.setup, {"probe": Decoder()}, to.report, to.compilation()
    )
    header = ready.header("probe", config, compilation=compilation, heads=fingerprint)
    wanted = [_key(item, target) for item in items for target in config.targets]
    return ready.store(header, partial(_probe_missing, config, items, prober, to.report), wanted)


def _check(config: ProbeConfig, loaded: Loaded, n_items: int) -> None:
    """Refuse what only the loaded model and its examples can show to be wrong."""
    vocab = loaded.staged.vocab_size
    if max(config.ks) > vocab:
        raise ConfigError(
            f"-k {max(config.ks)}, but the vocabulary has {vocab} entries; use 1..{vocab}"
        )
    if config.show_example is not None and not 0 <= config.show_example < n_items:
        raise ConfigError(
            f"--show-example {config.show_example}: use 0..{n_items - 1}, counting from 0"
        )


def _heads(config: ProbeConfig, loaded: Loaded) -> tuple[dict[int, ExitHead], str | None]:
    """The trained heads asked for, some of which must be for the layers asked for; a hash."""
    if not config.head:
        return {}, None
    heads, fingerprint = load_heads(config.head, loaded)
    if not heads.keys() & set(config.layers):
        raise ConfigError(
            f"--head {config.head} has heads for layers {', '.join(map(str, sorted(heads)))}, none "
            "of which is in --layers"
        )
    return heads, fingerprint


def _probe_missing(
    config: ProbeConfig, items: list[Item], prober: Prober, report: Report, folder: RunFolder
) -> None:
    shown = None if config.show_example is None else items[config.show_example]
    items = folder.shard.part(items)
    left = {
        target: [item for item in items if _key(item, target) not in folder.done]
        for target in config.targets
    }
    total = len(items) * len(config.targets)
    done = total - sum(map(len, left.values()))
    report("probing", done, total)
    held = False
    for target, missing in left.items():
        # Only an unbatched greedy probe is, pass for pass, the reference itself.
        exact = target.greedy and config.batch_size == 1
        for of_task in _by_task(missing):
            for place, result in _probed(config, prober, of_task, target):
                item = of_task[place]
                if not held:
                    _hold(prober.loaded, item, result)
                    held = True
                folder.append(_sample(item, target, result, exact, item is shown))
                done += 1
                report(f"probing {item.task.name}", done, total)


def _probed(
    config: ProbeConfig, prober: Prober, items: Sequence[Item], target: Target
) -> Iterator[tuple[int, ProbedSequence]]:
    """Probe examples of one task; yield each when it is done, with its place."""
    asked = [
        Question(i.ids, generator_for(config.seed, i.task.name, i.example.id), i.example.id)
        for i in items
    ]
    stop_at = prober.loaded.eos_ids if config.stop_at_eos else frozenset[int]()
    limits = Limits(items[0].max_new_tokens, stop_at)
    return prober.stream(asked, min(config.batch_size, len(items)), target, limits)


def _hold(loaded: Loaded, item: Item, result: ProbedSequence) -> None:
    """Refuse to go on where the first example's ranks are not those of the stock model."""
    truth = StockTruth.load(loaded.spec)
    hold_ranks(truth, item.ids, result.output_ids, result.ranks)


def _key(item: Item, target: Target) -> Key:
    return item.key("probe", target.kind)


def _by_task(items: Sequence[Item]) -> list[list[Item]]:
    """The examples of each task."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.task.name, []).append(item)
    return list(found.values())


def _sample(
    item: Item, target: Target, result: ProbedSequence, exact: bool, shown: bool
) -> ProbedSample:
    return ProbedSample(
        **asked(item),
        method="probe",
        target=target.kind,
        verdict="identical" if exact else None,
        elapsed_ms=round(result.elapsed_ms, 3),
        output_ids=result.output_ids,
        ranks=_by_layer(result.ranks),
        head_ranks=_by_layer(result.head_ranks) or None,
        predictions=_by_layer(result.predictions) if shown else None,
    )


def _by_layer(found: Mapping[int, Sequence[int]]) -> dict[str, Sequence[int]]:
    return {str(layer): each for layer, each in found.items()}
