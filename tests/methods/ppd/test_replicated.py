"""Replicas: they run what they did not guess with the next candidate, and answer only if right."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from ppdbench.engine.session import Session
from ppdbench.methods.ppd.channel import Message, MessageKind
from ppdbench.methods.ppd.log import UnitLog
from ppdbench.methods.ppd.replicated import REPLICA_ROWS, run_rows, serve_replica
from ppdbench.testing import CAPACITY, tokens
from tests.helpers import assert_near
from tests.methods.ppd.made import FAR, loaded

LAYERS = 3
PROMPT = tokens(7, 1, 300)


def session_of(fixed_rows: int | None = None) -> Session:
    return Session(loaded(FAR).staged, CAPACITY, spare=REPLICA_ROWS, fixed_rows=fixed_rows)


def truth(ids: list[int]) -> torch.Tensor:
    """The state of the last row after the first layers, in one pass over everything."""
    session = session_of()
    session.reset(ids)
    step = session.steps.prefill(len(ids))
    return session.run(session.embed(session.ids(ids), step), 0, LAYERS, step)[:, -1:]


@pytest.mark.parametrize("fixed_rows", [None, 2])
@torch.inference_mode()
def test_rows_behind_are_run_in_as_few_passes_as_their_shape_allows(
    fixed_rows: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, behind = session_of(fixed_rows), tokens(5, 2, 300)
    session.reset(PROMPT)
    step = session.steps.prefill(len(PROMPT))
    session.run(session.embed(session.ids(PROMPT), step), 0, LAYERS, step)
    passes: list[int] = []
    real = session.run

    def noted(hidden: torch.Tensor, *given: Any) -> torch.Tensor:
        passes.append(given[0])
        return real(hidden, *given)

    monkeypatch.setattr(session, "run", noted)
    last = run_rows(session, behind, len(PROMPT), LAYERS)
    assert_near(last, truth([*PROMPT, *behind]))
    assert len(passes) == (1 if fixed_rows is None else 3)


class Script:
    """A channel to a main process that says what it says, whatever is answered."""

    def __init__(self, guesses: list[int], output: list[int]) -> None:
        pairs = zip(guesses, output, strict=True)
        told = [[self.say(MessageKind.OFFER, g), self.say(MessageKind.TOKEN, t)] for g, t in pairs]
        self.left = [*itertools.chain(*told), self.say(MessageKind.END)]
        self.sent: list[torch.Tensor] = []
        self.spent_s = 0.0

    @staticmethod
    def say(kind: MessageKind, *ids: int) -> Message:
        return Message(kind, list(ids), torch.empty(1, 0, 1), 0.0)

    def receive(self) -> Message:
        return self.left.pop(0)

    def send(
        self, kind: MessageKind, ids: Any = (), states: Any = None, logit: float = 0.0
    ) -> None:
        assert kind is MessageKind.TAKE
        self.sent.append(states.clone())


def test_a_replica_answers_right_guesses_alone_with_the_state_of_the_token() -> None:
    output = tokens(5, 3, 300)
    wrong = {1, 2}  # two in a row: both are caught up with at once
    guesses = [token ^ 1 if at in wrong else token for at, token in enumerate(output)]
    main: Any = Script(guesses, output)
    log = UnitLog("replica 1")
    report = serve_replica(session_of(), LAYERS, PROMPT, main, log)
    right = [at for at in range(5) if at not in wrong]
    assert len(main.sent) == len(right)
    for at, state in zip(right, main.sent, strict=True):
        assert_near(state, truth([*PROMPT, *output[: at + 1]]))
    assert [event[1] for event in report.events] == ["prompt", *["ahead"] * 5]
