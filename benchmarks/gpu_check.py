"""The checks that must pass on a GPU, run as a user would type them: `make gpu-check`.

Exact outputs of every method in float32 and bfloat16, strict and not, captured, quantised and
over several devices; what greedy is worth beside `generate()`; the forms of ppd on one GPU and
on several; and a model of 7B shape. Each step is a command in a process of its own, so that one
that dies takes no other with it, and steps that run examples go on where they were.

    python -m benchmarks.gpu_check [--out results/gpu-check] [--device cpu]

On the CPU the same steps run with smaller shapes. The folder then holds a run for each step, what
each one printed, `gpu-check.json` with their exit codes, and `report.html`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet

Words = tuple[str, ...]
NO_GPU = "no CUDA GPU here, so nothing was checked; --device cpu runs the same steps on the CPU"
# Of several units each takes a GPU of its own where there are as many.
UNITS = 2
FORMS: Mapping[str, Words] = {
    "inline": (),
    "split": ("--set", "form=split"),
    "replicated": ("--set", "form=replicated", "--set", f"k={UNITS - 1}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckScale:
    """The size of everything, and what stands for the rest of the machine's properties."""

    model: str = "reference"
    methods: Words = ("all",)
    dtypes: Words = ("float32", "bfloat16")
    limit: int = 8
    tokens: int = 64
    rounds: int = 5
    large: str = "synthetic:llama-7b,agree=0.9"
    compile: str = "on"


GPU = CheckScale()
CPU = CheckScale(
    limit=1, tokens=12, rounds=2, large="synthetic:llama-20m,agree=0.9", compile="auto"
)


@dataclass(frozen=True, slots=True)
class CheckStep:
    """A command; `run` if it writes a run of its name, `ranks` of torchrun, `devices` it needs.

    `alone` shows it one GPU only.
    """

    name: str
    words: Words
    run: bool = True
    ranks: int = 1
    devices: int = 1
    alone: bool = False


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of a step: its exit code and time, or why it was left out."""

    name: str
    command: str
    code: int | None = None
    seconds: float | None = None
    left_out: str | None = None


def steps(device: str, scale: CheckScale, schemes: Sequence[str]) -> Iterator[CheckStep]:
    """Yield all steps, the quick and telling ones first."""
    where = ("--device", device, "--offline", "--model", scale.model)
    length = ("--max-new-tokens", str(scale.tokens))
    size = ("--data", "builtin", "--limit", str(scale.limit), *length)
    tasks = ("--task", "gsm8k", "--task", "squad")
    methods = tuple(word for name in scale.methods for word in ("--method", name))
    bench = ("bench", *tasks, *where, *size, *methods)
    for dtype in scale.dtypes:
        typed = (*bench, "--dtype", dtype)
        yield CheckStep(f"exact-{dtype}", (*typed, "--compile", "off"))
        yield CheckStep(f"exact-{dtype}-strict", (*typed, "--strict"))
        yield CheckStep(f"exact-{dtype}-compiled", (*typed, "--compile", scale.compile))
    for scheme in schemes:
        yield CheckStep(f"exact-{scheme}", (*bench, "--dtype", "bfloat16", "--quantize", scheme))
    yield from _forms(("--task", "gsm8k", *where, *size))
    yield from _spread(device, bench)
    probe = ("probe", *tasks, *where, *size)
    yield CheckStep("probe", probe)
    yield CheckStep("probe-ranks", probe, ranks=UNITS, devices=UNITS)
    for dtype in scale.dtypes:
        compared = ("env", "--baseline", *where, "--dtype", dtype, "--rounds", str(scale.rounds))
        how = ("--new-tokens", str(scale.tokens), "--compile", scale.compile, "--format", "json")
        yield CheckStep(f"baseline-{dtype}", (*compared, *how), run=False)
    large = ("bench", "--task", "gsm8k", "--device", device, "--offline", "--model", scale.large)
    yield CheckStep(
        "large",
        (*large, *size, "--dtype", "bfloat16", "--profile", "--against", "transformers"),
    )


def _forms(words: Words) -> Iterator[CheckStep]:
    """ppd on one device, and where there are several on as many as it has units."""
    for form, options in FORMS.items():
        decode = ("decode", "--method", "ppd", *options, *words)
        yield CheckStep(f"ppd-{form}", decode, alone=True)
        if form != "inline":
            yield CheckStep(f"ppd-{form}-several", decode, devices=UNITS)
            yield CheckStep(f"ppd-{form}-ranks", decode, ranks=UNITS, devices=UNITS)


def _spread(device: str, bench: Words) -> Iterator[CheckStep]:
    """Layers over all devices there are."""
    if device != "cpu":
        yield CheckStep("exact-spread", (*bench, "--device-map", "balanced"), devices=UNITS)


Runner = Callable[[CheckStep, Words, Path], int]


def in_a_process(step: CheckStep, words: Words, out: Path) -> int:
    """Run a step; what it prints goes into files of its name."""
    launch: Words = ("-m", "ppdbench")
    if step.ranks > 1:
        launch = ("-m", "torch.distributed.run", "--nproc-per-node", str(step.ranks), *launch)
    environment = dict(os.environ)
    if step.alone:
        shown = environment.get("CUDA_VISIBLE_DEVICES", "0")
        environment["CUDA_VISIBLE_DEVICES"] = shown.split(",")[0]
    result, talk = papers(step, out)
    with result.open("wb") as said, talk.open("wb") as log:
        command = [sys.executable, *launch, *words]
        return subprocess.run(command, stdout=said, stderr=log, env=environment).returncode


def papers(step: CheckStep, out: Path) -> tuple[Path, Path]:
    """Return the files of a step's result and of what it says besides."""
    ending = "json" if "json" in step.words else "txt"
    return out / f"{step.name}.{ending}", out / f"{step.name}.log"


@dataclass(slots=True)
class GpuCheck:
    """The steps, where they write to, and how they ended so far."""

    out: Path
    devices: int
    runner: Runner = in_a_process
    done: list[StepEnd] = field(default_factory=list)

    def carry_out(self, step: CheckStep) -> StepEnd:
        """One step, unless there are too few devices for it."""
        words = (*step.words, *self._target(step))
        command = f"ppdbench {' '.join(words)}"
        if step.devices > self.devices:
            found = StepEnd(
                step.name, command, left_out=f"{self.devices} of {step.devices} devices"
            )
        else:
            start = time.monotonic()
            code = self.runner(step, words, self.out)
            found = StepEnd(step.name, command, code, round(time.monotonic() - start, 1))
        self.done.append(found)
        return found

    def _target(self, step: CheckStep) -> Words:
        if not step.run:
            return ()
        folder = self.out / step.name
        resume = ("--resume",) if (folder / "run.json").exists() else ()
        return ("--out", str(folder), *resume)

    def report(self) -> StepEnd:
        """One page about all runs there are."""
        runs = tuple(str(path.parent) for path in sorted(self.out.glob("*/run.json")))
        page = ("report", *runs, "--out", str(self.out / "report.html"))
        return self.carry_out(CheckStep("report", page, run=False))

    @property
    def code(self) -> int:
        """0 if every step that was carried out ended well."""
        return int(any(done.code for done in self.done))

    def write(self, device: str) -> dict[str, Any]:
        """Write all of this for programs, beside the runs."""
        content = {"device": device, "devices": self.devices, "ok": self.code == 0}
        content |= {"steps": [asdict(done) for done in self.done]}
        (self.out / "gpu-check.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        return content


def check(device: str, out: Path, scale: CheckScale, *, runner: Runner = in_a_process) -> GpuCheck:
    """Carry all steps out, and write down how each one ended as soon as it did."""
    import torch

    from ppdbench.engine.quantized import installed

    out.mkdir(parents=True, exist_ok=True)
    made = GpuCheck(out, UNITS if device == "cpu" else torch.cuda.device_count(), runner)
    for step in steps(device, scale, installed()):
        print(f"{step.name} ...", file=sys.stderr, flush=True)
        done = made.carry_out(step)
        took = "" if done.seconds is None else f", {done.seconds} s"
        print(f"{step.name}: {_outcome(done)}{took}", file=sys.stderr, flush=True)
        made.write(device)
    made.report()
    made.write(device)
    return made


def _outcome(done: StepEnd) -> str:
    if done.left_out is not None:
        return f"left out ({done.left_out})"
    return "ok" if done.code == 0 else f"exit code {done.code}"


def _sheet(device: str, made: GpuCheck) -> Sheet:
    rows = tuple((done.name, _outcome(done), done.seconds) for done in made.done)
    title = f"GPU check on {device}: {'all is well' if made.code == 0 else 'something is wrong'}"
    notes = (f"What each step printed, its run and report.html: {made.out}",)
    return Sheet(title, ("step", "outcome", "s"), rows, notes=notes, digits={"s": 1})


def main(words: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cuda (default), cuda:N or cpu")
    parser.add_argument("--out", default="results/gpu-check", help="where everything is written")
    arguments = parser.parse_args(words)
    device = arguments.device
    if device != "cpu" and not torch.cuda.is_available():
        print(NO_GPU)
        return 0
    made = check(device, Path(arguments.out), CPU if device == "cpu" else GPU)
    emit([_sheet(device, made)], made.write(device), "table")
    return made.code


if __name__ == "__main__":
    sys.exit(main())
