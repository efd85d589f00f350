"""The paper's own form: a main process and one replica of the model for each candidate.

A replica runs the first layers for one candidate; if that is the token, its hidden state is all
that moves. Keys and values never do: every process computes those it needs, a replica for the
token that it did not guess together with its next candidate, the main process for those that
replicas ran when a guess was wrong. Each is one pass of a few rows where there was one of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.loading import load
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.machine.cores import Cores, confine
from ppdbench.methods.ppd.channel import Channel, MessageKind, MessageLayout, WatchCall, take_spent
from ppdbench.methods.ppd.config import PipelineConfig
from ppdbench.methods.ppd.log import UnitLog, UnitReport
from ppdbench.methods.ppd.unit_group import JoinTask, UnitGroup, UnitSetup
from ppdbench.methods.ppd.units import Candidates, EarlyHead, LowerLayers, UnitSessions, own_head

REPLICA_ROWS = 2  # the token that a replica did not guess, and its next candidate


@dataclass(frozen=True, slots=True)
class ReplicaCall:
    """One replica, for one output: its channel, and what it reports at the end."""

    channel: Channel
    finish: Callable[[], UnitReport]


class MainProcess(LowerLayers):
    """The lower half of the main process, whose candidates run elsewhere."""

    def __init__(
        self,
        session: Session,
        exit_after: int,
        replicas: Sequence[ReplicaCall],
        log: UnitLog,
        head: EarlyHead = own_head,
    ) -> None:
        super().__init__(session, exit_after, len(replicas), log, head)
        self._replicas = replicas

    @property
    def widest(self) -> int:
        return REPLICA_ROWS

    @property
    def branches(self) -> bool:
        return False

    @property
    def offers(self) -> bool:
        return False

    def _first_layers(self, words: list[int]) -> Candidates:
        """Give each replica one candidate; it answers only if that is the token."""
        for replica, word in zip(self._replicas, words, strict=True):
            replica.channel.send(MessageKind.OFFER, (word,))
        return Candidates(words, None)

    def _adopted(self, ahead: Candidates, row: int) -> Tensor:
        self._tell(ahead.ids[row])
        return self._middle(self._replicas[row].channel.receive().states)

    def _fresh(self, token: int) -> Tensor:
        """First the layers that replicas ran for the tokens before."""
        self._tell(token)
        held = self.session.cache.length(0)
        behind = self.session.tokens[held:]
        hidden = run_rows(self.session, behind, held, self.ahead)
        return self._middle(hidden)

    def _tell(self, token: int) -> None:
        for replica in self._replicas:
            replica.channel.send(MessageKind.TOKEN, (token,))

    def end(self) -> UnitReport:
        for replica in self._replicas:
            replica.channel.send(MessageKind.END)
        account = UnitReport(
            take_spent(*(replica.channel for replica in self._replicas)), self.log.events
        )
        for replica in self._replicas:
            account.events += replica.finish().events
        return account


def run_rows(session: Session, tokens: Sequence[int], start: int, layers: int) -> Tensor:
    """The first `layers` over tokens from row `start` on; the last row: [1, 1, hidden].

    In as few passes as the shape of passes allows, if it is fixed.
    """
    size = session.fixed_rows or len(tokens)
    for at in range(0, len(tokens), size):
        part = tokens[at : at + size]
        step = session.chain(len(part), start=start + at)
        hidden = session.run(session.embed(session.ids(part), step), 0, layers, step)
    return hidden[:, -1:]


@torch.inference_mode()
def serve_replica(
    session: Session, layers: int, prompt: list[int], main: Channel, log: UnitLog
) -> UnitReport:
    """A replica's part in one output."""
    began = time.perf_counter()
    session.reset(prompt)
    step = session.steps.prefill(len(prompt))
    session.run(session.embed(session.ids(prompt), step), 0, layers, step)
    log.note("prompt", 0, began)
    rows, unseen, number = len(prompt), list[int](), 0
    while (message := main.receive()).kind is not MessageKind.END:
        began = time.perf_counter()
        number += 1
        guess = message.ids[0]
        hidden = run_rows(session, [*unseen, guess], rows, layers)
        rows += len(unseen)
        log.note("ahead", number, began)
        if (message := main.receive()).kind is MessageKind.END:
            break
        if message.ids[0] == guess:
            main.send(MessageKind.TAKE, (), hidden)
            rows, unseen = rows + 1, []
        else:
            unseen = message.ids
    return UnitReport(take_spent(main), log.events)


@dataclass(frozen=True, slots=True)
class ReplicaTask:
    """The inputs of a replica for one output."""

    prompt: list[int]
    fixed_rows: int | None


class Replica:
    """A replica, in its own process."""

    def __init__(self, order: UnitSetup, watch: WatchCall) -> None:
        quiet()
        confine(order.cores, order.threads)
        self._order, self._watch = order, watch
        self._staged = load(order.spec, passes=order.passes).staged
        self._layers = self._staged.n_layers - order.exit_after
        own = range(self._layers)
        self._sessions = UnitSessions(self._staged, order.capacity, own, REPLICA_ROWS)
        self.facts: dict[str, Any] = {"weight_bytes": self._staged.weight_bytes()}

    def serve(self, task: ReplicaTask | JoinTask) -> UnitReport | None:
        """Do a unit's part of one output."""
        order = self._order
        if isinstance(task, JoinTask):
            self._main, _ = order.link.open(order.rank, self._staged.device, self._watch)
            return None
        session = self._sessions.of(task.fixed_rows)
        log = UnitLog(f"replica {order.rank}")
        return serve_replica(session, self._layers, task.prompt, self._main, log)

    def close(self) -> None:
        """The group ends with the process."""


class Replicas:
    """The replicas as the main process has them."""

    def __init__(self, config: PipelineConfig, threads: int, cores: Sequence[Cores]) -> None:
        staged = config.target.staged
        layout = MessageLayout(1, 1, staged.width, staged.dtype)
        names = [f"replica {rank}" for rank in range(1, 1 + config.k)]
        self._group = UnitGroup(config, names, Replica, layout, threads, cores, shared=False)
        self.weight_bytes = self._group.weight_bytes
        self.close = self._group.close

    @contextmanager
    def output(self, session: Session, prompt: list[int]) -> Iterator[list[ReplicaCall]]:
        """The replicas for one output."""
        tasks = [ReplicaTask(prompt, session.fixed_rows) for _ in self.weight_bytes]
        with self._group.output(tasks) as units:
            yield [ReplicaCall(wires[0], finish) for wires, finish in units]
