"""Two units: unit B goes on by itself, runs flat where A does, and holds no weight twice."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import pytest
import torch

from benchmarks.halves import added_bytes
from ppdbench.decoding.limits import Limits
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.passes import FlatLayers
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.methods.ppd.channel import Message, MessageKind
from ppdbench.methods.ppd.split import PROMPT_ROWS, RemoteUpperHalf, _next_state, _prompt
from ppdbench.testing import MODELS, Case, assert_exact, decode_case, tokens
from tests import flat_ops
from tests.methods.ppd.made import FAR, begun, check_everything, prepared


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_unit_b_goes_on_by_itself_at_an_exit_in_the_middle(k: int) -> None:
    form = prepared(MODELS[1], form="split", k=k, patience=20.0)
    try:
        matches = check_everything(form, MODELS[1])
    finally:
        form.close()
    assert 0.3 < sum(matches) / len(matches) <= 1


def test_a_unit_that_is_a_copy_runs_flat_where_its_starter_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flat_ops.stand_in(monkeypatch)
    here, ran = os.getpid(), multiprocessing.Array("b", 2)  # in this process, in the other
    real = FlatLayers.run

    def noted(layers: FlatLayers, *given: Any) -> torch.Tensor | None:
        ran[os.getpid() != here] = 1
        return real(layers, *given)

    monkeypatch.setattr(FlatLayers, "run", noted)
    model = load(ModelSpec(name=FAR, device="cpu"), passes=FLAT)
    form = begun(model, form="split", k=3, exit_after=3, patience=20.0)
    try:
        ran[:] = [0, 0]
        case = Case("flat", tokens(9, 0, 300), Limits(20))
        decode_case(form, case, model.staged)
        assert ran[:] == [1, 1]
        assert_exact(form, case, model.staged)
    finally:
        form.close()


@pytest.mark.skipif(sys.platform != "linux", reason="processes share weights on Linux")
def test_the_weights_of_two_units_are_in_memory_once() -> None:
    model = load(ModelSpec(name="synthetic:layers=12,hidden=512", device="cpu"))
    # A unit with its own half would add 0.5 of them. What is left is Python's own: the same for any
    # model, more in a process that has imported and run much.
    assert added_bytes(model, k=1) < 0.45 * model.staged.weight_bytes()


def message(kind: MessageKind, *ids: int, rows: int = 0) -> Message:
    return Message(kind, list(ids), torch.arange(rows * 2.0).reshape(1, rows, 2), 0.0)


class Inbox:
    """A channel that hands out these messages."""

    def __init__(self, *messages: Message) -> None:
        self.left = [*messages]

    def receive(self) -> Message:
        return self.left.pop(0)


def test_the_row_of_an_offered_token_is_taken_and_others_are_waited_for() -> None:
    offer = message(MessageKind.OFFER, 5, 9, rows=2)
    inbox: Any = Inbox(offer)
    found = _next_state(inbox, 9)
    assert found is not None
    assert found.tolist() == offer.states[:, 1:].tolist()
    sent = message(MessageKind.TAKE, rows=1)
    inbox = Inbox(offer, sent)
    assert _next_state(inbox, 7) is sent.states
    assert inbox.left == []
    ended: Any = Inbox(offer, message(MessageKind.END))
    assert _next_state(ended, 7) is None


def test_a_prompt_is_put_together_from_its_messages() -> None:
    sent: list[tuple[MessageKind, tuple[int, ...], torch.Tensor]] = []

    class Out:
        def send(self, kind: MessageKind, ids: Any, states: torch.Tensor) -> None:
            sent.append((kind, tuple(ids), states.clone()))

    class Upper:
        rows = 0

        def prompt(self, hidden: torch.Tensor, *, whole: bool) -> torch.Tensor:
            self.rows += hidden.shape[1]
            self.seen = hidden, whole
            return hidden

    hidden = torch.randn(1, 2 * PROMPT_ROWS + 3, 4)
    unused: Any = None
    out: Any = Out()
    RemoteUpperHalf(out, unused, unused).prompt(hidden, whole=True)
    assert [states.shape[1] for _, _, states in sent] == [PROMPT_ROWS, PROMPT_ROWS, 3]
    inbox: Any = Inbox(*(Message(kind, list(ids), states, 0.0) for kind, ids, states in sent))
    upper: Any = Upper()
    assert torch.equal(_prompt(upper, hidden.shape[1], inbox), hidden)
    assert upper.seen[1] is True
