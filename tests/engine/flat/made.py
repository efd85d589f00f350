"""Flat models and their outputs, as tests compare them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.families import stock_model
from tests.helpers import CAPACITY, tokens

DTYPES = (torch.float32, torch.bfloat16)


def made(name: str, dtype: torch.dtype = torch.float32, **overrides: Any) -> StagedModel:
    model = StagedModel(stock_model(name, **overrides).to(dtype), passes=FLAT)
    assert model.flat is not None, model.path.why
    return model


@torch.inference_mode()
def outputs(model: StagedModel) -> list[Tensor]:
    """Logits of a prefill, of single rows, of chains and of a tree, kept and gone on from."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(tokens(11))
    found = [session.prefill(), session.advance(session.ids([5]))]
    for n in (2, 3):
        found.append(session.logits(session.forward(session.ids(tokens(n, n)))))
        session.cache.truncate(session.cached - 1)
    start = session.cached
    tree = session.tree((-1, 0, 0, 1))
    hidden = session.run(session.embed(session.ids(tokens(4, 7)), tree), 0, model.n_layers, tree)
    found.append(session.logits(hidden))
    session.cache.keep(start, [0, 2])
    found.append(session.advance(session.ids([5])))
    return found
