"""The most memory that decoding holds beyond weights and cache; a process of its own for a model.

    python -m benchmarks.targets.memory MODEL DTYPE

The libraries' own code is apart: it is the same for every model, and whoever has Python and
transformers open has it already. It is loaded by running the smallest of models first; so is the
package that reads files of llama.cpp's, for a model from one. Weights count once, as they are
stored: a second copy of any is beyond them.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from benchmarks.targets.rows import DTYPES, MIDDLE, REAL, TargetRow, in_another_process
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.machine.clock import Clock
from ppdbench.machine.environment import forget_peak_memory, set_threads
from ppdbench.tasks.passages import pseudo_prompts

TINY = "synthetic:layers=1,hidden=64"


def memory(_: int) -> Iterator[TargetRow]:
    """Yield the share that is held beyond weights and cache, of each model and type."""
    for name in (MIDDLE, REAL):
        for dtype in DTYPES:
            extra, libraries = in_another_process("benchmarks.targets.memory", name, dtype)
            what = f"peak memory over weights and KV, {name}, {dtype}"
            note = f"libraries hold {libraries / 1e6:.0f} MB"
            yield TargetRow(what, "0.10 or less", [extra], note)


def beyond(name: str, dtype: str) -> tuple[float, int]:
    """The share held beyond weights and cache, and the bytes that libraries hold."""
    run_once(TINY, dtype)
    if model(name, dtype).is_gguf:
        import_module("gguf")
    gc.collect()
    before = resident()
    loaded, session = run_once(name, dtype)
    held = loaded.staged.parameters * loaded.staged.dtype.itemsize + session.cache.nbytes
    return (resident("VmHWM") - before) / held - 1, before


def run_once(name: str, dtype: str) -> tuple[Loaded, Session]:
    """A model that has decoded one prompt; the peak is counted from when it was loaded."""
    loaded = load(model(name, dtype))
    forget_peak_memory(loaded.staged.device)
    session = Session(loaded.staged, 192)
    prompt = pseudo_prompts(loaded.tokenizer, 1, 64)[0]
    autoregressive(session, Request(prompt, Limits(32), Clock(loaded.staged.device)))
    return loaded, session


def model(name: str, dtype: str) -> ModelSpec:
    """The model of a name, from this machine alone."""
    return ModelSpec(name=name, dtype=dtype, device="cpu", offline=True)


def resident(name: str = "VmRSS") -> int:
    """Bytes that this process holds, or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    quiet()
    set_threads(None)
    print(json.dumps(beyond(*sys.argv[1:])))
