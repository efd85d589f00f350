"""Compiled passes on disk: made once per shape, machine and version, loaded in milliseconds.

Ahead-of-time inductor packages. They hold code and no weights, so that every model of the same
layer shape shares them, whatever its depth. The folder is `PPDBENCH_CACHE`, or `ppdbench` in
the user's cache folder; deleting it costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.files.caches import cache_folder
from ppdbench.machine.environment import cpu_model, instruction_sets

# Part of every key: raise it when what is traced changes.
VERSION = 3

# Takes the arguments of the traced module in order, flattened; gives its outputs.
Runner = Callable[[list[Tensor]], Sequence[Tensor]]
# What is traced: a module, example inputs, and which of their sizes stay open.
Traced = tuple[nn.Module, tuple[Any, ...], tuple[Any, ...]]


def why_not() -> str | None:
    """Say why nothing can be compiled ahead of time here; None if it can."""
    if not hasattr(torch._inductor, "aoti_compile_and_package"):
        return f"torch {torch.__version__} cannot compile ahead of time; use 2.6 or later"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        compiler = get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        compiler = None
    if compiler is None or shutil.which(compiler) is None:
        return "no C++ compiler found; install g++ or set CXX"
    return None


def home() -> Path:
    """Return the folder of compiled passes."""
    return cache_folder() / "compiled"


def path_of(what: str) -> Path:
    """The file for `what`, a full description of the pass, on this machine."""
    words = (
        *(f"ppdbench {VERSION}", torch.__version__, what),
        *(torch.backends.cpu.get_cpu_capability(), platform.machine(), processor()),
        f"{torch.get_num_threads()} threads",
    )
    return home() / f"{hashlib.sha256(' | '.join(words).encode()).hexdigest()[:24]}.pt2"


@cache
def processor() -> str:
    """Name the processor that the compiler builds for: others may not run what it makes."""
    return " ".join((cpu_model() or "", *sorted(instruction_sets() or ())))


def runner(what: str, make: Callable[[], Traced]) -> Runner:
    """The compiled pass, from disk where it is there."""
    path = path_of(what)
    if not path.is_file():
        _compile(path, *make())
    # Not by aoti_load_package, which imports the compiler and has it make programs to find out
    # what this processor can do: that takes seconds, and the name of our file says it.
    run: Runner = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1).run
    return run


@torch.no_grad()
def _compile(
    path: Path, module: nn.Module, inputs: tuple[Any, ...], dynamic: tuple[Any, ...]
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        warnings.simplefilter("ignore")  # the compiler's, about itself
        program = torch.export.export(module, inputs, dynamic_shapes=dynamic)
        made = Path(folder) / "pass.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(made))
        # Whole or not at all: another process may be looking.
        made.replace(path)
