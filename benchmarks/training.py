"""The cost of the LayerSkip training loop over a bare PyTorch loop, same model and batch.

    python -m benchmarks.training [--rounds 5] [--compile]

Printed are medians of interleaved rounds: the bare loop (transformers' own forward, AdamW),
ours without early-exit loss and dropout, and ours with the early-exit loss at R = L-1. With
`--compile` all three are compiled.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ppdbench.engine.quiet import quiet
from ppdbench.engine.shapes import parse
from ppdbench.methods.layerskip.recipe import Recipe
from ppdbench.methods.layerskip.train import LayerSkipObjective
from ppdbench.training.prepare import new_model
from ppdbench.training.text import TokenBlocks
from ppdbench.training.trainer import TrainConfig, Trainer

PLAIN = Recipe(p_max=0.0, e_scale=None)


class Bare:
    """A loop anyone would write."""

    def __init__(self, model: Any, blocks: TokenBlocks, batch: int) -> None:
        self.model, self.blocks, self.batch = model.train(), blocks, batch
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self, number: int) -> None:
        rows = torch.from_numpy(self.blocks.batch(number, self.batch))
        with torch.autocast("cpu", torch.bfloat16):
            logits = self.model(rows[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), rows[:, 1:].flatten()
            )
        loss.backward()  # type: ignore[no-untyped-call]
        float(loss.detach())
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="layers=10,hidden=256,vocab=4096,context=512,tie=true")
    parser.add_argument("--sequence", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    quiet()
    shape = parse(arguments.shape)
    ids = np.random.default_rng(0).integers(3, shape.vocab, 200_000).astype(np.uint16)
    blocks = TokenBlocks(ids, arguments.sequence + 1, 0)
    config = TrainConfig(
        steps=1000, batch_size=arguments.batch, sequence=arguments.sequence, precision="bf16"
    )

    def ours(recipe: Recipe) -> Trainer:
        model = new_model(shape, 0)
        objective = LayerSkipObjective(
            model, recipe, arguments.sequence, 0, compiled=arguments.compile
        )
        return Trainer(objective.train(), blocks, config, Path(tempfile.mkdtemp()), {})

    bare = Bare(new_model(shape, 0), blocks, arguments.batch)
    if arguments.compile:
        bare.model = torch.compile(bare.model)
    plain, exits = ours(PLAIN), ours(Recipe(p_max=0.0, rotation=shape.layers - 1))
    contenders: dict[str, Callable[[int], object]] = {
        "bare loop": bare.step,
        "ours, last exit only": lambda number: plain._step(number),
        "ours, early exits at R = L-1": lambda number: exits._step(number),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(arguments.rounds + 1):
        for name, step in contenders.items():
            start = time.perf_counter()
            step(number)
            if number:
                times[name].append(time.perf_counter() - start)
    base = statistics.median(times["bare loop"])
    tokens = arguments.batch * arguments.sequence
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:30} {tokens / median:8.0f} tokens/s   {base / median:.2f} of the bare loop")


if __name__ == "__main__":
    main()
