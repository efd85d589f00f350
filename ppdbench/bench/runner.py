"""A decoding run: the method and its baseline on every example, interleaved and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppdbench.bench.clock import Clock
from ppdbench.bench.environment import peak_memory_bytes
from ppdbench.decoding.identity import compare, first_difference
from ppdbench.decoding.limits import Limits, visible_text
from ppdbench.decoding.loop import Decoded
from ppdbench.engine.loading import Loaded, load
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.header import run_header
from ppdbench.store import RunFolder, check_target
from ppdbench.strategies import METHODS
from ppdbench.strategies.base import Strategy
from ppdbench.workload import Finished, Item, Report, RunConfig, Workload, capacity, cut_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(RunConfig):
    """What a decoding run is told."""

    method: str = "greedy"
    options: Mapping[str, str] = field(default_factory=dict)
    warmup: int = 2

    def __post_init__(self) -> None:
        RunConfig.__post_init__(self)
        if self.warmup < 0:
            raise ConfigError(f"--warmup {self.warmup}: use 0 or more")


def run_decode(config: DecodeConfig, out: Path, *, resume: bool, report: Report) -> Finished:
    """Decode every example that the run folder does not hold yet."""
    method = METHODS.get(config.method)
    strategy = method.build(config.options)
    check_target(out, resume=resume)
    work = Workload.read(config)
    loaded = load(config.model)
    items = work.encode(loaded)
    header = run_header("decode", config, loaded, work)
    options = {option.name: getattr(strategy, option.name) for option in method.options()}
    header["method"] = {"name": method.name, "exact": method.exact, "options": options}
    baseline = METHODS.get("greedy").build({})
    duel = Duel(loaded, strategy, baseline, Session(loaded.staged, capacity(items)))
    with RunFolder(out, header, resume=resume) as folder:
        missing = [item for item in items if _key(item, config) not in folder.done]
        report("warming up", len(folder.done), len(items))
        for item in missing[:1] * config.warmup:
            duel.run(item, swapped=False)
        for number, item in enumerate(missing):
            ours, theirs = duel.run(item, swapped=bool(number % 2))
            sample = _sample(item, config, ours, theirs, loaded)
            sample["peak_memory_bytes"] = peak_memory_bytes(loaded.staged.device)
            folder.append(sample)
            report(f"{config.method} on {item.task.name}", len(folder.done), len(items))
        samples = list(folder.done.values())
    return Finished(
        path=out, header=header, samples=samples, cut=cut_tokens(items), torn=folder.torn
    )


@dataclass(frozen=True, slots=True)
class Duel:
    """A method and greedy, one example after another in turns, so that drift hits both."""

    loaded: Loaded
    method: Strategy
    baseline: Strategy
    session: Session

    def run(self, item: Item, *, swapped: bool) -> tuple[Decoded, Decoded]:
        """Both outputs of one example; `swapped` lets the baseline go first."""
        if swapped:
            theirs = self._decode(self.baseline, item)
            return self._decode(self.method, item), theirs
        ours = self._decode(self.method, item)
        return ours, self._decode(self.baseline, item)

    def _decode(self, strategy: Strategy, item: Item) -> Decoded:
        clock = Clock(self.loaded.staged.device)
        try:
            return strategy.decode(self.session, item.ids, limits_of(item, self.loaded), clock)
        except NumericalError as error:
            raise NumericalError(f"example {item.example.id}: {error}") from error


def limits_of(item: Item, loaded: Loaded) -> Limits:
    """What ends the output of an example."""
    return Limits(item.max_new_tokens, loaded.eos_ids, item.task.stop, loaded.tokenizer)


def _key(item: Item, config: DecodeConfig) -> tuple[Any, ...]:
    return (item.task.name, item.example.id, config.method, None)


def _sample(
    item: Item, config: DecodeConfig, ours: Decoded, theirs: Decoded, loaded: Loaded
) -> dict[str, Any]:
    """Everything measured on one example; means are made when it is read."""
    verdict = compare(ours.output_ids, theirs.output_ids)
    sample: dict[str, Any] = {
        "example_id": item.example.id,
        "task": item.task.name,
        "method": config.method,
        "verdict": verdict,
        "finish": ours.finish,
        "cut_tokens": item.cut_tokens,
        "prompt_ids": item.ids,
        "output_ids": list(ours.output_ids),
        "text": visible_text(loaded.tokenizer, ours.output_ids, limits_of(item, loaded)),
        "references": list(item.example.references),
        "accepted": list(ours.accepted),
        "proposed": list(ours.proposed),
        "prefill_ms": round(ours.prefill_ms, 4),
        "step_ms": [round(ms, 4) for ms in ours.step_ms],
        "baseline_prefill_ms": round(theirs.prefill_ms, 4),
        "baseline_step_ms": [round(ms, 4) for ms in theirs.step_ms],
    }
    if verdict != "identical":
        sample["first_difference"] = first_difference(ours.output_ids, theirs.output_ids)
        sample["baseline_ids"] = list(theirs.output_ids)
    return sample
