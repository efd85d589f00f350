"""Greedy answers to the examples of a task, many decoded at once: what is scored, and not timed.

Each is what it would be alone, token for token.
"""

from __future__ import annotations

from dataclasses import dataclass

from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.written import visible_text
from ppdbench.engine.loading import Loaded
from ppdbench.errors import DataError
from ppdbench.machine.clock import Clock
from ppdbench.methods import METHODS
from ppdbench.runs.workload import RunConfig, Workload, capacity, limits_of

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to one example, what it was asked in, and what would have been right."""

    example_id: str
    prompt: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish: str
    text: str
    references: list[str]


def answers(loaded: Loaded, config: RunConfig) -> list[Answer]:
    """Answer all examples of a run, as its options have them."""
    items = Workload.read(config).encode(loaded)
    batch = Batch(Setup(loaded, capacity(items) + 1))
    decoders = batch.prepare(METHODS.get("greedy").make().prepare, min(AT_ONCE, len(items)))
    clock = Clock(loaded.staged.device)
    limits = [limits_of(item, loaded) for item in items]
    asked = ((i, Request(item.ids, limits[i], clock)) for i, item in enumerate(items))
    found = dict[int, Answer]()
    for done in batch.decode(decoders, asked, clock):
        item = items[done.key]
        if done.decoded is None:
            raise DataError(f"example {item.example.id} could not be answered: {done.error}")
        output = list(done.decoded.output_ids)
        found[done.key] = Answer(
            item.example.id,
            item.example.prompt.text,
            item.ids,
            output,
            done.decoded.finish,
            visible_text(loaded.tokenizer, item.ids, output, limits[done.key]),
            list(item.example.references),
        )
    return [found[i] for i in range(len(items))]
