"""The proof, for authors of methods, that a strategy gives exactly what greedy decoding gives.

    from ppdbench.testing import exactness_tests

    TestMine = exactness_tests("my-method", draft_length=4)

in a test file runs the method, options as given, over prompts and limits that put every end
of an output at every place a draft may meet it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ppdbench.decoding.batch import Batch
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from ppdbench.methods import METHODS

CLOCK = Clock(torch.device("cpu"))
CAPACITY = 64
MODELS = (
    "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=64,agree=0.9",
    "synthetic:layers=4,hidden=32,heads=4,kv_heads=2,vocab=300,context=64,tie=true",
)


@dataclass(frozen=True)
class Case:
    """One prompt and what ends its output."""

    name: str
    prompt: list[int]
    limits: Limits


def tokens(n: int, seed: int, vocab_size: int) -> list[int]:
    """Random ids above the special ones."""
    draw = random.Random(seed)
    return [draw.randrange(3, vocab_size) for _ in range(n)]


# What greedy decoding gave, by model: methods and options are compared with the same cases.
_KNOWN: WeakKeyDictionary[StagedModel, dict[Any, Decoded]] = WeakKeyDictionary()


def free(model: StagedModel, prompt: list[int], n: int) -> tuple[int, ...]:
    """Return the greedy output that nothing but its length ends."""
    return reference(Case("free", prompt, Limits(n)), model).output_ids


def cases(model: StagedModel) -> Iterator[Case]:
    """Plain prompts, then every end at every place a draft may meet it."""
    vocab = model.vocab_size
    for seed in range(3):
        yield Case(f"plain {seed}", tokens(9 + seed, seed, vocab), Limits(24))
    loop = tokens(4, 11, vocab) * 3
    yield Case("repeating prompt", loop, Limits(24))
    yield Case("one token", [17], Limits(24))
    for n in (1, 2, 3, 5):
        yield Case(f"{n} new tokens", loop, Limits(n))
    for prompt in (loop, tokens(9, 0, vocab)):
        output = free(model, prompt, 20)
        for place in (0, 1, 2, 5, 9):
            yield Case(f"eos at {place}", prompt, Limits(24, frozenset({output[place]})))
    limit = model.adapter.max_positions
    if limit <= CAPACITY:
        yield Case("up to the context limit", tokens(limit - 20, 3, vocab), Limits(20))
    yield Case("up to the capacity", tokens(CAPACITY - 16, 4, vocab), Limits(16))


def decode_case(
    decoder: Decoder, case: Case, model: StagedModel, *, fixed_rows: int | None = None
) -> Decoded:
    """One case with buffers of its own."""
    session = Session(model, CAPACITY, spare=decoder.rows, fixed_rows=fixed_rows)
    return decoder.decode(session, Request(list(case.prompt), case.limits, CLOCK))


def reference(case: Case, model: StagedModel, *, fixed_rows: int | None = None) -> Decoded:
    """Greedy decoding of the same case, done once for each model and the path of its passes."""
    known = _KNOWN.setdefault(model, {})
    key = (model.path, tuple(case.prompt), case.limits, fixed_rows)
    if key not in known:
        session = Session(model, CAPACITY, fixed_rows=fixed_rows)
        known[key] = autoregressive(session, Request(list(case.prompt), case.limits, CLOCK))
    return known[key]


def assert_exact(
    decoder: Decoder, case: Case, model: StagedModel, *, fixed_rows: int | None = None
) -> Decoded:
    """The same tokens and the same end, and counts that fit the output."""
    ours = decode_case(decoder, case, model, fixed_rows=fixed_rows)
    greedy = reference(case, model, fixed_rows=fixed_rows)
    assert ours.output_ids == greedy.output_ids, case.name
    assert ours.finish == greedy.finish, case.name
    assert len(ours.accepted) == len(ours.proposed) == len(ours.step_ms) == len(ours.rows)
    assert max(ours.rows, default=1) <= decoder.rows, case.name
    committed = 1 + sum(ours.accepted) + len(ours.accepted)
    assert committed - 1 <= len(ours.output_ids) <= committed
    assert all(0 <= a <= p for a, p in zip(ours.accepted, ours.proposed, strict=True))
    return ours


def assert_exact_in_batches(
    make: Callable[[Setup], Decoder], loaded: Loaded, size: int = 3
) -> None:
    """Prove that each case gives the same tokens beside others, of whatever lengths."""
    several, batch = list(cases(loaded.staged)), Batch(Setup(loaded, CAPACITY))
    asked = [
        (number, Request(list(case.prompt), case.limits, CLOCK))
        for number, case in enumerate(several)
    ]
    for done in batch.decode(batch.prepare(make, size), asked):
        if done.error is not None:
            raise done.error
        assert done.decoded is not None
        greedy = reference(several[done.key], loaded.staged)
        assert done.decoded.output_ids == greedy.output_ids, several[done.key].name


def assert_order_is_nothing(
    decoder: Decoder, several: Sequence[Case], model: StagedModel
) -> list[tuple[int, ...]]:
    """Prove that the order of cases changes nothing; return what is accepted in each."""
    forth = [decode_case(decoder, case, model).accepted for case in several]
    back = [decode_case(decoder, case, model).accepted for case in reversed(several)]
    assert forth == back[::-1]
    return forth


def ends_inside_drafts(decoder: Decoder, prompts: Sequence[list[int]], model: StagedModel) -> int:
    """End each output early, by EOS and by length; return how many ends fell inside a draft."""
    inside = 0
    for prompt in prompts:
        output = free(model, prompt, 24)
        for place in range(1, 12):
            ends = Limits(24, frozenset({output[place]}))
            for limits in (ends, Limits(1 + place)):
                found = assert_exact(decoder, Case("end", prompt, limits), model)
                committed = 1 + sum(found.accepted) + len(found.accepted)
                inside += committed > len(found.output_ids)
    return inside


def exactness_tests(method: str, **options: Any) -> type:
    """A class of tests of a registered method, with these options, for pytest to collect."""
    import pytest

    settings = {name: str(value) for name, value in options.items()}

    make = METHODS.get(method).build(settings).prepare

    def ready(model: str) -> tuple[Decoder, StagedModel]:
        loaded = load(ModelSpec(name=model, device="cpu"))
        decoder = make(Setup(loaded, CAPACITY))
        decoder.begin()
        return decoder, loaded.staged

    @pytest.mark.parametrize("model", MODELS)
    class Exactness:
        """The method against greedy decoding on small random models."""

        def test_outputs_are_those_of_greedy(self, model: str) -> None:
            decoder, staged = ready(model)
            for case in cases(staged):
                assert_exact(decoder, case, staged)

        def test_in_one_fixed_shape_too(self, model: str) -> None:
            decoder, staged = ready(model)
            for case in cases(staged):
                assert_exact(decoder, case, staged, fixed_rows=decoder.rows)

        def test_the_order_of_examples_changes_nothing(self, model: str) -> None:
            decoder, staged = ready(model)
            assert_order_is_nothing(decoder, list(cases(staged)), staged)

        def test_beside_other_sequences_too(self, model: str) -> None:
            assert_exact_in_batches(make, load(ModelSpec(name=model, device="cpu")))

    Exactness.__qualname__ = Exactness.__name__ = f"Exactness[{method}]"
    return Exactness
