"""The loop with drafts of every quality: always right, never right, chains and trees."""

from __future__ import annotations

import random

import pytest

from ppdbench.decoding.decoder import Proposer
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.engine.session import Session
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import DraftError
from tests.decoding.matrix import Case, Oracle, assert_exact, cases, decode_case, free, reference
from tests.families import FAMILIES
from tests.helpers import VOCAB, staged

MODELS = ["llama", "mistral-window", "gemma2", "gemma3", "gpt2", "opt"]


@pytest.mark.parametrize("name", sorted(FAMILIES))
@pytest.mark.parametrize("tree", [False, True])
def test_drafts_of_every_quality_give_the_greedy_output(name: str, tree: bool) -> None:
    model = staged(name)
    for case in cases(model):
        for wrong_from in (0, 2, 4) if name in MODELS else (2,):
            assert_exact(Oracle(model, 4, wrong_from, tree), case, model)


def test_right_drafts_are_all_accepted_and_wrong_ones_never() -> None:
    model = staged("llama")
    case = next(cases(model))
    right = decode_case(Oracle(model, 3), case, model)
    assert right.accepted == (3, 3, 3, 3, 3, 2)
    assert right.proposed == (3, 3, 3, 3, 3, 2)
    wrong = decode_case(Oracle(model, 3, 0), case, model)
    assert set(wrong.accepted) == {0}
    assert len(wrong.accepted) == 23


def test_eos_inside_a_draft_ends_the_output_and_counts_as_accepted() -> None:
    model = staged("llama")
    for case in cases(model):
        if not case.name.startswith("eos"):
            continue
        for depth in (1, 2, 5, 9):
            ours = assert_exact(Oracle(model, depth), case, model)
            assert len(ours.output_ids) in {
                1 + sum(ours.accepted) + len(ours.accepted),
                sum(ours.accepted) + len(ours.accepted),
            }


@pytest.mark.parametrize("tree", [False, True])
def test_a_stop_string_inside_a_draft_ends_the_output_as_in_greedy(tree: bool) -> None:
    model = staged("llama")
    words = tokenizer(300, 64)  # ids below 96 are ASCII characters
    prompt = next(cases(model)).prompt
    text = words.decode(list(free(model, prompt, 20)))
    for start in (1, 4, 9):
        stop = text[start : start + 3]
        limits = Limits(24, stop=(stop,), tokenizer=words)
        case = Case(f"stop at {stop!r}", prompt, limits)
        for depth in (1, 4, 9):
            ours = assert_exact(Oracle(model, depth, tree=tree), case, model)
            assert ours.finish == "stop"


class Wild(Proposer):
    """Random trees with riders, of any depth, whatever the room."""

    rows = 24

    def __init__(self) -> None:
        self.draw = random.Random(0)

    def propose(self, session: Session, room: int) -> Draft:
        n = self.draw.randrange(1, 12)
        parents = [self.draw.randrange(-1, node) for node in range(n)]
        seen: set[tuple[int, int]] = set()
        nodes, kept = [], []
        for parent in parents:
            token = self.draw.randrange(3, VOCAB)
            if (parent, token) in seen:
                token = (token + 1) % VOCAB
            seen.add((parent, token))
            nodes.append(token)
            kept.append(parent)
        riders = self.draw.randrange(0, 8)
        nodes += [self.draw.randrange(3, VOCAB) for _ in range(riders)]
        kept += [self.draw.randrange(-1, n + i) for i in range(riders)]
        return Draft.tree(nodes, kept, riders=riders) if len(seen) == n else Draft.empty()


@pytest.mark.parametrize("name", MODELS)
def test_riders_and_random_trees_change_nothing(name: str) -> None:
    model = staged(name)
    for case in cases(model):
        assert_exact(Wild(), case, model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tree", [False, True])
def test_in_one_fixed_shape_outputs_are_the_same(name: str, tree: bool) -> None:
    model = staged(name)
    for case in cases(model):
        oracle = Oracle(model, 4, 2, tree)
        ours = decode_case(oracle, case, model, fixed_rows=oracle.rows)
        greedy = reference(case, model, fixed_rows=oracle.rows)
        assert ours.output_ids == greedy.output_ids == reference(case, model).output_ids


BAD = {
    "an id outside the vocabulary": (Draft.chain([5, VOCAB]), "draft token 1 is 96; use 0..95"),
    "a negative id": (Draft.chain([-1]), "draft token 0 is -1"),
    "no number": (Draft.chain(["a"]), "not a token id"),  # type: ignore[list-item]
    "twins": (Draft.tree([5, 5], [-1, -1]), "nodes 0 and 1 are the same continuation"),
    "a parent after its child": (Draft.tree([5, 6], [1, -1]), "node 0 names parent 1"),
    "missing parents": (Draft.tree([5, 6], [-1]), "1 parents for 2 draft tokens"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_an_impossible_draft_is_an_error_that_says_what_is_wrong(what: str) -> None:
    draft, message = BAD[what]

    class Bad(Proposer):
        rows = 4

        def propose(self, session: Session, room: int) -> Draft:
            return draft

    model = staged("llama")
    with pytest.raises(DraftError, match=message):
        decode_case(Bad(), next(cases(model)), model)


def test_an_empty_draft_is_a_plain_step() -> None:
    class Silent(Proposer):
        def propose(self, session: Session, room: int) -> Draft:
            return Draft.empty()

    model = staged("llama")
    for case in cases(model):
        ours = assert_exact(Silent(), case, model)
        assert set(ours.accepted) <= {0}
