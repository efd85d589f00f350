"""Bugs planted in the loop and the engine: each must come out as a mismatch, never as a tie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from ppdbench.decoding import loop, verify
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Finish, Limits
from ppdbench.engine.cache import KVCache
from ppdbench.engine.masks import Step, StepMaker
from tests.decoding.judging import judged, truth
from tests.decoding.matrix import CAPACITY, Oracle, cases, decode_case, known, reference
from tests.helpers import staged

Patch = Callable[[pytest.MonkeyPatch], None]
Committed = tuple[int, Finish | None]


def position_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Drafted tokens are told to stand one place too far."""
    real = StepMaker.chain

    def chain(self: StepMaker, start: int, n_query: int) -> Step:
        step = real(self, start, n_query)
        if n_query > 1:
            step.placed = step.positions + 1
            step.contiguous = False
        return step

    patch.setattr(StepMaker, "chain", chain)


def tree_position_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Tree nodes are numbered in order instead of by depth."""
    real = StepMaker.tree

    def tree(
        self: StepMaker, start: int, parents: Sequence[int], last: int | None, joined: Any
    ) -> Step:
        step = real(self, start, parents, last, joined)
        step.placed = start + torch.arange(len(parents))[None].clamp(max=CAPACITY - 1 - start)
        return step

    patch.setattr(StepMaker, "tree", tree)


def cache_not_rolled_back(patch: pytest.MonkeyPatch) -> None:
    """Rejected rows stay."""
    patch.setattr(KVCache, "keep", lambda self, base, rows: None)


def wrong_rows_kept(patch: pytest.MonkeyPatch) -> None:
    """As many rows as were accepted, but the first ones of the tree."""
    real = KVCache.keep

    def keep(self: KVCache, base: int, rows: Sequence[int]) -> None:
        real(self, base, list(range(len(rows))))

    patch.setattr(KVCache, "keep", keep)


def eos_ignored_inside_a_draft(patch: pytest.MonkeyPatch) -> None:
    """Only the last committed token is looked at."""

    def commit(output: list[int], new: list[int], limits: Limits) -> Committed:
        output += new
        return len(new), limits.finish(output)

    patch.setattr(loop, "commit", commit)


def bonus_token_dropped(patch: pytest.MonkeyPatch) -> None:
    """Of a pass that accepted something, the model's own token is lost."""
    real = loop.commit

    def commit(output: list[int], new: list[int], limits: Limits) -> Committed:
        return real(output, new[:-1] or new, limits)

    patch.setattr(loop, "commit", commit)


def one_draft_too_many(patch: pytest.MonkeyPatch) -> None:
    """The first wrong draft is accepted."""
    real = verify.accept_greedy

    def accept(draft: Draft, predictions: Sequence[int]) -> verify.Outcome:
        outcome = real(draft, predictions)
        kept = min(len(outcome.path) + 1, len(draft.tokens))
        return verify.Outcome(tuple(range(kept)), predictions[kept])

    patch.setattr(loop, "accept_greedy", accept)


def a_mask_that_sees_siblings(patch: pytest.MonkeyPatch) -> None:
    """Every node sees all nodes before it."""
    real = StepMaker.tree

    def tree(
        self: StepMaker, start: int, parents: Sequence[int], last: int | None, joined: Any
    ) -> Step:
        step = real(self, start, parents, last, joined)
        assert step.visible is not None
        visible = step.visible.clone()  # steps share what it is a part of
        visible[:, :, start:] = torch.ones(len(parents), len(parents)).tril().bool()
        return replace(step, visible=visible)

    patch.setattr(StepMaker, "tree", tree)


CHAIN = [
    position_off_by_one,
    cache_not_rolled_back,
    eos_ignored_inside_a_draft,
    bonus_token_dropped,
    one_draft_too_many,
]
TREE = [
    tree_position_off_by_one,
    cache_not_rolled_back,
    wrong_rows_kept,
    eos_ignored_inside_a_draft,
    bonus_token_dropped,
    a_mask_that_sees_siblings,
]
PLANTED = [(bug, False) for bug in CHAIN] + [(bug, True) for bug in TREE]


def verdicts(tree: bool, name: str, plant: Patch | None) -> set[str]:
    """The verdicts over all cases, the bug in the method alone, as a new strategy would have it."""
    model = staged(name)
    found = set()
    for case in cases(model):
        greedy = reference(case, model)
        oracle = Oracle(model, 4, 2, tree)
        oracle.known = known(model, tuple(case.prompt))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(oracle, "start", lambda *_: None)
            if plant is not None:
                plant(patch)
            try:
                ours = decode_case(oracle, case, model)
            except (ValueError, RuntimeError, IndexError):  # ran out of rows or positions
                found.add("error")
                continue
        found.add(judged(model, truth(name), case.prompt, ours, greedy).verdict)
    return found


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_without_a_bug_everything_is_identical(tree: bool, name: str) -> None:
    assert verdicts(tree, name, None) == {"identical"}


@pytest.mark.parametrize(
    ("bug", "tree"), PLANTED, ids=[f"{b.__name__}-{'tree' if t else 'chain'}" for b, t in PLANTED]
)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_planted_bug_is_a_mismatch(name: str, bug: Patch, tree: bool) -> None:
    found = verdicts(tree, name, bug)
    assert "mismatch" in found
    assert "tie" not in found
