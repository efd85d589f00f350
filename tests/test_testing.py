"""The proof for authors of methods: it passes what is greedy's, and fails whatever is not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.methods import METHODS
from ppdbench.testing import (
    CAPACITY,
    MODELS,
    Case,
    assert_exact,
    assert_exact_in_batches,
    assert_order_is_nothing,
    cases,
    ends_inside_drafts,
    exactness_tests,
    reference,
)
from tests.decoding.matrix import Oracle
from tests.helpers import staged, tokens

CASE = Case("plain", tokens(9), Limits(12))


class Spoiled(Decoder):
    """A sound decoder whose outputs are changed afterwards."""

    def __init__(self, sound: Decoder, **changes: Any) -> None:
        self.sound, self.changes, self.rows = sound, changes, sound.rows

    def decode(self, session: Session, request: Request) -> Decoded:
        found = self.sound.decode(session, request)
        return dataclasses.replace(found, **{n: new(found) for n, new in self.changes.items()})


def another_last(found: Decoded) -> tuple[int, ...]:
    return (*found.output_ids[:-1], found.output_ids[-1] ^ 1)


def one_row_more(found: Decoded) -> tuple[Any, ...]:
    return tuple(dataclasses.replace(step, rows=99) for step in found.steps)


def more_kept_than_drafted(found: Decoded) -> tuple[Any, ...]:
    first = found.steps[0]
    return (dataclasses.replace(first, accepted=first.proposed + 1), *found.steps[1:])


def test_what_is_greedys_passes() -> None:
    assert_exact(Oracle(staged("llama"), 3), CASE, staged("llama"))


@pytest.mark.parametrize(
    "changes",
    [
        {"output_ids": another_last},
        {"output_ids": lambda found: found.output_ids[:-1]},
        {"finish": lambda found: "eos"},
        {"steps": one_row_more},
        {"steps": more_kept_than_drafted},
        {"steps": lambda found: found.steps[:-2]},
    ],
    ids=["a token", "cut off", "the end", "rows", "counts", "steps"],
)
def test_whatever_is_not_fails(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        assert_exact(Spoiled(Oracle(staged("llama"), 3), **changes), CASE, staged("llama"))


def test_every_end_is_met_at_the_places_that_cases_name() -> None:
    model = staged("llama")
    ends = [case for case in cases(model) if case.name.startswith("eos at")]
    assert len(ends) == 10
    for case in ends:
        assert reference(case, model).finish == "eos", case.name
    names = [case.name for case in cases(model)]
    assert {"one token", "up to the capacity", "1 new tokens"} <= {*names}
    last = next(case for case in cases(model) if case.name == "up to the capacity")
    assert len(last.prompt) + last.limits.max_new_tokens == CAPACITY


class Remembering(Oracle):
    """Drafts less with every output that it has seen."""

    seen = 0

    def start(self, session: Session, prefill: Any) -> None:
        super().start(session, prefill)
        Remembering.seen += 1
        self.depth = max(1, 4 - Remembering.seen)


def test_a_decoder_that_remembers_earlier_outputs_is_found_out() -> None:
    model: StagedModel = staged("llama")
    several = [CASE, Case("other", tokens(11, 5), Limits(12))]
    assert assert_order_is_nothing(Oracle(model, 3), several, model)
    with pytest.raises(AssertionError):
        assert_order_is_nothing(Remembering(model, 3), several, model)


def test_ends_that_fall_inside_a_draft_are_counted() -> None:
    model = staged("llama")
    assert ends_inside_drafts(Oracle(model, 3), [CASE.prompt], model) > 0
    greedy = METHODS.get("greedy").build({}).prepare(Setup(load(spec()), CAPACITY))
    own = load(spec()).staged
    assert ends_inside_drafts(greedy, [CASE.prompt], own) == 0


def spec() -> ModelSpec:
    return ModelSpec(name=MODELS[0], device="cpu")


def test_a_method_that_spoils_its_own_sequence_fails_beside_others() -> None:
    loaded: Loaded = load(spec())
    make = METHODS.get("prompt-lookup").build({}).prepare
    assert_exact_in_batches(make, loaded)

    def spoiled(setup: Setup) -> Decoder:
        made = make(setup)
        propose = made.propose  # type: ignore[attr-defined]

        def broken(session: Session, room: int) -> Any:
            session.tokens[-1] ^= 1
            return propose(session, room)

        made.propose = broken  # type: ignore[attr-defined]
        return made

    with pytest.raises(AssertionError):
        assert_exact_in_batches(spoiled, loaded)


def test_the_class_for_authors_is_named_after_the_method_and_takes_its_options() -> None:
    made = exactness_tests("prompt-lookup", max_draft=2)
    assert made.__name__ == "Exactness[prompt-lookup]"
    tests = [name for name in vars(made) if name.startswith("test_")]
    assert len(tests) == 4
    made().test_outputs_are_those_of_greedy(MODELS[0])  # type: ignore[attr-defined]
