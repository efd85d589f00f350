"""A decoding run: methods and their baseline on every example, interleaved and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppdbench.bench.contest import BASELINE, Contest, Contestant, Outcome, limits_of
from ppdbench.bench.environment import peak_memory_bytes
from ppdbench.decoding.limits import visible_text
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import Loaded, load
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.header import run_header
from ppdbench.store import RunFolder, check_target
from ppdbench.strategies import method
from ppdbench.strategies.base import Method, Setup, Strategy, settings
from ppdbench.workload import Finished, Item, Report, RunConfig, Workload, capacity, cut_tokens


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
    def parse(cls, text: str) -> Choice:
        """`layerskip` or `layerskip:exit_layer=2,draft_length=4`."""
        name, _, pairs = text.partition(":")
        return cls(name=name, options=settings(tuple(p for p in pairs.split(",") if p)))

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name}:{pairs}" if pairs else self.name


def check_choices(choices: Sequence[Choice]) -> None:
    """Refuse no method, or one given twice."""
    if not choices:
        raise ConfigError("no method given; see `ppdbench list methods`")
    named = [str(choice) for choice in choices]
    repeated = sorted({name for name in named if named.count(name) > 1})
    if repeated:
        raise ConfigError(f"method {', '.join(repeated)} is given twice")


def labels(choices: Sequence[Choice]) -> list[str]:
    """What each method is called in a run: its options too where its name is not enough."""
    names = [choice.name for choice in choices]
    return [choice.name if names.count(choice.name) == 1 else str(choice) for choice in choices]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(RunConfig):
    """What a decoding run is told."""

    methods: tuple[Choice, ...] = (Choice(name="greedy"),)
    target: Target = field(default_factory=Target)
    strict: bool = False
    warmup: int = 2

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.warmup < 0:
            raise ConfigError(f"--warmup {self.warmup}: use 0 or more")
        check_choices(self.methods)
        if self.strict and not self.target.greedy:
            raise ConfigError("--strict compares with greedy decoding; leave --target out")


def run_decode(
    config: DecodeConfig, out: Path, *, kind: str = "decode", resume: bool, report: Report
) -> Finished:
    """Decode every example that the run folder does not hold yet."""
    names = labels(config.methods)
    built = [choice.build() for choice in config.methods]
    check_target(out, resume=resume)
    work = Workload.read(config)
    loaded = load(config.model)
    items = work.encode(loaded)
    setup = Setup(loaded, capacity(items), config.seed)
    with ExitStack() as started:
        prepared = [
            _prepare(label, chosen, strategy, setup, config.target, alone=len(built) == 1)
            for label, (chosen, strategy) in zip(names, built, strict=True)
        ]
        contestants = [entry for entry in prepared if isinstance(entry, Contestant)]
        for contestant in contestants:
            started.callback(contestant.decoder.close)
        header = {**run_header(kind, config, loaded, work), **_about(names, built, prepared)}
        contest = Contest(loaded, contestants, setup, config.target, strict=config.strict)
        with RunFolder(out, header, resume=resume) as folder:
            missing = [item for item in items if _left(item, contestants, folder)]
            report("warming up", len(items) - len(missing), len(items))
            for item in missing[:1]:
                contest.warm_up(item, config.warmup)
            for number, item in enumerate(missing):
                outcomes = contest.run(item, turn=number)
                for contestant in _left(item, contestants, folder):
                    sample = _sample(item, contestant, outcomes, loaded)
                    sample["peak_memory_bytes"] = peak_memory_bytes(loaded.staged.device)
                    folder.append(sample)
                report(item.task.name, len(items) - len(missing) + number + 1, len(items))
            samples = list(folder.done.values())
    return Finished(
        path=out, header=header, samples=samples, cut=cut_tokens(items), torn=folder.torn
    )


def _about(
    names: Sequence[str],
    built: Sequence[tuple[Method, Strategy]],
    prepared: Sequence[Contestant | str],
) -> dict[str, Any]:
    """What the header says of each method, and of those that could not run."""
    methods, facts, not_run = {}, {}, {}
    for label, (chosen, strategy), entry in zip(names, built, prepared, strict=True):
        methods[label] = about = {
            "name": chosen.name,
            "exact": chosen.exact,
            "options": chosen.values(strategy),
            "loaded": dict[str, str](),
        }
        if isinstance(entry, str):
            not_run[label] = entry
            continue
        about |= {"exact": entry.exact, "loaded": dict(entry.decoder.loaded)}
        if entry.decoder.facts:
            facts[label] = dict(entry.decoder.facts)
    return {"methods": methods, "not_run": not_run, "facts": facts}


def _prepare(
    label: str, chosen: Method, strategy: Strategy, setup: Setup, target: Target, *, alone: bool
) -> Contestant | str:
    """Ready to decode, or why it cannot; with nothing else to go on with that is an error."""
    try:
        decoder = strategy.prepare(setup)
        if not target.greedy and decoder.trees:
            raise ConfigError(
                f"{label} proposes trees, and sampled verification is for chains; leave "
                f"--target {target.kind} out"
            )
        if not target.greedy and decoder.acceptance is not None:
            raise ConfigError(
                f"{label} keeps tokens by a rule of its own, in place of the sampled one; leave "
                f"that or --target {target.kind} out"
            )
        return Contestant(label, chosen, decoder)
    except PpdbenchError as error:
        if alone:
            raise
        return str(error)


def _left(item: Item, contestants: list[Contestant], folder: RunFolder) -> list[Contestant]:
    """Who has no result for this example yet; failures are tried again."""
    left = []
    for contestant in contestants:
        sample = folder.done.get((item.task.name, item.example.id, contestant.label, None))
        if sample is None or sample["verdict"] == "failed":
            left.append(contestant)
    return left


def _sample(
    item: Item, contestant: Contestant, outcomes: Mapping[str, Outcome], loaded: Loaded
) -> dict[str, Any]:
    """Everything measured on one example; means are made when it is read."""
    outcome, baseline, again = (outcomes[n] for n in (contestant.label, *BASELINE))
    sample: dict[str, Any] = {
        "example_id": item.example.id,
        "task": item.task.name,
        "method": contestant.label,
        "verdict": outcome.verdict,
        "cut_tokens": item.cut_tokens,
        "prompt_ids": item.ids,
        "references": list(item.example.references),
    }
    if outcome.decoded is None:
        return {**sample, "output_ids": [], "error": outcome.error}
    ours, theirs, floor = outcome.decoded, baseline.decoded, again.decoded
    assert theirs is not None
    assert floor is not None
    sample |= {
        "finish": ours.finish,
        "output_ids": list(ours.output_ids),
        "text": visible_text(loaded.tokenizer, ours.output_ids, limits_of(item, loaded)),
        "accepted": list(ours.accepted),
        "proposed": list(ours.proposed),
        "rows": list(ours.rows),
        "prefill_ms": _rounded(ours.prefill_ms),
        "step_ms": [_rounded(ms) for ms in ours.step_ms],
        "draft_ms": [_rounded(ms) for ms in ours.draft_ms],
        "baseline_prefill_ms": _rounded(theirs.prefill_ms),
        "baseline_step_ms": [_rounded(ms) for ms in theirs.step_ms],
        "baseline_again_ms": _rounded(sum(floor.step_ms)),
    }
    if ours.exits:
        sample["exits"] = list(ours.exits)
    if ours.pipelined is not None:
        sample |= {
            "matches": list(map(int, ours.pipelined.matches)),
            "communication_ms": _rounded(ours.pipelined.communication_ms),
            "greedy_ms": {
                str(n): _rounded(sum(greedy.step_ms)) for n, greedy in outcome.by_threads.items()
            },
            "events": [
                [unit, what, token, _rounded(start), _rounded(end)]
                for unit, what, token, start, end in ours.pipelined.events
            ],
        }
    if outcome.judgement is not None and outcome.judgement.position is not None:
        assert outcome.reference is not None
        sample |= {
            "first_difference": outcome.judgement.position,
            "margin": outcome.judgement.margin,
            "discrepancy": outcome.judgement.discrepancy,
            "baseline_ids": list(outcome.reference.output_ids),
        }
    return sample


def _rounded(ms: float) -> float:
    return round(ms, 4)
