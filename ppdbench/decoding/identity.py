"""Identity: is an output exactly what greedy decoding gives, and if not, was it rounding?

A pass over several rows may round differently from a pass over one, and then two tokens that
are as good as equally likely may change places. That is a tie, and it takes more than our own
word: the stock model, in a wider type and without any code of ours, must find the two tokens
the likeliest and closer together than its own rounding goes, and both of our passes, made once
more, must choose as they did and lie within the same bound of it. All else is a mismatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft, Insertion
from ppdbench.decoding.passes import run_pass
from ppdbench.decoding.rounding import Bound
from ppdbench.engine.logit_watch import LogitWatch

if TYPE_CHECKING:
    from ppdbench.decoding.decoded import Decoded
    from ppdbench.engine.session import Session
    from ppdbench.engine.truth import StockTruth

IdentityVerdict = Literal["identical", "tie", "mismatch"]

# The logits [vocab] that chose an output position when the passes were made once more, or None
# where the same passes chose otherwise.
Again = Callable[[int], "Tensor | None"]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and, where outputs differ, what it rests on.

    `position` is the first output token that differs, `margin` by how much greedy decoding
    preferred its token there to the other, `discrepancy` by how much more or less than that the
    method's passes did. `judged` holds what the stock model says, as runs store it.
    """

    verdict: IdentityVerdict
    position: int | None = None
    margin: float | None = None
    discrepancy: float | None = None
    judged: dict[str, Any] = field(default_factory=dict)


def first_difference(ours: Sequence[int], greedy: Sequence[int]) -> int | None:
    """The first position at which two outputs differ, a missing token included."""
    for position, (a, b) in enumerate(zip(ours, greedy, strict=False)):
        if a != b:
            return position
    return None if len(ours) == len(greedy) else min(len(ours), len(greedy))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Ways to find out why two outputs differ; asked only where they do.

    `one_row` gives the logits that chose greedy's token at a position, `as_run` those that chose
    the method's. `noise` is what is known already of the stock model's rounding.
    """

    one_row: Again
    as_run: Again
    truth: Callable[[], StockTruth]
    noise: float = 0.0


def judge(
    ours: Decoded,
    greedy: Decoded,
    prompt_ids: list[int],
    evidence: Evidence,
    *,
    rounding: bool = True,
) -> Judgement:
    """Token ids against token ids, up to and including EOS, both capped alike.

    `rounding` says whether the two could differ by it at all: not where every pass of both
    had the same shape.
    """
    position = first_difference(ours.output_ids, greedy.output_ids)
    if position is None:
        return Judgement("identical")
    if position == min(len(ours.output_ids), len(greedy.output_ids)):
        return Judgement("mismatch", position)
    pair = greedy.output_ids[position], ours.output_ids[position]
    single, several = evidence.one_row(position), evidence.as_run(position)
    if single is None or several is None:
        judged: dict[str, Any] = {"why": "passes made once more chose otherwise"}
        margin = None if single is None else _gap(single, pair)
        return Judgement("mismatch", position, margin, judged=judged)
    margin, own = _gap(single, pair), _gap(several, pair)
    prefix = [*prompt_ids, *greedy.output_ids[:position]]
    measured = evidence.truth().measure(prefix, len(prefix) - 1)
    stock = measured.logits[0].double()
    bound = Bound.of(
        evidence.truth().dtype,
        max(evidence.noise, float(measured.noise.max())),
        float(stock[list(pair)].abs().max()),
        float(stock.max() - stock.min()),
    )
    judged = {
        "by": f"stock {str(measured.logits.dtype).removeprefix('torch.')}",
        "bound": bound.value,
        "origin": bound.origin(),
        "margins": {"stock": _gap(stock, pair), "one_row": margin, "as_run": own},
    }
    why = _against(stock, single, several, pair, bound.value)
    if why is None and not rounding:
        why = "every pass had the same shape, so nothing rounds otherwise"
    verdict: IdentityVerdict = "tie" if why is None else "mismatch"
    judged |= {} if why is None else {"why": why}
    return Judgement(verdict, position, margin, abs(own - margin), judged)


def _against(
    stock: Tensor, single: Tensor, several: Tensor, pair: tuple[int, int], bound: float
) -> str | None:
    """Return the reason why this is no tie, or None if there is none."""
    margin = _gap(stock, pair)
    if abs(margin) > bound:
        return "the stock model prefers one of the two by more than rounding"
    if float(stock.max() - stock[list(pair)].min()) > bound:
        return "the stock model prefers another token to both by more than rounding"
    if abs(_gap(single, pair) - margin) > bound:
        return "our pass of one row is further from the stock model than rounding"
    if abs(_gap(several, pair) - margin) > bound:
        return "the method's pass is further from the stock model than rounding"
    return None


def _gap(logits: Tensor, pair: tuple[int, int]) -> float:
    """Return how much the first of two tokens is preferred."""
    return float(logits[pair[0]].double() - logits[pair[1]].double())


def reproduced(logits: Tensor | None, token: int) -> Tensor | None:
    """Logits [vocab] that chose `token`; None where they choose another one."""
    if logits is None or float(logits[token]) < float(logits.max()):
        return None
    return logits


@torch.inference_mode()
def one_row_logits(
    session: Session, prompt_ids: list[int], greedy: Decoded, position: int
) -> Tensor | None:
    """The logits [vocab] that chose greedy's token at `position`, one row per pass."""
    logits = _prefill(session, prompt_ids)
    for token in greedy.output_ids[:position]:
        logits = session.advance(session.ids([token]))
    return reproduced(logits[0, 0].float(), greedy.output_ids[position])


def as_run(
    run: Callable[[], Decoded], session: Session, ours: Decoded, position: int
) -> Tensor | None:
    """The logits [vocab] that chose output `position` when `run` decodes all of it once more.

    Its passes are then those that there were, whatever a method drafted and how. None where it
    gives another output, or its logits were made where `session` does not see them.
    """

    def run_watched(watch: LogitWatch) -> Decoded:
        session.watch = watch
        try:
            return run()
        finally:
            session.watch = None

    return as_watched(run_watched, ours, position)


def as_watched(
    run: Callable[[LogitWatch], Decoded | None], ours: Decoded, position: int
) -> Tensor | None:
    """The same where `run` hands the watch on to whatever decodes; None where that fails."""
    watch = LogitWatch((position,))
    again = run(watch)
    if again is None:
        return None
    wanted = ours.output_ids[: position + 1]
    if again.output_ids[: position + 1] != wanted:
        return None
    return reproduced(watch.logits.get(position), wanted[-1])


@torch.inference_mode()
def as_verified(session: Session, prompt_ids: list[int], ours: Decoded, position: int) -> Tensor:
    """The logits [vocab] that chose output `position`, from passes of the rows that ours had."""
    output = ours.output_ids
    first = _prefill(session, prompt_ids, ours.parts)
    if position == 0:
        return first[0, 0].float()
    done = 1  # output tokens chosen; the prefill chose the first
    for step in ours.steps:
        start = session.cached
        session.tokens.append(output[done - 1])
        nodes = step.rows - 1 - sum(n for _, n in step.inserted)
        kept = output[done : done + step.accepted]
        hidden = run_pass(session, _stand_in(kept, nodes, step.inserted, ours.trees))
        if position <= done + step.accepted:
            return session.logits(hidden[:, : 1 + nodes])[0, position - done].float()
        session.tokens += kept
        session.cache.truncate(start + 1 + step.accepted)
        done += 1 + step.accepted
    raise AssertionError("no step chose this position")


def _stand_in(
    kept: Sequence[int], nodes: int, inserted: Sequence[tuple[int, int]], tree: bool
) -> Draft:
    """A draft of the shape that was verified, of which `kept` was accepted.

    What was drafted and rejected is not known any more, and no other row depends on it.
    """
    tokens = (*kept, *[0] * (nodes - len(kept)))
    parents = (*range(-1, len(kept) - 1), *[-1] * (nodes - len(kept))) if tree else None
    insertions = tuple(
        Insertion(layer, partial(_repeated, n=n), ((),) * n, (0,) * n) for layer, n in inserted
    )
    return Draft(tokens, parents, insertions=insertions)


def _repeated(hidden: Tensor, n: int) -> Tensor:
    return hidden[:, :1].expand(-1, n, -1)


def _prefill(session: Session, prompt_ids: list[int], parts: Sequence[int] = ()) -> Tensor:
    """The prompt as a whole, or in the parts that it was run in: logits [1, 1, vocab]."""
    session.reset(prompt_ids)
    if len(parts) < 2:
        return session.prefill()
    at = 0
    for n in parts:
        hidden = session.forward(session.ids(prompt_ids[at : at + n]))
        at += n
    return session.logits(hidden[:, -1:])
