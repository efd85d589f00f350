"""Hybrid drafts: when a copy is drafted alone, when a part guesses, and outputs like greedy's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ppdbench.bench.choices import every_method
from ppdbench.decoding.decoder import Proposer, Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Verified
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.copies import Copied, Copies
from ppdbench.methods.hybrid import Hybrid, HybridProposer
from ppdbench.testing import assert_order_is_nothing, ends_inside_drafts
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case
from tests.helpers import staged, tokens
from tests.methods.eagle.made import random_drafter
from tests.methods.medusa.made import random_heads

REPEATING = tokens(6, 3) * 4
PARTS: dict[str, Callable[[StagedModel, Path], Proposer]] = {
    "medusa": random_heads,
    "eagle": lambda model, folder: random_drafter(model, 3, folder),
}


class Scripted(Proposer):
    """A part that always proposes the same, and counts how often it was asked and told."""

    trees = True
    rows = 4

    def __init__(self, draft: Draft) -> None:
        self.draft, self.asked = draft, 0
        self.told: list[Verified] = []

    def propose(self, session: Session, room: int) -> Draft:
        self.asked += 1
        return self.draft

    def learn(self, session: Session, verified: Verified) -> None:
        self.told.append(verified)


@pytest.fixture(scope="module")
def reference() -> Loaded:
    return load(ModelSpec(offline=True, device="cpu"))


def proposed(text: list[int], part: Proposer, room: int = 99, **options: int) -> Draft:
    session = Session(staged("llama"), CAPACITY)
    session.tokens = list(text)
    return HybridProposer(Hybrid(**options), part).propose(session, room)


# The output


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_the_output_is_greedy_decodings(name: str, part: str, tmp_path: Path) -> None:
    model = staged(name)
    for alone in (1, 2, 9):
        decoder = HybridProposer(Hybrid(alone=alone), PARTS[part](model, tmp_path))
        for case in cases(model):
            assert_exact(decoder, case, model)


@pytest.mark.parametrize("part", PARTS)
def test_in_one_fixed_shape_the_output_is_the_same(part: str, tmp_path: Path) -> None:
    model = staged("llama")
    decoder = HybridProposer(Hybrid(), PARTS[part](model, tmp_path))
    for case in cases(model):
        assert_exact(decoder, case, model, fixed_rows=decoder.rows)


@pytest.mark.parametrize("part", PARTS)
def test_the_order_of_examples_changes_nothing(part: str, tmp_path: Path) -> None:
    model = staged("llama")
    decoder = HybridProposer(Hybrid(), PARTS[part](model, tmp_path))
    repeating = Case("repeating", REPEATING, Limits(24))
    found = assert_order_is_nothing(decoder, [*list(cases(model))[:4], repeating], model)
    assert any(map(sum, found))


@pytest.mark.parametrize("part", PARTS)
def test_outputs_end_inside_what_was_accepted(part: str, reference: Loaded) -> None:
    decoder = METHODS.get("hybrid").build({"of": part}).prepare(Setup(reference, CAPACITY))
    text = reference.tokenizer("The old man walked slowly down to the river. He").input_ids
    assert ends_inside_drafts(decoder, [text], reference.staged) > 2


@pytest.mark.parametrize("part", PARTS)
def test_it_accepts_more_than_a_part_or_a_copy_alone(part: str, reference: Loaded) -> None:
    text = "One two three, one two three, one two three. The old man said: one two"
    ids = reference.tokenizer(text, add_special_tokens=False).input_ids
    case = Case("counting", ids, Limits(CAPACITY - len(ids)))

    def steps(method: str, **options: str) -> int:
        decoder = METHODS.get(method).build(options).prepare(Setup(reference, CAPACITY))
        return len(decode_case(decoder, case, reference.staged).step_ms)

    assert steps("hybrid", of=part) < min(steps(part), steps("prompt-lookup"))


# What is drafted


def test_where_nothing_was_said_before_the_part_guesses() -> None:
    guess = Draft.tree([7, 8], [-1, -1])
    assert proposed([10, 11, 12], part := Scripted(guess)) == guess
    assert part.asked == 1


def test_the_copy_of_a_longer_suffix_is_drafted_without_asking_the_part() -> None:
    part = Scripted(Draft.chain([7]))
    text = [10, 11, 12, 13, 14, 10, 11]
    assert proposed(text, part) == Draft.chain([12, 13, 14, 10, 11])
    assert proposed(text, part, max_draft=2) == Draft.chain([12, 13])
    assert proposed(text, part, room=1) == Draft.chain([12])
    assert part.asked == 0


def test_copies_of_a_shorter_suffix_join_the_parts_tree() -> None:
    part = Scripted(Draft.tree([12, 7, 13, 8], [-1, -1, 0, 1]))
    once = [10, 12, 13, 14, 9, 10]
    found = proposed(once, part)
    assert found == Draft.tree([12, 7, 13, 8, 14], [-1, -1, 0, 1, 2])
    assert part.asked == 1
    twice = [10, 15, 16, 17, 18, *once]
    both = Draft.tree([12, 7, 13, 8, 14, 15, 16, 17], [-1, -1, 0, 1, 2, -1, 5, 6])
    assert proposed(twice, part) == both
    assert proposed(twice, part, branches=1) == found
    assert proposed(twice, part, branches=0) == part.draft
    assert len(proposed(twice, part, branch_length=1)) == 5
    assert len(proposed(twice, part, room=2)) == 6
    longer = proposed([11, 10, 12, 13, 14, 9, 11, 10], part, alone=3)
    assert longer == found, "a suffix of two is short where three are asked for"


def test_what_is_verified_has_no_more_rows_than_was_said() -> None:
    part = Scripted(Draft.tree([7, 8, 9], [-1, -1, -1]))
    text = [10, *range(20, 30), 10, *range(30, 40), 10]
    assert proposed(text, part).rows == 4 + 2 * 3
    assert HybridProposer(Hybrid(), part).rows == 4 + 2 * 3
    assert proposed(text, part, alone=1, max_draft=11).rows == 12
    assert HybridProposer(Hybrid(max_draft=11), part).rows == 12


def test_the_part_learns_from_drafts_that_are_not_its_own() -> None:
    part = Scripted(Draft.empty())
    decoder = HybridProposer(Hybrid(), part)
    decode_case(decoder, Case("repeating", REPEATING, Limits(12)), staged("llama"))
    drafts = [len(verified.draft) for verified in part.told]
    assert any(drafts), "copies were drafted"
    assert len(drafts) > part.asked


def test_nothing_is_drawn_of_drafts_where_tokens_are(reference: Loaded) -> None:
    decoder = METHODS.get("hybrid").build({"of": "eagle"}).prepare(Setup(reference, CAPACITY))
    seen: list[Draft] = []
    propose = decoder.propose
    decoder.propose = lambda session, room: seen.append(draft := propose(session, room)) or draft
    session = Session(reference.staged, CAPACITY, spare=decoder.rows)
    text = reference.tokenizer("The old man walked slowly down to the river. He").input_ids
    chooser = Chooser(Target(kind="top-p", temperature=1.5), generator_for(0, "x"))
    decoder.decode(session, Request(text, Limits(24), CLOCK, chooser))
    assert seen
    assert all(draft.probabilities is None for draft in seen)


# Copies


def test_copies_of_the_longest_suffix_are_found() -> None:
    copies = Copies(3)
    text = [1, 2, 3, 4, 2, 3, 5, 1, 2, 3]
    assert copies.of(text) == Copied(3, [3])
    assert copies.of([*text, 4, 2, 3]) == Copied(3, [6])
    assert Copies(2).of(text) == Copied(2, [3, 6])
    assert Copies(3).of([1, 2, 3, 4]) is None
    copies.forget()
    assert copies.of([9, 9]) == Copied(1, [1])


def test_what_follows_copies_goes_on_differently() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 5, 6, 1, 2, 7, 1]
    copied = Copies(1).of(text)
    assert copied is not None
    assert copied.follows(text, 2) == [2, 7]
    assert copied.branches(text, 2, 3) == [[2, 7], [5, 6]]
    assert copied.branches(text, 2, 1) == [[2, 7]]
    assert copied.branches(text, 1, 0) == []


# Options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"of": "ppd"}, "hybrid: of='ppd' is not known; use medusa, eagle"),
        ({"alone": "0"}, "alone=0; use 1 or more"),
        ({"max_draft": "0"}, "max_draft=0; use 1 or more"),
        ({"branches": "-1"}, "branches=-1; use 0 or more"),
        ({"longest_suffix": "0"}, "longest_suffix=0; use 1 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        METHODS.get("hybrid").build(options)


def test_the_parts_own_options_are_passed_on(reference: Loaded) -> None:
    setup = Setup(reference, CAPACITY)
    small = METHODS.get("hybrid").build({"tree": "3"}).prepare(setup)
    large = METHODS.get("hybrid").build({"tree": "6"}).prepare(setup)
    assert (small.rows, large.rows) == (3 + 6, 6 + 6)
    assert small.used == {"addon": "reference", "tree": "3"}
    with pytest.raises(ConfigError, match="medusa: no add-on for"):
        METHODS.get("hybrid").build({}).prepare(
            Setup(load(ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300")), 32)
        )


def test_among_all_methods_it_is_left_out_where_there_is_no_part() -> None:
    assert "hybrid" in {choice.name for choice in every_method("reference")[0]}
    chosen, lacking = every_method("synthetic:llama-20m")
    assert "hybrid" not in {choice.name for choice in chosen}
    assert "hybrid: without medusa for synthetic:llama-20m" in lacking
