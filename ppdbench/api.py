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
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ppdbench.bench.batch_sizes import parse_prefill
from ppdbench.bench.labels import APART
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.decoding.sampling import Target
from ppdbench.engine import loading
from ppdbench.engine.loading import Loaded, ModelSpec, check_there
from ppdbench.engine.quiet import quiet
from ppdbench.engine.staged import restored
from ppdbench.errors import PpdbenchError
from ppdbench.files.arguments import read_arguments
from ppdbench.machine.environment import set_threads
from ppdbench.methods import USUAL
from ppdbench.probe.runner import ProbeConfig, run_probe
from ppdbench.report.page.runs import read_runs
from ppdbench.report.progress import progress as shown
from ppdbench.report.result import Result
from ppdbench.runs.running import Destination, run_folder
from ppdbench.runs.workload import usual_data
from ppdbench.tasks.chat_options import ChatOptions, Setting

__all__ = ["Model", "PpdbenchError", "Result", "bench", "decode", "load", "probe", "read"]

Place = str | Path
Several = Place | Sequence[Place]  # one name or file, or some
Switch = Literal["auto", "on", "off"]
Config = TypeVar("Config", ProbeConfig, DecodeConfig)


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
    model: Place = loading.REFERENCE,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    quantize: str | None = None,
    device: str = "auto",
    device_map: Place | None = None,
    max_memory: str | None = None,
    offline: bool = False,
    trust_remote_code: bool = False,
    gguf: Place | None = None,
    adapter: Place | None = None,
    family_check: bool = True,
) -> Model:
    """Load a model by its hub id, its folder, its GGUF file, `reference` or `synthetic:SPEC`."""
    given = read_arguments(load, locals())
    spec = ModelSpec(name=given.pop("model"), **given)
    quiet()
    check_there(spec)
    return Model(loading.load(spec))


def probe(
    model: Place | Model = loading.REFERENCE,
    task: Several = "gsm8k",
    *,
    layers: str | int | Sequence[int] | None = None,
    k: int | Sequence[int] = (1, 3, 5),
    targets: str | Target | Sequence[str | Target] = ("greedy",),
    bucket: int | None = None,
    head: Place | None = None,
    stop_at_eos: bool | None = None,
    batch_size: int = 1,
    compile: Switch = "auto",
    data: Place | None = None,
    split: str | None = None,
    limit: int | None = None,
    shots: int = 0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chat: Switch = "auto",
    system: str | None = None,
    chat_set: Mapping[str, Setting] | None = None,
    out: Place | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Match rates: how often each layer's top k already holds the final token."""
    given = read_arguments(probe, locals())
    ks = tuple(sorted(set(_several(given["k"]))))
    config = _config(ProbeConfig, given, ks=ks, targets=_targets(given["targets"]))
    names = ("probe", "+".join(config.tasks), config.model.name)
    with _running(probe, given, names) as (to, loaded):
        return Result.of(run_probe(config, _layers(given["layers"]), to, loaded=loaded))


def decode(
    model: Place | Model = loading.REFERENCE,
    method: str = "greedy",
    task: Several = "gsm8k",
    *,
    target: str | Target = "greedy",
    strict: bool = False,
    warmup: int = 2,
    compile: Switch = "auto",
    profile: bool = False,
    batch: int | Sequence[int] | None = None,
    prefill: str | int = APART,
    allow_code_execution: bool | str = False,
    data: Place | None = None,
    split: str | None = None,
    limit: int | None = None,
    shots: int = 0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chat: Switch = "auto",
    system: str | None = None,
    chat_set: Mapping[str, Setting] | None = None,
    out: Place | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """One method on tasks: tokens, time, acceptance, identity, quality."""
    given = read_arguments(decode, locals())
    config = _decoding(given, given["method"])
    names = ("decode", config.methods[0].name, "+".join(config.tasks), config.model.name)
    with _running(decode, given, names) as (to, loaded):
        return Result.of(run_decode(config, to, loaded=loaded))


def bench(
    model: Place | Model = loading.REFERENCE,
    methods: str | Sequence[str] = USUAL,
    tasks: Several = "gsm8k",
    *,
    target: str | Target = "greedy",
    strict: bool = False,
    warmup: int = 2,
    compile: Switch = "auto",
    profile: bool = False,
    batch: int | Sequence[int] | None = None,
    prefill: str | int = APART,
    allow_code_execution: bool | str = False,
    data: Place | None = None,
    split: str | None = None,
    limit: int | None = None,
    shots: int = 0,
    max_new_tokens: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    chat: Switch = "auto",
    system: str | None = None,
    chat_set: Mapping[str, Setting] | None = None,
    out: Place | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Result:
    """Several methods on several tasks, in turns with greedy, in one comparison."""
    given = read_arguments(bench, locals())
    config = _decoding(given, *_several(given["methods"]))
    what = f"{len(config.methods)}-methods"
    names = ("bench", what, "+".join(config.tasks), config.model.name)
    with _running(bench, given, names) as (to, loaded):
        return Result.of(run_decode(config, to, kind="bench", loaded=loaded))


def read(folder: Place) -> Result:
    """A stored run of any kind, without its model."""
    given = read_arguments(read, locals())
    (run,) = read_runs([given["folder"]])
    return Result(run)


def _several(given: Any) -> tuple[Any, ...]:
    """One value or several, as several."""
    return given if isinstance(given, tuple) else (given,)


def _layers(layers: str | int | tuple[int, ...] | None) -> str | None:
    """Layers as the command line names them."""
    if layers is None or isinstance(layers, str):
        return layers
    return ",".join(map(str, _several(layers)))


def _sizes(batch: int | tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if batch is None else tuple(sorted(set(_several(batch))))


def _targets(kinds: str | Target | tuple[str | Target, ...]) -> tuple[Target, ...]:
    return tuple(Target(kind=kind) if isinstance(kind, str) else kind for kind in _several(kinds))


def _spec(model: str | Model) -> ModelSpec:
    return ModelSpec(name=model) if isinstance(model, str) else model.spec


def _config(kind: type[Config], given: Mapping[str, Any], **read: Any) -> Config:
    """A run's options as they were given, but for those that are `read` from another form."""
    model = _spec(given["model"])
    read |= {
        "model": model,
        "tasks": _several(given["task"] if "task" in given else given["tasks"]),
        "data": usual_data(given["data"], model.name),
        "chat": ChatOptions(
            mode=given["chat"], system=given["system"], settings=given["chat_set"] or {}
        ),
    }
    plain = {option.name for option in fields(kind)} & given.keys()
    return kind(**{name: given[name] for name in plain} | read)


def _decoding(given: Mapping[str, Any], *methods: str) -> DecodeConfig:
    (target,) = _targets(given["target"])
    return _config(
        DecodeConfig,
        given,
        methods=tuple(map(Choice.parse, methods)),
        target=target,
        batch=_sizes(given["batch"]),
        prefill=parse_prefill(str(given["prefill"])),
    )


def _call(function: Callable[..., Result], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The call that makes a run, less what it says by default."""
    usual = signature(function).parameters
    words = [f"{n}={value!r}" for n, value in given.items() if value != usual[n].default]
    return (f"ppdbench.{function.__name__}({', '.join(words)})",)


@contextmanager
def _running(
    function: Callable[..., Result], given: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[Destination, Loaded | None]]:
    """A run may begin; what it changes in this process is put back when it ends."""
    out = run_folder(given["out"], given["resume"], *names)
    to = Destination(out=out, resume=given["resume"], command=_call(function, given))
    model = given["model"]
    loaded = None if isinstance(model, str) else model.loaded
    quiet()
    before = torch.get_num_threads()
    set_threads(given["threads"])
    try:
        with ExitStack() as around:
            if loaded is None:
                check_there(_spec(model))
            else:  # what one run captures is not there in the next
                around.enter_context(restored(loaded.staged))
            if given["progress"]:
                to = replace(to, report=around.enter_context(shown()))
            yield to, loaded
    finally:
        torch.set_num_threads(before)
