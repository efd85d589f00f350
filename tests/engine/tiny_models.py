"""Tiny models of families whose layers are more than attention and an MLP; tests share them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from tests.helpers import tokens

PROMPT = tokens(19)  # longer than the window
CAPACITY = 64


@cache
def stock(family: str) -> Any:
    """The stock model; whoever changes it takes a copy."""
    return tiny(family)


@cache
def staged(family: str) -> StagedModel:
    """The engine's view of the same weights."""
    return StagedModel(copy.deepcopy(stock(family)))


def whole_pass(model: Any, text: list[int], n: int) -> Tensor:
    """The stock model's logits of the last `n` tokens of a text."""
    logits: Tensor = model(torch.tensor([text]), use_cache=False).logits
    return logits[:, -n:]


def prefilled(model: StagedModel, text: list[int] = PROMPT) -> Session:
    """A session that has run a text, with room for trees."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(text)
    session.prefill()
    return session


def forward(session: Session, rows: list[int]) -> Tensor:
    """Logits of a pass over these tokens [1, row, vocab]."""
    return session.logits(session.forward(session.ids(rows)))


def assert_as_near_in_half(stock: Any, model: StagedModel, text: list[int]) -> None:
    """Our logits are as near as those of a stock model in half precision to what is true."""
    session = Session(model, len(text))
    session.reset(text)
    with torch.inference_mode():
        ours = session.logits(session.forward(session.ids(text))).float()
        theirs = stock(torch.tensor([text])).logits.float()
        true = copy.deepcopy(stock).float()(torch.tensor([text])).logits
    assert_as_near(ours, theirs, true)


def assert_as_near(ours: Tensor, theirs: Tensor, true: Tensor) -> None:
    """What rounding has made of ours lies no further from what is true than that of others."""
    assert (ours - true).norm() < 1.25 * (theirs - true).norm()


def refuse_rows_of_another_process(model: StagedModel) -> None:
    """The upper layers of four are refused where those that hold their rows run elsewhere."""
    session = Session(model, CAPACITY)
    session.cache, _ = model.new_cache(CAPACITY, layers=range(2, 4))
    step = session.steps.prefill(3)
    rows = session.embed(session.ids([5, 6, 7]), step)
    with pytest.raises(UnsupportedModel, match="layer 2 looks at the keys and values of layer 0"):
        session.run(rows, 2, 4, step)
