"""Two units for any number of candidates, one copy of the weights in all.

Unit A holds the layers up to the exit and chooses candidates, unit B the layers after it and
the head. At an exit in the middle B goes on by itself while the guesses are right: the states of
all candidates reach it before its token is known, and the token picks the row.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import load
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.cores import Cores, confine
from ppdbench.methods.ppd.channel import (
    Channel,
    Message,
    MessageKind,
    MessageLayout,
    WatchCall,
    take_spent,
)
from ppdbench.methods.ppd.config import PipelineConfig
from ppdbench.methods.ppd.log import UnitLog, UnitReport
from ppdbench.methods.ppd.unit_group import JoinTask, UnitGroup, UnitSetup
from ppdbench.methods.ppd.units import Candidates, UnitSessions, UpperLayers

PROMPT_ROWS = 8  # hidden states of a prompt travel in messages of so many


class RemoteUpperHalf:
    """The upper half as the lower one sees it, through a channel each way."""

    def __init__(self, out: Channel, back: Channel, finish: Callable[[], UnitReport]) -> None:
        self._out, self._back, self._finish = out, back, finish

    def prompt(self, hidden: Tensor, *, whole: bool) -> None:
        n = hidden.shape[1]
        for first in range(0, n, PROMPT_ROWS):
            rows = hidden[:, first : first + PROMPT_ROWS]
            self._out.send(MessageKind.PROMPT, (n, int(whole)), rows)

    def offer(self, ahead: Candidates) -> None:
        self._out.send(MessageKind.OFFER, ahead.ids, ahead.states)

    def take(self, hidden: Tensor) -> None:
        self._out.send(MessageKind.TAKE, (), hidden)

    def answered(self) -> bool:
        return self._back.ready()

    def token(self) -> tuple[int, float]:
        message = self._back.receive()
        return message.ids[0], message.logit

    def end(self) -> UnitReport:
        """B may be at work on a token that nobody wants any more."""
        self._out.send(MessageKind.END)
        while self._back.receive().kind is not MessageKind.END:
            pass
        theirs = self._finish()
        spent = take_spent(self._out, self._back)
        return UnitReport(spent + theirs.communication_s, theirs.events)


@torch.inference_mode()
def serve_upper(
    upper: UpperLayers, prompt: int, inbox: Channel, outbox: Channel, log: UnitLog
) -> UnitReport:
    """Unit B's part in one output, whose prompt has so many tokens."""
    began = time.perf_counter()
    hidden = _prompt(upper, prompt, inbox)
    token, logit = upper.choose(hidden)
    number = 1
    log.note("finish", number, began)
    while True:
        outbox.send(MessageKind.TOKEN, (token,), logit=logit)
        state = _next_state(inbox, token)
        if state is None:
            outbox.send(MessageKind.END)
            return UnitReport(take_spent(inbox, outbox), log.events)
        began = time.perf_counter()
        number += 1
        token, logit = upper.token(state)
        log.note("finish", number, began)


def _prompt(upper: UpperLayers, n: int, inbox: Channel) -> Tensor:
    """Run the prompt, part by part; return the last layer's output for the last part."""
    while upper.rows < n:
        message = inbox.receive()
        size, whole = message.ids
        hidden = message.states.new_empty(1, size, message.states.shape[-1])
        filled = _fill(hidden, 0, message)
        while filled < size:
            filled = _fill(hidden, filled, inbox.receive())
        last = upper.prompt(hidden, whole=bool(whole))
    return last


def _fill(hidden: Tensor, at: int, message: Message) -> int:
    end = at + message.states.shape[1]
    hidden[:, at:end] = message.states
    return end


def _next_state(inbox: Channel, token: int) -> Tensor | None:
    """The row of `token`: an offered one, or the one sent for it; None at the end."""
    while (message := inbox.receive()).kind is not MessageKind.END:
        if message.kind is MessageKind.TAKE:
            return message.states
        if token in message.ids:
            row = message.ids.index(token)
            return message.states[:, row : row + 1]
    return None


@dataclass(frozen=True, slots=True)
class UpperTask:
    """The inputs of unit B for one output; the generator's state, where tokens are drawn."""

    prompt: int
    fixed_rows: int | None
    target: Target
    state: Tensor | None


def _upper_part(order: UnitSetup) -> tuple[StagedModel, int]:
    """The model as unit B has it, and how many bytes of weights that adds to unit A's.

    The final norm and the head serve both: in shared memory they are there once.
    """
    if order.held is None:
        staged = load(
            order.spec, keep=range(order.exit_after, sys.maxsize), passes=order.passes
        ).staged
        return staged, staged.weight_bytes()
    staged = order.held
    upper = range(order.exit_after, staged.n_layers)
    return staged, staged.part_bytes(upper) - staged.readout_bytes()


class UpperServer:
    """Unit B, in its own process."""

    def __init__(self, order: UnitSetup, watch: WatchCall) -> None:
        quiet()
        confine(order.cores, order.threads)
        self._order, self._watch = order, watch
        self._staged, weight_bytes = _upper_part(order)
        own = range(order.exit_after, self._staged.n_layers)
        self._sessions = UnitSessions(self._staged, order.capacity, own)
        self.facts: dict[str, Any] = {"weight_bytes": weight_bytes}

    def serve(self, task: UpperTask | JoinTask) -> UnitReport | None:
        """Do a unit's part of one output."""
        order = self._order
        if isinstance(task, JoinTask):
            self._wires = order.link.open(order.rank, self._staged.device, self._watch)
            return None
        session = self._sessions.of(task.fixed_rows)
        session.reset([])
        chooser = Chooser(task.target)
        if task.state is not None:
            chooser.generator.set_state(task.state)
        upper = UpperLayers(session, order.exit_after, chooser)
        return serve_upper(upper, task.prompt, *self._wires, UnitLog("B"))

    def close(self) -> None:
        """Do nothing: nothing here outlives the process."""


class UpperUnit:
    """Unit B as unit A has it."""

    def __init__(self, config: PipelineConfig, threads: int, cores: Cores) -> None:
        staged, rows = config.target.staged, max(config.k, PROMPT_ROWS)
        layout = MessageLayout(max(config.k, 2), rows, staged.width, staged.dtype)
        self._group = UnitGroup(
            config, ["unit B"], UpperServer, layout, threads, [cores], shared=True
        )
        self.weight_bytes = self._group.weight_bytes[0]
        self.close = self._group.close

    @contextmanager
    def output(self, session: Session, prompt: int, chooser: Chooser) -> Iterator[RemoteUpperHalf]:
        """The upper half for one output."""
        state = None if chooser.target.greedy else chooser.generator.get_state()
        task = UpperTask(prompt, session.fixed_rows, chooser.target, state)
        with self._group.output([task]) as [((back, out), finish)]:
            yield RemoteUpperHalf(out, back, finish)
