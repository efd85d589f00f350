"""The decoding loop of Predictive Pipelined Decoding, one for every form it comes in.

Source: "Predictive Pipelined Decoding: A Compute-Latency Trade-off for Exact LLM Decoding",
algorithm 2. Every token is chosen from the last layer's logits, so that outputs are those
of greedy decoding whatever was guessed; a right guess only means that the next token's first
layers are done already.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ppdbench.decoding.decoded import Decoded, Pipelined, StepRecord
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.loop import refuse_nan
from ppdbench.methods.ppd.log import UnitLog, UnitReport
from ppdbench.methods.ppd.units import Candidates, LowerLayers, UpperLayers, prompt_pieces


class UpperHalf(Protocol):
    """The layers from the exit on, wherever they run."""

    def prompt(self, hidden: Tensor, *, whole: bool) -> None:
        """The next rows of the prompt."""
        ...

    def offer(self, ahead: Candidates) -> None:
        """Candidates that need nothing more; the right one is taken without asking again."""
        ...

    def take(self, hidden: Tensor) -> None:
        """The row of the newest token."""
        ...

    def answered(self) -> bool:
        """True if the token after the newest row is known here already."""
        ...

    def token(self) -> tuple[int, float]:
        """The token after the newest row, and the largest logit."""
        ...

    def end(self) -> UnitReport:
        """End the output, and report on it."""
        ...


class LocalUpperHalf:
    """The upper half in this process: it runs when its token is asked for.

    It shares the lower half's log, whose events the lower half reports.
    """

    def __init__(self, upper: UpperLayers, log: UnitLog) -> None:
        self._upper, self._log = upper, log
        self._prompt: Tensor | None = None
        self._row: Tensor | None = None
        self._offered: Candidates | None = None
        self._count = 0

    def prompt(self, hidden: Tensor, *, whole: bool) -> None:
        self._prompt = self._upper.prompt(hidden, whole=whole)

    def offer(self, ahead: Candidates) -> None:
        self._offered = ahead

    def take(self, hidden: Tensor) -> None:
        self._row = hidden

    def answered(self) -> bool:
        return False

    def token(self) -> tuple[int, float]:
        began = time.perf_counter()
        self._count += 1
        if self._row is None:
            assert self._prompt is not None
            token, logit = self._upper.choose(self._prompt)
        else:
            token, logit = self._upper.token(self._row)
        self._log.note("finish", self._count, began)
        if self._offered is not None and (row := self._offered.row(token)) is not None:
            self._row = self._offered.state(row)
        return token, logit

    def end(self) -> UnitReport:
        return UnitReport()


@torch.inference_mode()
def decode_pipelined(lower: LowerLayers, upper: UpperHalf, request: Request) -> Decoded:
    """Decode one output with both halves."""
    session, limits, clock = lower.session, request.limits, request.clock
    session.reset(request.prompt)
    whole = session.fixed_rows is not None
    parts = [request.prompt] if whole else prompt_pieces(request.prompt)
    output: list[int] = []
    matches: list[bool] = []
    times: list[float] = []
    peaks: list[float] = []
    clock.synchronize()
    began = since = clock.now()
    for part in parts:
        newest = lower.prompt(part, whole=len(parts) == 1)
        upper.prompt(newest, whole=len(parts) == 1)
    newest = newest[:, -1:]
    words = lower.candidates(newest, 1)
    while True:
        number = len(output) + 1
        ahead = lower.look_ahead(words, number)
        if lower.offers:
            upper.offer(ahead)
            # While the token is on its way; once it is here, for the right candidate alone.
            if not upper.answered():
                lower.read_ahead(ahead, number + 1)
        token, peak = upper.token()
        now = clock.now()
        times.append(1e3 * (now - since))
        since = now
        output.append(token)
        peaks.append(peak)
        session.tokens.append(token)
        hit = ahead.row(token) is not None
        matches.append(hit)
        # The other half first: whether the output ends here is seen while it works.
        newest = lower.follow(ahead, token, number)
        if not (hit and lower.offers):
            upper.take(newest)
        if (finish := limits.finish(output)) is not None:
            break
        words = lower.next_candidates(ahead, token, newest, number + 1)
    closing = clock.now()
    accounts = lower.end(), upper.end()
    aside_ms = 1e3 * (clock.now() - closing)
    refuse_nan(session, {place: [peak] for place, peak in enumerate(peaks, start=1)})
    return Decoded(
        tuple(output),
        prefill_ms=times[0],
        steps=tuple(StepRecord(ms, rows=lower.widest) for ms in times[1:]),
        finish=finish,
        trees=lower.branches,
        parts=tuple(map(len, parts)),
        pipelined=_record(matches, accounts, began),
        aside_ms=aside_ms,
    )


def _record(matches: list[bool], accounts: Sequence[UnitReport], began: float) -> Pipelined:
    """Sum up the units' work, times counted from the beginning of the output."""
    events = [event for account in accounts for event in account.events]
    return Pipelined(
        tuple(matches),
        1e3 * sum(account.communication_s for account in accounts),
        tuple(
            (unit, what, token, 1e3 * (start - began), 1e3 * (end - began))
            for unit, what, token, start, end in sorted(events, key=lambda event: event[3])
        ),
    )
