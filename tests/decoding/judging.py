"""Judging outputs of tests as a run does: by passes made again, and by the stock model."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request
from ppdbench.decoding.identity import (
    Evidence,
    Judgement,
    as_run,
    as_verified,
    judge,
    one_row_logits,
)
from ppdbench.decoding.limits import Limits
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.truth import StockTruth
from tests.decoding.matrix import CAPACITY, CLOCK
from tests.families import stock_model


@functools.cache
def truth(name: str, dtype: torch.dtype = torch.float32) -> StockTruth:
    """The stock model of a family."""
    return StockTruth(stock_model(name).to(dtype))


def judged(
    model: StagedModel,
    stock: StockTruth,
    prompt: Sequence[int],
    ours: Decoded,
    greedy: Decoded,
    decoder: Decoder | None = None,
    limits: Limits | None = None,
    *,
    rounding: bool = True,
) -> Judgement:
    """The verdict; without a decoder, passes of the method's shapes are made again."""
    ids, spare = list(prompt), decoder.rows if decoder else 16
    session = Session(model, CAPACITY, spare=spare)
    again = functools.partial(as_verified, session, ids, ours)
    if decoder is not None:
        assert limits is not None
        run = functools.partial(decoder.decode, session, Request(ids, limits, CLOCK))
        again = functools.partial(as_run, run, session, ours)  # type: ignore[assignment]
    evidence = Evidence(
        one_row=functools.partial(one_row_logits, session, ids, greedy),
        as_run=again,
        truth=lambda: stock,
    )
    return judge(ours, greedy, ids, evidence, rounding=rounding)
