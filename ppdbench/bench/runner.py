"""A decoding run: methods and their baseline on every example, interleaved and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ppdbench.bench.compiling import check_mode, settle
from ppdbench.bench.execution import UNPROTECTED, CodeRuns
from ppdbench.bench.interleaved import BASELINE, ExampleResult, Interleaved, PreparedMethod
from ppdbench.bench.memory import own_bytes
from ppdbench.decoding.decoder import Setup
from ppdbench.decoding.limits import visible_text
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.machine.bandwidth import measure_bandwidth
from ppdbench.machine.environment import forget_peak_memory
from ppdbench.machine.load import LoadMeter
from ppdbench.methods import method
from ppdbench.methods.base import Exiting, Method, Strategy, settings, split_name
from ppdbench.runs.records import (
    DecodedSample,
    Decoding,
    DecodingMethod,
    FailedSample,
    Judged,
    Load,
    Memory,
    Profile,
    ThreadedGreedy,
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
    asked,
    limits_of,
)
from ppdbench.scoring import NEEDS_EXECUTION, parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A method and the options asked for, as they were typed."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)

    def build(self) -> tuple[Method, Strategy]:
        """The method and its strategy, or an error that says what is wrong."""
        found = method(self.name)
        return found, found.build(self.options)

    @classmethod
    def parse(cls, text: str, pairs: tuple[str, ...] = ()) -> Choice:
        """`layerskip` or `layerskip:exit_layer=2,draft_length=4`; `pairs` are further options."""
        name, typed = split_name(text)
        return cls(name=name, options=settings((*(p for p in typed.split(",") if p), *pairs)))

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{pairs}" if pairs else self.name


def built_for(model: ModelSpec, choices: Sequence[Choice]) -> list[tuple[Method, Strategy]]:
    """Every method with its strategy; whatever they name must be there."""
    built = [choice.build() for choice in choices]
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


# What needs neither training nor other files.
USUAL_METHODS = ("greedy", "layerskip", "draft-verify", "prompt-lookup", "lookahead", "jacobi")
MOST_WARMUP = 1000  # untimed runs before the first


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(RunConfig):
    """The options of a decoding run."""

    methods: tuple[Choice, ...] = (Choice(name="greedy"),)
    target: Target = field(default_factory=Target)
    strict: bool = False
    warmup: int = 2
    compile: str = "auto"
    profile: bool = False
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
        if self.strict and not self.target.greedy:
            raise ConfigError("--strict compares with greedy decoding; leave --target out")


def run_decode(
    config: DecodeConfig,
    to: Destination,
    *,
    kind: str = "decode",
    optional: Sequence[Choice] = (),
    loaded: Loaded | None = None,
) -> FinishedRun:
    """Decode every example of this process's shard that the run folder does not hold yet.

    Of the methods those are `optional` that nobody named: they are left out where they cannot run.
    `loaded` is the model, where it is there already.
    """
    names = labels(config.methods)
    built = built_for(config.model, config.methods)
    to.check()
    work = Workload.read(config, to.warn)
    # No quality is asked of random weights.
    scored = config.allow_code_execution and not config.model.is_synthetic
    unprotected = config.allow_code_execution == UNPROTECTED
    code = CodeRuns.read(work, unprotected=unprotected) if scored else None
    ready = Ready.load(to, work, loaded, conversations=True)
    loaded, items, setup = ready.loaded, ready.items, ready.setup
    with ExitStack() as started:
        prepared = [
            prepare(label, chosen, strategy, setup, config.target, alone=len(built) == 1)
            for label, (chosen, strategy) in zip(names, built, strict=True)
        ]
        methods = [entry for entry in prepared if isinstance(entry, PreparedMethod)]
        for each in methods:
            started.callback(each.decoder.close)
        compilation = settle(
            "off" if config.strict else config.compile,
            setup,
            {c.label: c.decoder for c in methods},
            sum(item.max_new_tokens for item in items) * (len(methods) + len(BASELINE)),
            to.report,
            to.compilation(),
        )
        prepared = [begin(entry, alone=len(built) == 1) for entry in prepared]
        methods = [entry for entry in prepared if isinstance(entry, PreparedMethod)]
        told = list(zip(names, config.methods, built, prepared, strict=True))
        left_out = {n: e for n, c, _, e in told if isinstance(e, str) and c in optional}
        bandwidth = None
        if config.profile:
            to.report("measuring bandwidth", 0, None)
            bandwidth = measure_bandwidth(loaded.staged.device)
        # What compiling and measuring took is no part of decoding.
        forget_peak_memory(loaded.staged.device)
        interleaved = Interleaved(
            *(loaded, methods, setup, config.target),
            strict=config.strict,
            profile=config.profile,
        )
        header = ready.header(
            *(kind, config),
            **about([(n, b, e) for n, _, b, e in told if n not in left_out]),
            left_out=left_out or None,
            compilation=compilation,
            bandwidth_bytes_per_s=bandwidth,
            memory=memory(interleaved),
        )
        decode = partial(
            decode_missing, interleaved, items, warmup=config.warmup, report=to.report, code=code
        )
        return ready.store(header, decode, [i.key(c.label) for i in items for c in methods])


def memory(interleaved: Interleaved) -> Memory:
    """Bytes of the model, of its cache, and of what each method holds besides."""
    loaded = interleaved.loaded
    return Memory(
        weights=loaded.staged.weight_bytes(),
        cache=own_bytes(interleaved.session, loaded),
        methods={c.label: own_bytes(c.decoder, loaded) for c in interleaved.methods},
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
    for item in missing[:1]:
        ready = interleaved.ready(item)
        interleaved.warm_up(ready, warmup - 1)
        interleaved.hold(ready)
    for number, item in enumerate(map(interleaved.ready, missing)):
        lacking = left(item, interleaved.methods, folder)
        with LoadMeter() as meter:
            outcomes = interleaved.run(item, turn=number, methods=lacking)
        # Processes that torchrun or others started for one run would count as other programs.
        alone = folder.shard.on_machine == Shard.launched().count == 1
        load = Load(**meter.load.to_dict()) if alone else None
        for each in lacking:
            sample = sample_of(item, each.label, outcomes, interleaved.loaded, load)
            folder.append(code.examined(sample, chat=item.chat is not None) if code else sample)
        report(item.task.name, len(items) - len(missing) + number + 1, len(items))


def about(
    prepared: Sequence[tuple[str, tuple[Method, Strategy], PreparedMethod | str]],
) -> dict[str, Any]:
    """Describe each method for the header, and those that could not run."""
    methods, facts, not_run, used = {}, {}, {}, {}
    for label, (chosen, strategy), entry in prepared:
        ready = None if isinstance(entry, str) else entry
        methods[label] = DecodingMethod(
            name=chosen.name,
            exact=ready.exact if ready else chosen.exact,
            options=dict(chosen.values(strategy)),
            loaded=dict(ready.decoder.loaded) if ready else {},
        )
        if isinstance(entry, str):
            not_run[label] = entry
            continue
        if entry.decoder.facts:
            facts[label] = dict(entry.decoder.facts)
        if entry.used:
            used[label] = entry.used
    return {"methods": methods, "not_run": not_run, "facts": facts, "used": used}


def prepare(
    label: str, chosen: Method, strategy: Strategy, setup: Setup, target: Target, *, alone: bool
) -> PreparedMethod | str:
    """Ready to begin, or why it cannot."""

    def ready() -> PreparedMethod:
        target.check(setup.target.staged.vocab_size)
        decoder = strategy.prepare(setup)
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
            label, chosen, decoder, exits_used(strategy, setup.target.staged.n_layers)
        )

    return _or_why_not(ready, alone=alone)


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


def sample_of(
    item: Item,
    label: str,
    outcomes: Mapping[str, ExampleResult],
    loaded: Loaded,
    load: Load | None = None,
) -> Decoding:
    """Everything measured on one example; means are made when it is read."""
    outcome, baseline, again = (outcomes[n] for n in (label, *BASELINE))
    known = {
        **asked(item),
        "method": label,
        "references": list(item.example.references),
        "turn": item.turn if item.task.turns else None,
        "turns": len(item.example.turns) if item.task.turns else None,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "load": load,
    }
    if outcome.decoded is None:
        error = outcome.error or ""
        return FailedSample(**known, verdict="failed", output_ids=[], error=error)
    assert outcome.verdict != "failed"
    ours, theirs, floor = outcome.decoded, baseline.decoded, again.decoded
    assert theirs is not None
    assert floor is not None
    text = visible_text(loaded.tokenizer, ours.output_ids, limits_of(item, loaded))
    return DecodedSample(
        **known,
        verdict=outcome.verdict,
        finish=ours.finish,
        output_ids=list(ours.output_ids),
        text=text,
        accepted=list(ours.accepted),
        proposed=list(ours.proposed),
        rows=list(ours.rows),
        prefill_ms=_rounded(ours.prefill_ms),
        step_ms=[_rounded(ms) for ms in ours.step_ms],
        draft_ms=[_rounded(ms) for ms in ours.draft_ms],
        baseline_prefill_ms=_rounded(theirs.prefill_ms),
        baseline_step_ms=[_rounded(ms) for ms in theirs.step_ms],
        baseline_again_ms=_rounded(sum(floor.step_ms)),
        baseline_again_steps=len(floor.step_ms),
        wall_ms=_rounded(ours.wall_ms),
        prompt_ms=_rounded(ours.prompt_ms),
        baseline_wall_ms=_rounded(theirs.wall_ms),
        baseline_prompt_ms=_rounded(theirs.prompt_ms),
        scores=None if loaded.spec.is_synthetic else _scores(item, text),
        profile=None
        if ours.profile is None
        else Profile(**{name: _rounded(value) for name, value in ours.profile.items()}),
        exits=list(ours.exits) or None,
        experts={str(rows): pair for rows, pair in ours.experts.items()} or None,
        **_pipelined(outcome),
        **_difference(outcome),
    )


def _scores(item: Item, text: str) -> dict[str, Any] | None:
    """Make the parts that the output adds to the metrics which need no execution."""
    scored = [metric for metric in item.task.metrics if metric not in NEEDS_EXECUTION]
    return parts(scored, text, item.example.references, which=_which(item)) if scored else None


def _pipelined(outcome: ExampleResult) -> dict[str, Any]:
    """Fields of an output that several units shared the work on."""
    assert outcome.decoded is not None
    if (found := outcome.decoded.pipelined) is None:
        return {}
    return {
        "matches": list(map(int, found.matches)),
        "communication_ms": _rounded(found.communication_ms),
        "greedy_by_threads": {
            str(n): ThreadedGreedy(
                prefill_ms=_rounded(greedy.prefill_ms),
                step_ms=_rounded(sum(greedy.step_ms)),
                steps=len(greedy.step_ms),
            )
            for n, greedy in outcome.by_threads.items()
        },
        "events": [
            (unit, what, token, _rounded(start), _rounded(end))
            for unit, what, token, start, end in found.events
        ],
    }


def _difference(outcome: ExampleResult) -> dict[str, Any]:
    """Fields that say where an output leaves greedy's, and what is made of that."""
    found = outcome.judgement
    if found is None or found.position is None:
        return {}
    assert outcome.reference is not None
    return {
        "first_difference": found.position,
        "baseline_ids": list(outcome.reference.output_ids),
        "margin": found.margin,
        "discrepancy": found.discrepancy,
        "judged": msgspec.convert(found.judged, Judged) if found.judged else None,
    }


def _which(item: Item) -> str:
    return f"{item.task.name} example {item.example.id}"


def _rounded(ms: float) -> float:
    return round(ms, 4)
