"""A decoding run: methods and their baseline on every example, interleaved and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any

from ppdbench.bench.batch_sizes import check_examples, check_memory, check_sizes, streams
from ppdbench.bench.batched import Batched
from ppdbench.bench.compiling import check_mode, settle
from ppdbench.bench.execution import UNPROTECTED, CodeRuns
from ppdbench.bench.interleaved import Interleaved, PreparedMethod
from ppdbench.bench.labels import label_of
from ppdbench.bench.made_sample import sample_of
from ppdbench.bench.memory import own_bytes
from ppdbench.bench.pass_model import measure_pass_model
from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoder import Decoder, Setup
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.memory import CHAINS_ONLY
from ppdbench.errors import ConfigError, PpdbenchError, UnsupportedModel
from ppdbench.machine.bandwidth import measure_bandwidth
from ppdbench.machine.environment import forget_peak_memory
from ppdbench.machine.load import LoadMeter
from ppdbench.methods import METHODS, method
from ppdbench.methods.base import Exiting, Method, Strategy, option_values, split_name
from ppdbench.runs.records import (
    DecodingMethod,
    FailedSample,
    Load,
    Memory,
    PassModel,
)
from ppdbench.runs.running import Destination, Ready
from ppdbench.runs.shards import Shard
from ppdbench.runs.store import RunFolder
from ppdbench.runs.workload import (
    FinishedRun,
    Item,
    Report,
    RunConfig,
    Workload,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A method and the options asked for, as they were typed."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def build(self, model: str = "") -> tuple[Method, Strategy]:
        """The method and its strategy for `model`, or an error that says what is wrong."""
        found = method(self.name)
        return found, found.build(self.options, model)

    @classmethod
    def parse(cls, text: str, pairs: tuple[str, ...] = ()) -> Choice:
        """`layerskip` or `layerskip:exit_layer=2,draft_length=4`; `pairs` are further options."""
        name, typed = split_name(text)
        return cls(name=name, options=option_values((*(p for p in typed.split(",") if p), *pairs)))

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{pairs}" if pairs else self.name


def built_for(model: ModelSpec, choices: Sequence[Choice]) -> list[tuple[Method, Strategy]]:
    """Every method with its strategy; whatever they name must be there."""
    built = [choice.build(model.name) for choice in choices]
    for found, strategy in built:
        found.check_named(strategy, model)
    return built


def check_choices(choices: Sequence[Choice]) -> None:
    """Refuse no method, or one given twice."""
    if not choices:
        raise ConfigError("no method given; see `ppdbench list methods`")
    named = [str(choice) for choice in choices]
    repeated = sorted({name for name in named if named.count(name) > 1})
    if repeated:
        raise ConfigError(f"method {', '.join(repeated)} is given twice")


def labels(choices: Sequence[Choice]) -> list[str]:
    """Name each method in a run: with its options where its name is not enough."""
    names = [choice.name for choice in choices]
    return [choice.name if names.count(choice.name) == 1 else str(choice) for choice in choices]


MOST_WARMUP = 1000  # untimed runs before the first
WARM_TOKENS = 16  # of the outputs with which batches are warmed up
MEETING = 2  # examples of a batch that is held against the stock model and not warmed up


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(RunConfig):
    """The options of a decoding run."""

    methods: tuple[Choice, ...] = (Choice(name="greedy"),)
    target: Target = field(default_factory=Target)
    strict: bool = False
    warmup: int = 2
    compile: str = "auto"
    profile: bool = False
    batch: tuple[int, ...] | None = None
    prefill: int | None = None
    allow_code_execution: bool | str = False  # or UNPROTECTED

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if not 0 <= self.warmup <= MOST_WARMUP:
            raise ConfigError(f"--warmup {self.warmup}: use 0 or more, up to {MOST_WARMUP}")
        if self.allow_code_execution not in (False, True, UNPROTECTED):
            raise ConfigError(
                f"--allow-code-execution {self.allow_code_execution}: use {UNPROTECTED}"
            )
        check_choices(self.methods)
        check_mode(self.compile)
        if self.strict and self.compile == "on":
            raise ConfigError("--strict runs eagerly; leave --compile on out")
        check_sizes(self.sizes)
        if max(self.sizes) > 1:
            self._check_together()
        if self.strict and not self.target.greedy:
            raise ConfigError("--strict compares with greedy decoding; leave --target out")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of sequences that are decoded together, one by one unless told."""
        return (1,) if self.batch is None else self.batch

    def _check_together(self) -> None:
        """Refuse what batches cannot do."""
        if self.strict:
            raise ConfigError(
                "--strict fixes the shape of the passes of one sequence; leave it or --batch out"
            )
        if self.compile == "on":
            raise ConfigError("--compile on is for one sequence at a time; leave it or --batch out")
        if self.profile:
            raise ConfigError("--profile looks at one sequence at a time; leave it or --batch out")


def run_decode(
    config: DecodeConfig,
    to: Destination,
    *,
    kind: str = "decode",
    optional: Sequence[Choice] = (),
    loaded: Loaded | None = None,
    predict: bool = True,
) -> FinishedRun:
    """Decode every example of this process's shard that the run folder does not hold yet.

    Of the methods those are `optional` that nobody named: they are left out where they cannot run.
    `loaded` is the model, where it is there already. Without `predict` no pass is timed before a
    run in batches, and no crossover predicted.
    """
    names = labels(config.methods)
    built = built_for(config.model, config.methods)
    to.check()
    work = Workload.read(config, to.warn)
    largest = max(config.sizes)
    if largest > 1:
        check_examples(work, largest, to.shard)
        if loaded is None:
            check_memory(config.model, work.context(), largest)
    # No quality is asked of random weights.
    scored = config.allow_code_execution and not config.model.is_synthetic
    unprotected = config.allow_code_execution == UNPROTECTED
    code = CodeRuns.read(work, unprotected=unprotected) if scored else None
    ready = Ready.load(to, work, loaded, conversations=True)
    loaded, items, setup = ready.loaded, ready.items, ready.setup
    wanted = [
        WantedMethod(label_of(name, size), choice, *pair, size)
        for size in config.sizes
        for name, choice, pair in zip(names, config.methods, built, strict=True)
    ]
    with ExitStack() as started:
        batch, kept = Batch(setup, prefill=config.prefill), to.chosen()
        prepared = [
            prepare(
                *(each.label, each.method, each.strategy, setup, config.target),
                alone=len(built) == 1,
                places=Places(setup, batch, each.size) if each.size > 1 else None,
                kept=kept.get(each.label),
            )
            for each in wanted
        ]
        methods = [entry for entry in prepared if isinstance(entry, PreparedMethod)]
        for each in methods:
            for decoder in each.slots:
                started.callback(decoder.close)
        compilation = settle(
            "off" if config.strict or largest > 1 else config.compile,
            setup,
            {c.label: c.decoder for c in methods},
            to.report,
            to.compilation(),
        )
        prepared = [begin(entry, alone=len(built) == 1) for entry in prepared]
        methods = [entry for entry in prepared if isinstance(entry, PreparedMethod)]
        told = list(zip(wanted, prepared, strict=True))
        left_out = {w.label: e for w, e in told if isinstance(e, str) and w.choice in optional}
        bandwidth = None
        if config.profile:
            to.report("measuring bandwidth", 0, None)
            bandwidth = measure_bandwidth(loaded.staged.device, loaded.staged.readers)
        # What capturing and measuring took is no part of decoding.
        forget_peak_memory(loaded.staged.device)
        interleaved = Interleaved(
            *(loaded, [m for m in methods if m.size == 1], setup, config.target),
            strict=config.strict,
            profile=config.profile,
        )
        passes = _pass_model(config, interleaved, methods, items, to) if predict else None
        header = ready.header(
            *(kind, config),
            **about(
                [(w.label, (w.method, w.strategy), e) for w, e in told if w.label not in left_out],
                {w.label: w.size for w in wanted},
            ),
            left_out=left_out or None,
            compilation=compilation,
            bandwidth_bytes_per_s=bandwidth,
            memory=memory(interleaved, methods),
            pass_model=passes,
        )
        decode = partial(
            decode_sizes,
            *(interleaved, batch, methods, items),
            warmup=config.warmup,
            report=to.report,
            code=code,
        )
        run = ready.store(header, decode, [i.key(c.label) for i in items for c in methods])
    if batch.why_apart is not None:
        to.warn(f"passes of a batch ran one after another: {batch.why_apart}")
    return run


def _pass_model(
    config: DecodeConfig,
    alone: Interleaved,
    methods: Sequence[PreparedMethod],
    items: Sequence[Item],
    to: Destination,
) -> PassModel | None:
    """Time what predicts speedups, where there are several sizes and a run that begins."""
    drafting = [each for each in methods if each.method.name != "greedy"]
    if len(config.sizes) < 2 or not drafting or not items:
        return None
    if (begun := to.pass_model()) is not None:
        return begun
    found = measure_pass_model(alone, drafting, items[0], config.sizes, to.report)
    forget_peak_memory(alone.loaded.staged.device)
    return found


@dataclass(frozen=True, slots=True)
class WantedMethod:
    """A method of a run in batches of one size, before it is prepared."""

    label: str
    choice: Choice
    method: Method
    strategy: Strategy
    size: int


def decode_sizes(
    alone: Interleaved,
    batch: Batch,
    methods: Sequence[PreparedMethod],
    items: Sequence[Item],
    folder: RunFolder,
    *,
    warmup: int,
    report: Report,
    code: CodeRuns | None = None,
) -> None:
    """Decode what is missing with batches of one size after the other.

    `alone` has the methods that decode one sequence at a time.
    """
    for size in sorted({each.size for each in methods}):
        if size == 1:
            decode_missing(alone, items, folder, warmup=warmup, report=report, code=code)
            continue
        greedy = batch.prepare(method("greedy").build({}).prepare, size)
        batched = Batched(alone, batch, greedy, [m for m in methods if m.size == size], size)
        decode_streams(batched, items, folder, warmup=warmup, report=report, code=code)


def memory(interleaved: Interleaved, methods: Sequence[PreparedMethod]) -> Memory:
    """Bytes of the model, of its cache, and of what each method holds besides."""
    loaded = interleaved.loaded
    cache = own_bytes(interleaved.session, loaded)
    sizes = sorted({method.size for method in methods} - {1})
    return Memory(
        weights=loaded.staged.weight_bytes(),
        cache=cache,
        methods={c.label: own_bytes(c.slots or c.decoder, loaded) for c in methods},
        batches={str(size): size * cache for size in sizes} or None,
    )


def decode_missing(
    interleaved: Interleaved,
    items: Sequence[Item],
    folder: RunFolder,
    *,
    warmup: int,
    report: Report,
    code: CodeRuns | None = None,
) -> None:
    """Decode every example of our shard that lacks a method's result; store each at once."""
    items = folder.shard.part(items)
    missing = [item for item in items if left(item, interleaved.methods, folder)]
    report("warming up", len(items) - len(missing), len(items))
    held = [interleaved.ready(item) for item in _to_hold(missing, interleaved.loaded)]
    for item in held[:1]:
        interleaved.warm_up(item, warmup - 1)
    interleaved.hold(*held)
    for number, item in enumerate(map(interleaved.ready, missing)):
        lacking = left(item, interleaved.methods, folder)
        with LoadMeter() as meter:
            outcomes = interleaved.run(item, turn=number, methods=lacking)
        load = _load(meter, folder)
        for each in lacking:
            sample = sample_of(item, each.label, outcomes, interleaved.loaded, load)
            folder.append(code.examined(sample, chat=item.chat is not None) if code else sample)
        report(item.task.name, len(items) - len(missing) + number + 1, len(items))


def _to_hold(items: Sequence[Item], loaded: Loaded) -> Iterator[Item]:
    """Give the first example, and one that is longer than a window if that is not: it sees less."""
    yield from items[:1]
    window = loaded.staged.adapter.named_window
    if items and window is not None and len(items[0].ids) <= window:
        yield from islice((item for item in items if len(item.ids) > window), 1)


def decode_streams(
    batched: Batched,
    items: Sequence[Item],
    folder: RunFolder,
    *,
    warmup: int,
    report: Report,
    code: CodeRuns | None = None,
) -> None:
    """Decode every stream of our shard's examples that lacks a result; store each at once."""
    items = folder.shard.part(items)
    by_task: dict[str, list[Item]] = {}
    for item in items:
        by_task.setdefault(item.task.name, []).append(item)
    every = [part for of_task in by_task.values() for part in streams(of_task, batched.size)]
    missing = [part for part in every if any(left(i, batched.methods, folder) for i in part)]
    done = len(items) - sum(map(len, missing))
    report(f"warming up batches of {batched.size}", done, len(items))
    for part in missing[:1]:
        some = part[: batched.size if warmup else MEETING]
        first = [shortened(batched.alone.ready(item)) for item in some]
        for _ in range(warmup - 1):
            batched.run(first, turn=0)
        batched.hold(first)
    for turn, part in enumerate(missing):
        ready = [batched.alone.ready(item) for item in part]
        lacking = [m for m in batched.methods if any(is_left(i, m.label, folder) for i in part)]
        with LoadMeter() as meter:
            outcomes = batched.run(ready, turn=turn, methods=lacking)
        load = _load(meter, folder)
        for item, found in zip(ready, outcomes, strict=True):
            for each in left(item, lacking, folder):
                sample = sample_of(item, each.label, found, batched.alone.loaded, load)
                folder.append(code.examined(sample, chat=item.chat is not None) if code else sample)
        done += len(part)
        report(f"{part[0].task.name}, batch {batched.size}", done, len(items))


def shortened(item: Item) -> Item:
    """The example with no more output than warming up takes."""
    return replace(item, max_new_tokens=min(item.max_new_tokens, WARM_TOKENS))


def _load(meter: LoadMeter, folder: RunFolder) -> Load | None:
    """The load of the machine, unless others of one run would count as other programs."""
    alone = folder.shard.on_machine == Shard.launched().count == 1
    return Load(**meter.load.to_dict()) if alone else None


@dataclass(frozen=True, slots=True)
class Places:
    """A number of places in a batch, ready for decoders."""

    setup: Setup
    batch: Batch
    size: int

    def prepare(self, chosen: Method, strategy: Strategy) -> list[Decoder]:
        """A decoder for each; one for all of a peer, which batches by itself."""
        if chosen.peer_of == "greedy":
            return [strategy.prepare(self.setup)] * self.size
        return self.batch.prepare(strategy.prepare, self.size)


def about(
    prepared: Sequence[tuple[str, tuple[Method, Strategy], PreparedMethod | str]],
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """Describe each method for the header, and those that could not run."""
    methods, facts, not_run, used, numbers = {}, {}, {}, {}, {}
    for label, (chosen, strategy), entry in prepared:
        ready = None if isinstance(entry, str) else entry
        methods[label] = DecodingMethod(
            name=chosen.name,
            exact=ready.exact if ready else chosen.exact,
            options=dict(chosen.values(strategy)),
            loaded=dict(ready.decoder.loaded) if ready else {},
            batch=sizes.get(label, 1),
        )
        if isinstance(entry, str):
            not_run[label] = entry
            continue
        if entry.decoder.facts:
            facts[label] = dict(entry.decoder.facts)
        if entry.used:
            used[label] = entry.used
        if entry.chosen:
            numbers[label] = entry.chosen
    told = {"methods": methods, "not_run": not_run, "facts": facts}
    return {**told, "used": used, "chosen": numbers}


def prepare(
    label: str,
    chosen: Method,
    strategy: Strategy,
    setup: Setup,
    target: Target,
    *,
    alone: bool,
    places: Places | None = None,
    kept: Mapping[str, int] | None = None,
) -> PreparedMethod | str:
    """Ready to begin, or why it cannot; with `places` for so many sequences together.

    `kept` is what it chose by itself when the run was begun.
    """

    def ready() -> PreparedMethod:
        target.check(setup.target.staged.vocab_size)
        settled = chosen.keeping(strategy, kept) if kept else strategy
        slots = [settled.prepare(setup)] if places is None else places.prepare(chosen, settled)
        decoder = slots[0]
        if decoder.trees and setup.target.staged.remembers:
            raise UnsupportedModel(f"{label} drafts trees: {CHAINS_ONLY} ({_with_chains()})")
        if target.by_text and not decoder.knows_text:
            raise ConfigError(
                f"{label}: the part that picks tokens does not know the text; leave "
                "--repetition-penalty out"
            )
        if not target.greedy and decoder.acceptance is not None:
            raise ConfigError(
                f"{label} keeps tokens by a rule of its own, in place of the sampled one; leave "
                f"that or --target {target.kind} out"
            )
        return PreparedMethod(
            *(label, chosen, decoder, exits_used(settled, setup.target.staged.n_layers)),
            slots=slots,
            kept=kept or {},
        )

    return _or_why_not(ready, alone=alone)


def _with_chains() -> str:
    """Name the methods that draft chains."""
    return ", ".join(name for name in METHODS if METHODS.get(name).chains)


def exits_used(strategy: Strategy, n_layers: int) -> dict[str, str]:
    """The layer that a strategy exits after, in a model of so many."""
    if not isinstance(strategy, Exiting):
        return {}
    at = f"{strategy.exit_in(n_layers)} of {n_layers}"
    return {name: at for name in ("exit_layer", "exit_after") if hasattr(strategy, name)}


def begin(entry: PreparedMethod | str, *, alone: bool) -> PreparedMethod | str:
    """The same with all its units at work, or why they are not."""
    if isinstance(entry, str):
        return entry

    def at_work() -> PreparedMethod:
        if entry.size == 1:  # those of a batch have begun
            entry.decoder.begin()
        return entry

    return _or_why_not(at_work, alone=alone)


def _or_why_not(make: Callable[[], PreparedMethod], *, alone: bool) -> PreparedMethod | str:
    """Return what is made, or why it is not; if nothing else is left to run, that is an error."""
    try:
        return make()
    except PpdbenchError as error:
        if alone:
            raise
        return str(error)


def left(item: Item, methods: Sequence[PreparedMethod], folder: RunFolder) -> list[PreparedMethod]:
    """List the methods that have no result for this example yet."""
    return [each for each in methods if is_left(item, each.label, folder)]


def is_left(item: Item, label: str, folder: RunFolder) -> bool:
    """True if a method has yet to decode an example; failures are tried again."""
    sample = folder.done.get(item.key(label))
    return sample is None or isinstance(sample, FailedSample)
