"""Units with a GPU each: who gets which, and messages whose states never leave the device."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.engine.loading import ModelSpec
from ppdbench.methods.ppd import unit_group
from ppdbench.methods.ppd.channel import MessageKind, MessageLayout
from ppdbench.methods.ppd.config import device_of
from ppdbench.methods.ppd.direct import DirectChannel, own_gpus
from tests.decoding.matrix import assert_exact, cases
from tests.methods.ppd.made import FAR, loaded, prepared
from tests.pretend import There, gpus

LAYOUT = MessageLayout(ids=4, rows=3, width=8, dtype=torch.float32)


class Line:
    """One direction between two ends in one process; it keeps the order, as NCCL does."""

    def __init__(self) -> None:
        self.under_way: deque[Tensor] = deque()

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> Line:
        self.under_way.append(tensors[0].clone())
        return self

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> Line:
        tensors[0].copy_(self.under_way.popleft())
        return self

    def wait(self) -> None:
        """It is there at once."""


def ends(device: str) -> tuple[DirectChannel, DirectChannel]:
    down, up, place = Line(), Line(), torch.device(device)
    ours = DirectChannel(LAYOUT, 1, (down, up), place)
    return ours, DirectChannel(LAYOUT, 0, (up, down), place)


def exchange(device: str) -> Any:
    """More messages than there are buffers, each way; the last one is returned."""
    ours, theirs = ends(device)
    for number in range(9):
        states = torch.full((1, 2, 8), float(number), device=device)
        ours.send(MessageKind.OFFER, (number, 7), states)
        theirs.send(MessageKind.TOKEN, (number,), logit=number / 3)
        answer, message = ours.receive(), theirs.receive()
        assert (answer.kind, answer.ids, answer.logit) == (MessageKind.TOKEN, [number], number / 3)
        assert (message.kind, message.ids) == (MessageKind.OFFER, [number, 7])
        assert message.states.shape == (1, 2, 8)
        assert message.states.tolist() == states.tolist()
    return message


def test_messages_arrive_whole_and_in_order() -> None:
    exchange("cpu")


def test_states_stay_on_the_gpu_and_numbers_are_read_on_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with gpus(monkeypatch):
        assert isinstance(exchange("cuda:0").states, There)


def test_each_unit_gets_the_gpu_after_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    with gpus(monkeypatch, 4):
        spec = ModelSpec(name=FAR, device="cuda:2")
        assert [device_of(spec, at).device for at in (1, 2, 3)] == ["cuda:3", "cuda:0", "cuda:1"]
        assert own_gpus(spec, 4) == torch.distributed.is_nccl_available()
        assert not own_gpus(spec, 5)


def test_units_share_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = ModelSpec(name=FAR, device="cpu")
    assert device_of(cpu, 1) == cpu
    assert not own_gpus(cpu, 1)
    with gpus(monkeypatch, 1):
        spec = ModelSpec(name=FAR, device="cuda")
        assert device_of(spec, 1).device == "cuda:0"
        assert not own_gpus(spec, 2)


def test_units_that_talk_directly_give_greedys_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_group, "own_gpus", lambda spec, units: True)
    form = prepared(FAR, form="split", k=2)
    try:
        for case in list(cases(loaded(FAR).staged))[:6]:
            assert_exact(form, case, loaded(FAR).staged)
    finally:
        form.close()
