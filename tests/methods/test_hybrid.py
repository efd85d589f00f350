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
from ppdbench.methods.copies import Copies, Copy
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


def test_the_copy_of_a_shorter_suffix_joins_the_parts_tree() -> None:
    part = Scripted(Draft.tree([12, 7, 13, 8], [-1, -1, 0, 1]))
    found = proposed([10, 12, 13, 14, 9, 10], part, beside=3)
    assert found == Draft.tree([12, 7, 13, 8, 14], [-1, -1, 0, 1, 2])
    assert part.asked == 1
    found = proposed([11, 10, 12, 13, 14, 9, 11, 10], part, beside=3, alone=3)
    assert len(found) == 5, "a suffix of two is short where three are asked for"


def test_what_is_verified_has_no_more_rows_than_was_said() -> None:
    part = Scripted(Draft.tree([7, 8, 9], [-1, -1, -1]))
    text = [10, *range(20, 30), 10]
    assert proposed(text, part, beside=5).rows == HybridProposer(Hybrid(beside=5), part).rows == 9
    alone = proposed(text, part, alone=1, max_draft=9, beside=5)
    assert alone.rows == HybridProposer(Hybrid(max_draft=9, beside=5), part).rows == 10


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


def test_the_latest_copy_of_the_longest_suffix_is_found() -> None:
    copies = Copies(3)
    text = [1, 2, 3, 4, 2, 3, 5, 1, 2, 3]
    assert copies.latest(text) == Copy(3, 3)
    assert copies.latest([*text, 4, 2, 3]) == Copy(3, 6)
    assert Copies(2).latest(text) == Copy(2, 6)
    assert Copies(3).latest([1, 2, 3, 4]) is None
    copies.forget()
    assert copies.latest([9, 9]) == Copy(1, 1)


# Options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"of": "ppd"}, "hybrid: of='ppd' is not known; use medusa, eagle"),
        ({"alone": "0"}, "alone=0; use 1 or more"),
        ({"max_draft": "0"}, "max_draft=0; use 1 or more"),
        ({"beside": "-1"}, "beside=-1; use 0 or more"),
        ({"longest_suffix": "0"}, "longest_suffix=0; use 1 or more"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        METHODS.get("hybrid").build(options)


def test_the_parts_own_options_are_passed_on(reference: Loaded, tmp_path: Path) -> None:
    setup = Setup(reference, CAPACITY)
    small = METHODS.get("hybrid").build({"tree": "3"}).prepare(setup)
    large = METHODS.get("hybrid").build({"tree": "6"}).prepare(setup)
    assert (small.rows, large.rows) == (9, 10), "9 rows of a copy alone, or 4 beside the tree"
    assert small.used == {"addon": "reference", "tree": "3"}
    with pytest.raises(ConfigError, match="medusa: no add-on for"):
        METHODS.get("hybrid").build({}).prepare(
            Setup(load(ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300")), 32)
        )


def test_among_all_methods_it_is_left_out_where_there_is_no_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "hybrid" in {choice.name for choice in every_method("reference")[0]}
    chosen, lacking = every_method("synthetic:llama-20m")
    assert "hybrid" not in {choice.name for choice in chosen}
    assert "hybrid: without medusa for synthetic:llama-20m" in lacking
