"""Times of the parts of a token on this machine, one unit working alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from ppdbench.methods.ppd.units import EarlyHead, likeliest, own_head

ROUNDS = 15


@torch.inference_mode()
def layer_times(
    model: StagedModel,
    capacity: int,
    exit_after: int,
    k: int,
    *,
    head: EarlyHead = own_head,
    read: int = 1,
) -> dict[str, float]:
    """Milliseconds of each part, medians over interleaved rounds, in the middle of a sequence.

    `lower` and `upper` are the two halves for one token, `ahead` the first layers for all `k`
    candidates, `middle` those between them and the exit, `head` norm, head and the choice of a
    token, `early_head` what `head` says after `read` rows with the choice of `k`.
    """
    session = Session(model, capacity, spare=k)
    at = max(1, capacity // 2)
    prompt = session.ids([0] * at)
    step = session.steps.prefill(at)
    hidden = session.run(session.embed(prompt, step), 0, model.n_layers, step)[:, -1:]
    token, first = session.ids([0]), model.n_layers - exit_after
    one, siblings = session.chain(1, start=at), session.tree([-1] * k, start=at)
    many = session.ids([0] * k)
    guesses = hidden.expand(-1, read, -1).contiguous()

    def lower() -> None:
        session.run(session.embed(token, one), 0, exit_after, one)

    def ahead() -> None:
        step = one if k == 1 else siblings
        session.run(session.embed(many, step), 0, first, step)

    def middle() -> None:
        if first < exit_after:
            session.run(hidden, first, exit_after, one)

    parts: dict[str, Callable[[], Any]] = {
        "lower": lower,
        "ahead": ahead,
        "middle": middle,
        "upper": lambda: session.run(hidden, exit_after, model.n_layers, one),
        "head": lambda: int(session.logits(hidden)[:, -1].argmax(-1)),
        "early_head": lambda: likeliest(head(session, guesses)[0, -1], k),
    }
    clock = Clock(model.device)
    taken: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(ROUNDS):
        for name, part in parts.items():
            clock.synchronize()
            began = time.perf_counter()
            part()
            clock.synchronize()
            taken[name].append(1e3 * (time.perf_counter() - began))
    return {name: round(statistics.median(ms), 4) for name, ms in taken.items()}
