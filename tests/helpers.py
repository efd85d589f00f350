"""What several test files need: shared models, plain passes, a clock that is scripted."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from ppdbench.engine import synthetic
from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import Step, StepMaker
from ppdbench.engine.shapes import parse
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from tests.families import FAMILIES, stock_model

VOCAB = 96
CAPACITY = 64
WINDOWED = [name for name in FAMILIES if "window" in name or "gemma" in name]


@functools.cache
def staged(name: str, packed: bool = True) -> StagedModel:
    """The engine's view of a tiny model; tests share it, so they must not change weights."""
    return StagedModel(stock_model(name), packed=packed)


def tokens(n: int, seed: int = 0) -> list[int]:
    """Random ids above the special ones."""
    draw = random.Random(seed)
    return [draw.randrange(3, VOCAB) for _ in range(n)]


def save_synthetic(folder: Path, spec: str, words: int = 300) -> Path:
    """A model of random weights in a folder, with a tokenizer of so many words."""
    shape = parse(f"synthetic:{spec}")
    synthetic.build(shape, torch.float32, torch.device("cpu")).save_pretrained(folder)
    synthetic.tokenizer(words, shape.context).save_pretrained(folder)
    return folder


def go(model: StagedModel, ids: list[int] | list[list[int]], step: Step, cache: KVCache) -> Tensor:
    """All layers over one step: hidden states [batch, query, hidden]."""
    rows = ids if isinstance(ids[0], list) else [ids]
    return model.forward(torch.tensor(rows), step, cache)


def plain(model: StagedModel, ids: list[int]) -> Tensor:
    """Hidden states [1, n, hidden] of a sequence in one pass over an empty cache."""
    cache, steps = model.new_cache(CAPACITY)
    return go(model, ids, steps.chain(0, len(ids)), cache)


def prefilled(model: StagedModel, ids: list[int]) -> tuple[KVCache, StepMaker]:
    """A cache that holds `ids`."""
    cache, steps = model.new_cache(CAPACITY)
    go(model, ids, steps.chain(0, len(ids)), cache)
    return cache, steps


def assert_near(ours: Tensor, truth: Tensor, tolerance: float = 1e-5) -> None:
    """Equal up to rounding: the largest difference against the largest value (at least 1)."""
    assert ours.shape == truth.shape
    assert bool(torch.isfinite(ours).all())
    scale = max(1.0, float(truth.abs().max()))
    assert float((ours - truth).abs().max()) <= tolerance * scale


class ScriptedClock(Clock):
    """Reads off a list of times; reading once too often raises."""

    def __init__(self, times: Iterable[float]) -> None:
        super().__init__(torch.device("cpu"))
        self.left = list(times)
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1

    def now(self) -> float:
        return self.left.pop(0)
