"""Whether an output is exactly what greedy decoding gives, and if not, whether rounding did it.

A pass over several rows may round differently from a pass over one. Where two outputs part,
both kinds of pass are made once more over the same tokens, and what they differ by is
measured: only a choice closer than that may be a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft, Insertion
from ppdbench.decoding.passes import run_pass

if TYPE_CHECKING:
    from ppdbench.decoding.loop import Decoded
    from ppdbench.engine.session import Session

Verdict = Literal["identical", "tie", "mismatch"]

# The logits [vocab] that chose an output position, from passes shaped as they were.
Replay = Callable[["Session", list[int], "Decoded", int], Tensor]


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and, where outputs differ, what it rests on.

    `position` is the first output token that differs, `margin` by how much greedy decoding
    preferred its token there, `discrepancy` by how much the two kinds of pass move any two
    logits apart on that prefix.
    """

    verdict: Verdict
    position: int | None = None
    margin: float | None = None
    discrepancy: float | None = None


def first_difference(ours: Sequence[int], greedy: Sequence[int]) -> int | None:
    """The first position at which two outputs differ, a missing token included."""
    for position, (a, b) in enumerate(zip(ours, greedy, strict=False)):
        if a != b:
            return position
    return None if len(ours) == len(greedy) else min(len(ours), len(greedy))


def judge(
    ours: Decoded,
    greedy: Decoded,
    prompt_ids: list[int],
    session: Session,
    *,
    rounding: bool,
    replay: Replay | None = None,
) -> Judgement:
    """Token ids against token ids, up to and including EOS, both capped alike.

    `rounding` says whether the two could differ by it at all: not where every pass of both
    had the same shape. `replay` repeats the passes of `ours`, where they were not the session's.
    """
    position = first_difference(ours.output_ids, greedy.output_ids)
    if position is None:
        return Judgement("identical")
    if position == min(len(ours.output_ids), len(greedy.output_ids)):
        return Judgement("mismatch", position)
    single = _one_by_one(session, prompt_ids, ours.output_ids[:position])
    several = (replay or as_verified)(session, prompt_ids, ours, position)
    theirs, own = greedy.output_ids[position], ours.output_ids[position]
    margin = float(single[theirs] - single[own])
    moved = several - single
    discrepancy = float(moved.max() - moved.min())
    verdict: Verdict = "tie" if rounding and abs(margin) <= discrepancy else "mismatch"
    return Judgement(verdict, position, margin, discrepancy)


@torch.inference_mode()
def _one_by_one(session: Session, prompt_ids: list[int], output: Sequence[int]) -> Tensor:
    """The logits [vocab] after `output`, one row per pass."""
    logits = _prefill(session, prompt_ids)
    for token in output:
        logits = session.advance(session.ids([token]))
    return logits[0, 0].float()


@torch.inference_mode()
def as_verified(session: Session, prompt_ids: list[int], ours: Decoded, position: int) -> Tensor:
    """The logits [vocab] that chose output `position`, from passes of the rows that ours had."""
    output = ours.output_ids
    first = _prefill(session, prompt_ids, ours.parts)
    if position == 0:
        return first[0, 0].float()
    done = 1  # output tokens chosen; the prefill chose the first
    joined = ours.inserted or ((),) * len(ours.rows)
    for rows, inserted, accepted in zip(ours.rows, joined, ours.accepted, strict=True):
        start = session.cached
        session.tokens.append(output[done - 1])
        nodes = rows - 1 - sum(n for _, n in inserted)
        kept = output[done : done + accepted]
        hidden = run_pass(session, _stand_in(kept, nodes, inserted, ours.trees))
        if position <= done + accepted:
            return session.logits(hidden[:, : 1 + nodes])[0, position - done].float()
        session.tokens += kept
        session.cache.truncate(start + 1 + accepted)
        done += 1 + accepted
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
