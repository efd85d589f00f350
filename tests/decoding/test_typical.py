"""Typical acceptance: its threshold, its paths, and what it has in common with greedy's."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.draft import Draft
from ppdbench.decoding.typical import Typical
from ppdbench.decoding.verify import Outcome, accept_greedy
from tests.helpers import tokens

VOCAB = 96
PARENTS = (-1, -1, 0, 0, 2, 1, 4, 3)


def accepted(draft: Draft, logits: Tensor, epsilon: float) -> Outcome:
    return Typical(epsilon)(draft, logits, logits.argmax(-1).tolist())


def drawn(seed: int, scale: float = 3.0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return scale * torch.randn(1 + len(PARENTS), VOCAB, generator=draw)


def by_hand(draft: Draft, logits: Tensor, epsilon: float) -> tuple[int, ...]:
    """Every path, token by token, in double precision."""
    parents = draft.parents
    assert parents is not None
    best: tuple[int, float, tuple[int, ...]] = (0, 0.0, ())
    for node in range(draft.proposed):
        path, at = [node], parents[node]
        while at >= 0:
            path.insert(0, at)
            at = parents[at]
        score = 0.0
        for place in path:
            p = torch.softmax(logits[parents[place] + 1].double(), -1)
            entropy = -float((p * p.log()).sum())
            likely = float(p[draft.tokens[place]])
            if likely <= min(epsilon, math.sqrt(epsilon) * math.exp(-entropy)):
                break
            score += math.log(likely)
        else:
            best = max(best, (len(path), score, tuple(path)))
    return best[2]


@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.1, 0.5, 0.99])
def test_the_longest_path_is_kept_whose_tokens_all_pass(epsilon: float) -> None:
    lengths = set()
    for seed in range(40):
        logits = drawn(seed)
        likely = logits.topk(12).indices
        rows = [parent + 1 for parent in PARENTS]
        picked = [int(likely[row, (3 * i + seed) % 12]) for i, row in enumerate(rows)]
        draft = Draft.tree(picked, PARENTS, riders=seed % 3)
        found = accepted(draft, logits, epsilon)
        assert found.path == by_hand(draft, logits, epsilon)
        after = found.path[-1] + 1 if found.path else 0
        assert found.token == int(logits[after].argmax())
        lengths.add(len(found.path))
    assert len(lengths) > 1 or epsilon > 0.4


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 0.9, 0.999])
def test_no_fewer_tokens_are_kept_than_by_greedy_verification(epsilon: float) -> None:
    for seed in range(40):
        logits = drawn(seed, scale=0.01 if seed % 2 else 3.0)
        best = logits.argmax(-1).tolist()
        picked = [best[parent + 1] if i % 3 else 5 for i, parent in enumerate(PARENTS)]
        picked[1] = (picked[0] + 1) % VOCAB
        draft = Draft.tree(picked, PARENTS)
        greedy = accept_greedy(draft, best)
        assert len(accepted(draft, logits, epsilon).path) >= len(greedy.path)


def test_a_chain_ends_at_its_first_unlikely_token() -> None:
    logits = torch.zeros(4, VOCAB)
    for row, token in enumerate([7, 8, 9]):
        logits[row, token] = 20.0
    assert accepted(Draft.chain([7, 8, 5]), logits, 0.1).path == (0, 1)
    assert accepted(Draft.chain([6, 8, 9]), logits, 0.1) == Outcome((), 7)


def test_an_unsure_model_takes_what_a_sure_one_refuses() -> None:
    sure, unsure = torch.zeros(2, VOCAB), torch.zeros(2, VOCAB)
    sure[0, 7], unsure[0, 7] = 12.0, 1.0
    draft = Draft.chain([8])
    assert accepted(draft, sure, 0.1).path == ()
    assert accepted(draft, unsure, 0.1).path == (0,)


def test_no_draft_leaves_the_models_own_token() -> None:
    logits = drawn(1)[:1]
    assert accepted(Draft.empty(), logits, 0.1) == Outcome((), int(logits.argmax()))


def test_what_only_rides_along_is_never_kept() -> None:
    logits = torch.zeros(4, VOCAB)
    draft = Draft.tree(tokens(3), (-1, 0, 1), riders=2)
    assert accepted(draft, logits, 0.5).path == (0,)
