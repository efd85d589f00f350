"""Runs from Python, for notebooks and scripts: what the commands do, without the command line.

    import ppdbench

    model = ppdbench.load("reference")
    found = ppdbench.bench(model, ["prompt-lookup", "layerskip:exit_layer=2"], limit=8)
    print(found)
    found.frame()

Options have the names and the defaults that they have on the command line. Whatever is wrong with
them is a `PpdbenchError` with the line that the command prints. Nothing is printed unless
`progress` asks for it, and a run without `out` goes into a folder below `results/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch

from ppdbench.bench.batch_sizes import APART, parse_prefill
from ppdbench.bench.runner import USUAL_METHODS, Choice, DecodeConfig, run_decode
from ppdbench.decoding.sampling import Target
from ppdbench.engine import loading
from ppdbench.engine.loading import Loaded, ModelSpec, check_there
from ppdbench.engine.quiet import quiet
from ppdbench.engine.staged import eager
from ppdbench.errors import PpdbenchError
from ppdbench.machine.environment import set_threads
from ppdbench.probe.runner import ProbeConfig, run_probe
from ppdbench.report.page.runs import read_runs
from ppdbench.report.progress import progress as shown
from ppdbench.report.result import Result
from ppdbench.runs.running import Destination, run_folder
from ppdbench.runs.workload import usual_data
from ppdbench.tasks.chat_options import ChatOptions, Setting

__all__ = ["Model", "PpdbenchError", "Result", "bench", "decode", "load", "probe", "read"]

Several = str | Sequence[str]  # one name, or some


@dataclass(frozen=True, slots=True)
class Model:
    """A model that is loaded once for any number of runs."""

    loaded: Loaded

    @property
    def spec(self) -> ModelSpec:
        """The name and the options that it was loaded by."""
        return self.loaded.spec

    def __repr__(self) -> str:
        return f"ppdbench.load({self.spec.name!r})"

    def __str__(self) -> str:
        staged = self.loaded.staged
        return f"{self.spec.name}: {staged.n_layers} layers, {staged.precision}, {staged.device}"


def load(
    model: str = loading.REFERENCE,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    quantize: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    max_memory: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    gguf: str | None = None,
    adapter: str | None = None,
    family_check: bool = True,
) -> Model:
    """Load a model by its hub id, its folder, its GGUF file, `reference` or `synthetic:SPEC`."""
    spec = ModelSpec(
        name=model,
        revision=revision,
        dtype=dtype,
        quantize=quantize,
        device=device,
        device_map=device_map,
        max_memory=max_memory,
        offline=offline,
        trust_remote_code=trust_remote_code,
        gguf=gguf,
        adapter=adapter,
        family_check=family_check,
    )
    quiet()
    check_there(spec)
    return Model(loading.load(spec))


def probe(
    model: str | Model = loading.REFERENCE,
    task: Several = "gsm8k",
    *,
    layers: str | None = None,
    k: Sequence[int] = (1, 3, 5),
    targets: Sequence[str | Target] = ("greedy",),
    bucket: int | None = None,
    head: str | None = None,
    stop_at_eos: bool | None = None,
    batch_size: int = 1,
    compile: str = "auto",
    data: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    shots: int = 0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chat: str = "auto",
    system: str | None = None,
    chat_set: Mapping[str, Setting] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Match rates: how often each layer's top k already holds the final token."""
    call = _call(probe, locals())
    config = ProbeConfig(
        model=_spec(model),
        tasks=_several(task),
        data=usual_data(data, _spec(model).name),
        ks=tuple(sorted(set(k))),
        targets=tuple(map(_target, targets)),
        bucket=bucket,
        head=head,
        stop_at_eos=stop_at_eos,
        batch_size=batch_size,
        compile=compile,
        split=split,
        limit=limit,
        shots=shots,
        max_new_tokens=max_new_tokens,
        seed=seed,
        threads=threads,
        chat=ChatOptions(mode=chat, system=system, settings=chat_set or {}),
    )
    names = ("probe", "+".join(config.tasks), config.model.name)
    to = Destination(out=run_folder(out, resume, *names), resume=resume, command=call)
    with _running(model, to, threads, progress) as (to, loaded):
        return Result.of(run_probe(config, layers, to, loaded=loaded))


def decode(
    model: str | Model = loading.REFERENCE,
    method: str = "greedy",
    task: Several = "gsm8k",
    *,
    target: str | Target = "greedy",
    strict: bool = False,
    warmup: int = 2,
    compile: str = "auto",
    profile: bool = False,
    batch: int | Sequence[int] | None = None,
    prefill: str = APART,
    allow_code_execution: bool | str = False,
    data: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    shots: int = 0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chat: str = "auto",
    system: str | None = None,
    chat_set: Mapping[str, Setting] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """One method on tasks: tokens, time, acceptance, identity, quality."""
    call = _call(decode, locals())
    config = DecodeConfig(
        model=_spec(model),
        tasks=_several(task),
        data=usual_data(data, _spec(model).name),
        methods=(Choice.parse(method),),
        target=_target(target),
        strict=strict,
        warmup=warmup,
        compile=compile,
        profile=profile,
        batch=_sizes(batch),
        prefill=parse_prefill(prefill),
        allow_code_execution=allow_code_execution,
        split=split,
        limit=limit,
        shots=shots,
        max_new_tokens=max_new_tokens,
        seed=seed,
        threads=threads,
        chat=ChatOptions(mode=chat, system=system, settings=chat_set or {}),
    )
    names = ("decode", config.methods[0].name, "+".join(config.tasks), config.model.name)
    to = Destination(out=run_folder(out, resume, *names), resume=resume, command=call)
    with _running(model, to, threads, progress) as (to, loaded):
        return Result.of(run_decode(config, to, loaded=loaded))


def bench(
    model: str | Model = loading.REFERENCE,
    methods: Several = USUAL_METHODS,
    tasks: Several = "gsm8k",
    *,
    target: str | Target = "greedy",
    strict: bool = False,
    warmup: int = 2,
    compile: str = "auto",
    profile: bool = False,
    batch: int | Sequence[int] | None = None,
    prefill: str = APART,
    allow_code_execution: bool | str = False,
    data: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    shots: int = 0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chat: str = "auto",
    system: str | None = None,
    chat_set: Mapping[str, Setting] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Several methods on several tasks, in turns with greedy, in one comparison."""
    call = _call(bench, locals())
    config = DecodeConfig(
        model=_spec(model),
        tasks=_several(tasks),
        data=usual_data(data, _spec(model).name),
        methods=tuple(map(Choice.parse, _several(methods))),
        target=_target(target),
        strict=strict,
        warmup=warmup,
        compile=compile,
        profile=profile,
        batch=_sizes(batch),
        prefill=parse_prefill(prefill),
        allow_code_execution=allow_code_execution,
        split=split,
        limit=limit,
        shots=shots,
        max_new_tokens=max_new_tokens,
        seed=seed,
        threads=threads,
        chat=ChatOptions(mode=chat, system=system, settings=chat_set or {}),
    )
    what = f"{len(config.methods)}-methods"
    names = ("bench", what, "+".join(config.tasks), config.model.name)
    to = Destination(out=run_folder(out, resume, *names), resume=resume, command=call)
    with _running(model, to, threads, progress) as (to, loaded):
        return Result.of(run_decode(config, to, kind="bench", loaded=loaded))


def read(folder: str | Path) -> Result:
    """A stored run of any kind, without its model."""
    (run,) = read_runs([folder])
    return Result(run)


def _several(names: Several) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _sizes(batch: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if batch is None:
        return None
    return tuple(sorted({batch} if isinstance(batch, int) else set(batch)))


def _target(kind: str | Target) -> Target:
    return Target(kind=kind) if isinstance(kind, str) else kind


def _spec(model: str | Model) -> ModelSpec:
    return ModelSpec(name=model) if isinstance(model, str) else model.spec


def _call(function: Callable[..., Result], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The call that makes a run, less what it says by default."""
    usual = signature(function).parameters
    words = [f"{n}={value!r}" for n, value in given.items() if value != usual[n].default]
    return (f"ppdbench.{function.__name__}({', '.join(words)})",)


@contextmanager
def _running(
    model: str | Model, to: Destination, threads: int | None, progress: bool
) -> Iterator[tuple[Destination, Loaded | None]]:
    """A run may begin; what it changes in this process is put back when it ends."""
    quiet()
    before = torch.get_num_threads()
    set_threads(threads)
    loaded = None if isinstance(model, str) else model.loaded
    try:
        with ExitStack() as around:
            if loaded is None:
                check_there(_spec(model))
            else:  # what one run compiles is not there in the next
                around.enter_context(eager(loaded.staged))
            if progress:
                to = replace(to, report=around.enter_context(shown()))
            yield to, loaded
    finally:
        torch.set_num_threads(before)
