"""Memory of a session is free as soon as nobody has it: no pass keeps what it ran over."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from ppdbench.engine.flat.choice import EAGER, FLAT
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.families import stock_model
from tests.helpers import tokens

CAPACITY = 32


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def chain(session: Session) -> None:
    session.run_and_read([1])
    session.run_and_read([2, 3])


def tree(session: Session) -> None:
    session.run_and_read([1, 2, 3], session.tree([-1, 0, 0]))


def elsewhere(session: Session) -> None:
    step = session.tree([-1, 0, 0])
    session.run_and_read([1, 2, 3], step)
    step.on(torch.device("meta")).on(torch.device("meta"))


@pytest.mark.parametrize("fixed_rows", [None, 4])
@pytest.mark.parametrize("passes", [FLAT, EAGER])
@pytest.mark.parametrize("family", ["llama", "mistral"])  # with a narrow window, too
@pytest.mark.parametrize("run", [chain, tree, elsewhere])
def test_a_cache_is_freed_with_its_session(
    run: Callable[[Session], None], family: str, passes: str, fixed_rows: int | None
) -> None:
    model = StagedModel(stock_model(family), passes=passes)
    session = Session(model, CAPACITY, spare=4, fixed_rows=fixed_rows)
    session.reset(tokens(9))
    with torch.inference_mode():
        session.prefill()
        run(session)
    parts = [weakref.ref(part) for part in (session.cache, session.steps)]
    assert all(part() is not None for part in parts)
    del session
    assert [part() for part in parts] == [None, None]
