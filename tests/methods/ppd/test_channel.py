"""Messages arrive as they were sent, and last until the next one is asked for."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ppdbench.methods.ppd import process
from ppdbench.methods.ppd.channel import SLOTS, MessageKind, MessageLayout, SharedChannel
from ppdbench.methods.ppd.process import Unit, can_copy

ROWS, WIDTH = 3, 6


def ends(dtype: torch.dtype = torch.float32) -> tuple[SharedChannel, SharedChannel]:
    """Where messages go in and where they come out, both in this process."""
    into = SharedChannel(multiprocessing, MessageLayout(4, ROWS, WIDTH, dtype))
    out = copy.copy(into)
    out.connect()
    return into, out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, ROWS])
def test_a_message_arrives_as_it_was_sent(dtype: torch.dtype, rows: int) -> None:
    into, out = ends(dtype)
    whole = torch.randn(1, WIDTH, ROWS).to(dtype)
    for states in (whole.transpose(1, 2)[:, :rows], whole.transpose(1, 2)[:, :rows].contiguous()):
        into.send(MessageKind.OFFER, (7, 2**40, 0), states)
        message = out.receive()
        assert (message.kind, message.ids) == (MessageKind.OFFER, [7, 2**40, 0])
        assert torch.equal(message.states, states)
    into.send(MessageKind.TOKEN, (5,), logit=-2.5)
    message = out.receive()
    assert (message.kind, message.ids, message.logit) == (MessageKind.TOKEN, [5], -2.5)
    assert message.states.shape == (1, 0, WIDTH)


def test_states_stay_while_others_are_on_their_way() -> None:
    into, out = ends()
    sent = [torch.full((1, ROWS, WIDTH), float(i)) for i in range(3 * SLOTS)]
    into.send(MessageKind.TAKE, (), sent[0])
    first = out.receive()
    for states in sent[1:SLOTS]:
        into.send(MessageKind.TAKE, (), states)
    assert torch.equal(first.states, sent[0])
    for number in range(1, len(sent)):
        assert torch.equal(out.receive().states, sent[number])
        if number + SLOTS - 1 < len(sent):
            into.send(MessageKind.TAKE, (), sent[number + SLOTS - 1])


def test_what_is_ready_can_be_seen_without_waiting() -> None:
    into, out = ends()
    assert not out.ready()
    into.send(MessageKind.TOKEN, (1,))
    into.send(MessageKind.TOKEN, (2,))
    assert out.ready()
    assert out.ready()
    assert [out.receive().ids for _ in range(2)] == [[1], [2]]
    assert not out.ready()


class Multiplier:
    """A unit that multiplies matrices on two threads."""

    def __init__(self, order: torch.Tensor, watch: process.Watch) -> None:
        torch.set_num_threads(2)
        self.facts: dict[str, Any] = {"trace": float((order @ order).trace())}

    def serve(self, task: Any) -> Any:
        return task

    def close(self) -> None:
        pass


@contextmanager
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(not can_copy(torch.device("cpu")), reason="units are no copies here")
def test_a_copy_of_a_process_of_many_threads_has_threads_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of its model are not there any more, and waiting for them would take for ever."""
    monkeypatch.setattr(process, "START_S", 30.0)
    matrix = torch.randn(700, 700)
    with two_threads():
        wanted = float((matrix @ matrix).trace())
        context = multiprocessing.get_context("fork")
        unit = Unit.start(context, "unit", Multiplier, matrix, 5.0)
        try:
            assert unit.ready()["trace"] == pytest.approx(wanted)
        finally:
            unit.kill()
