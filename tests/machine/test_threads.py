"""Torch has its threads, but for the while in which they are lent to kernels of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ppdbench.decoding.decoder import Proposer, Request
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import WholeModel, speculative, token_by_token
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from ppdbench.machine.threads import threads
from tests.families import stock_model
from tests.helpers import staged, tokens

ALL = 2
Seen = set[tuple[int, int]]


@pytest.fixture(autouse=True)
def _all() -> Iterator[None]:
    """Two threads, whatever this machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(ALL)
    yield
    assert torch.get_num_threads() == ALL, "threads were not returned"
    torch.set_num_threads(before)


def held() -> tuple[int, int]:
    """Threads of torch, and of kernels of our own."""
    return torch.get_num_threads(), threads.count


def test_lent_threads_come_back_also_behind_an_error() -> None:
    assert held() == (ALL, ALL)
    with pytest.raises(ZeroDivisionError), threads.lent():
        assert held() == (1, ALL)
        raise ZeroDivisionError
    assert held() == (ALL, ALL)


def test_torch_has_them_back_for_a_pass_of_its_own() -> None:
    with threads.returned():
        assert held() == (ALL, ALL)
    with threads.lent():
        with threads.returned():
            assert held() == (ALL, ALL)
        assert held() == (1, ALL)


def test_loops_that_take_turns_may_end_in_any_order() -> None:
    @contextmanager
    def loop() -> Iterator[None]:
        with threads.lent():
            yield

    first, second = loop(), loop()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert held() == (1, ALL)
    second.__exit__(None, None, None)


# Loops


class Looking(Proposer):
    """Guesses anything, and notes who has threads meanwhile."""

    def __init__(self) -> None:
        self.rows = 3
        self.seen: Seen = set()

    def propose(self, session: Session, room: int) -> Draft:
        self.seen.add(held())
        return Draft.chain([3, 4])


def decoding(model: StagedModel) -> Seen:
    """Who has threads between the passes of both loops."""
    session, looking = Session(model, 64), Looking()
    request = Request(tokens(5), Limits(8), Clock(torch.device("cpu")))
    speculative(session, looking, request)
    whole = WholeModel(session)
    one_by_one = whole.token

    def token(given: int) -> object:
        looking.seen.add(held())
        return one_by_one(given)

    whole.token = token  # type: ignore[method-assign, assignment]
    token_by_token(session, whole, request)
    return looking.seen


def test_loops_over_flat_passes_lend_the_threads_of_torch() -> None:
    model = StagedModel(stock_model("llama"), passes=FLAT)
    assert model.flat is not None
    assert decoding(model) == {(1, ALL)}


def test_loops_over_passes_of_torch_leave_them_there() -> None:
    assert decoding(staged("llama")) == {(ALL, ALL)}


def test_a_model_whose_passes_are_torchs_has_its_threads_within_such_a_loop() -> None:
    model, seen = staged("gpt2"), set[tuple[int, int]]()
    parts = model.adapter.layers[0], model.adapter.head
    hooks = [part.register_forward_hook(lambda *_: seen.add(held())) for part in parts]
    with threads.lent(), torch.inference_mode():
        session = Session(model, 64)
        session.reset(tokens(5))
        session.read(session.run_prompt())
        assert held() == (1, ALL)
    for hook in hooks:
        hook.remove()
    assert seen == {(ALL, ALL)}
