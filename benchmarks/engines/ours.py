"""Our greedy decoding, or transformers' `generate()`, as a process that decodes when asked to.

python -m benchmarks.engines.ours greedy|stored|generate DTYPE JOB
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.stock import StockModel
from ppdbench.engine.loading import ModelSpec, load, load_words
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.machine.clock import Clock
from ppdbench.machine.environment import set_threads

Decode = Callable[[Request], float]


def main(kind: str, dtype: str, job: dict[str, Any]) -> None:
    """Load the model, then answer each line with what one output took."""
    quiet()
    set_threads(job["threads"])
    spec = ModelSpec(
        name=job["model"], dtype=dtype, device="cpu", offline=True, as_stored=kind == "stored"
    )
    tokenizer, _ = load_words(spec)
    prompt = tokenizer(job["prompt"])["input_ids"]
    request = Request(prompt, Limits(job["tokens"]), Clock(torch.device("cpu")))
    room = len(prompt) + job["tokens"]
    decode, said = generate(spec) if kind == "generate" else greedy(spec, room)
    _say({"ready": said})
    for _ in sys.stdin:
        _say({"tokens": job["tokens"], "seconds": decode(request)})


def greedy(spec: ModelSpec, room: int) -> tuple[Decode, str]:
    """Our own: seconds after the first token."""
    loaded = load(spec)
    session = Session(loaded.staged, room)
    path = loaded.staged.path
    return lambda request: sum(autoregressive(session, request).step_ms) / 1e3, path.kernels


def generate(spec: ModelSpec) -> tuple[Decode, str]:
    """The same of transformers."""
    stock = StockModel.load(spec)

    def decode(request: Request) -> float:
        handed = stock.generate(request)
        return handed[-1].seconds - handed[0].seconds

    return decode, "eager, its default cache"


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
