"""Batches: whatever stands beside a sequence, its output is the one it has alone."""

from __future__ import annotations

import functools
import random
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.batch import Batch, Finished
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Proposer, Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Verified
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.engine import joined, meeting
from ppdbench.engine.flat import ops
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.masks import Step
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError, NumericalError, UnitError
from ppdbench.methods import METHODS
from ppdbench.testing import CLOCK, MODELS, tokens

CAPACITY = 56
NEW = 12
SMALL = MODELS[1]

# Of each method a choice of options; trained ones have add-ons of the reference model alone.
UNTRAINED: list[tuple[str, Mapping[str, str]]] = [
    ("greedy", {}),
    ("prompt-lookup", {}),
    ("jacobi", {}),
    ("lookahead", {}),
    ("layerskip", {}),
    ("layerskip", {"reuse": "none", "adaptive": "true"}),
    ("draft-verify", {}),
    ("early-exit", {}),
    ("early-exit", {"confidence": "0.2"}),
    ("speculative", {"draft_model": MODELS[0]}),
]
TRAINED: list[tuple[str, Mapping[str, str]]] = [
    ("medusa", {}),
    ("eagle", {}),
    ("eagle", {"tree": "chain"}),
    ("hybrid", {}),
    ("hybrid", {"of": "eagle"}),
    ("hidden-transfer", {}),
    ("prompt-tokens", {}),
    ("rest", {"datastore": "reference"}),
]
CASES = [(SMALL, *case) for case in UNTRAINED] + [("reference", *case) for case in TRAINED]


@functools.cache
def model(name: str) -> Loaded:
    return load(ModelSpec(name=name, device="cpu", offline=True))


def setup(name: str) -> Setup:
    return Setup(model(name), CAPACITY)


def prompts(name: str) -> list[list[int]]:
    """Prompts of many lengths, one of them a single token, one that repeats itself."""
    vocab = model(name).staged.vocab_size
    return [*(tokens(n, n, vocab) for n in (5, 17, 1, 40)), tokens(4, 11, vocab) * 5]


def limits_of(number: int) -> Limits:
    """Some outputs are much shorter, so that slots change hands in the middle of others."""
    return Limits(NEW if number % 2 else 5)


def requests(name: str, drawn: Target | None = None) -> list[tuple[int, Request]]:
    found = []
    for number, prompt in enumerate(prompts(name)):
        request = Request(prompt, limits_of(number), CLOCK)
        if drawn is not None:
            request = replace(request, chooser=Chooser(drawn, generator_for(7, str(number))))
        found.append((number, request))
    return found


def alone(name: str, decoder: Decoder, drawn: Target | None = None) -> dict[int, Decoded]:
    """Each output by itself, with nothing of a batch anywhere."""
    session = Session(model(name).staged, CAPACITY, spare=decoder.rows)
    return {key: decoder.decode(session, request) for key, request in requests(name, drawn)}


def decoded(found: Iterable[Finished[int]]) -> dict[int, Decoded]:
    outputs = {}
    for each in found:
        if each.error is not None:
            raise each.error
        assert each.decoded is not None
        outputs[each.key] = each.decoded
    return outputs


def facts(outputs: Mapping[int, Decoded]) -> dict[int, tuple[Any, ...]]:
    """All of outputs that is no time."""
    return {
        key: (o.output_ids, o.finish, o.accepted, o.proposed, o.rows, o.exits, o.trees)
        for key, o in outputs.items()
    }


@pytest.mark.parametrize(
    ("name", "method", "options"),
    CASES,
    ids=[f"{c[1]}{'+'.join(c[2].values())[:9]}" for c in CASES],
)
def test_every_method_gives_in_a_batch_what_it_gives_alone(
    name: str, method: str, options: Mapping[str, str]
) -> None:
    make = METHODS.get(method).build(options).prepare
    expected = facts(alone(name, make(setup(name))))
    for prefill in (None, 7):
        batch = Batch(setup(name), prefill=prefill)
        decoders = batch.prepare(make, 4)
        for size in (1, 2, 3, 4) if prefill is None else (3,):
            assert facts(decoded(batch.decode(decoders[:size], requests(name)))) == expected
        assert batch.why_apart is None


@pytest.mark.parametrize("method", ["prompt-lookup", "layerskip"])
def test_the_order_of_requests_changes_nothing(method: str) -> None:
    make = METHODS.get(method).build({}).prepare
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(make, 2)
    forth = facts(decoded(batch.decode(decoders, requests(SMALL))))
    assert facts(decoded(batch.decode(decoders, requests(SMALL)[::-1]))) == forth


@functools.cache
def many_alone(method: str, options: tuple[tuple[str, str], ...]) -> dict[int, tuple[Any, ...]]:
    """What a dozen requests give by themselves."""
    decoder = METHODS.get(method).build(dict(options)).prepare(setup(SMALL))
    session = Session(model(SMALL).staged, CAPACITY, spare=decoder.rows)
    return facts({key: decoder.decode(session, request) for key, request in many()})


def many() -> list[tuple[int, Request]]:
    draw = random.Random(5)
    lengths = [1, 2, *(draw.randrange(3, 44) for _ in range(8))]
    limits = [1, 2, *(draw.randrange(3, NEW + 1) for _ in range(8))]
    draw.shuffle(limits)
    return [
        (key, Request(tokens(n, key % 7, 300), Limits(most), CLOCK))
        for key, (n, most) in enumerate(zip(lengths, limits, strict=True))
    ]


@pytest.mark.parametrize("seed", range(12))
def test_neither_order_nor_size_nor_who_stands_beside_changes_anything(seed: int) -> None:
    draw = random.Random(seed)
    method, options = UNTRAINED[seed % len(UNTRAINED)]
    make = METHODS.get(method).build(options).prepare
    expected = many_alone(method, tuple(options.items()))
    several = draw.sample(many(), draw.randrange(4, 11))
    batch = Batch(setup(SMALL), prefill=draw.choice([None, 1, 3, 16]))
    for size in draw.sample(range(1, 8), 2):  # the same places again, as they were left
        draw.shuffle(several)
        found = facts(decoded(batch.decode(batch.prepare(make, size), several)))
        assert found == {key: expected[key] for key, _ in several}


@pytest.mark.parametrize("method", ["greedy", "prompt-lookup", "layerskip"])
def test_a_seed_fixes_what_is_drawn_whatever_the_batch(method: str) -> None:
    target = Target(kind="top-p", top_p=0.95, temperature=1.5)
    make = METHODS.get(method).build({}).prepare
    expected = facts(alone(SMALL, make(setup(SMALL)), target))
    batch = Batch(setup(SMALL))
    for size in (2, 4):
        ours = batch.decode(batch.prepare(make, size), requests(SMALL, target))
        assert facts(decoded(ours)) == expected


# How it runs


def test_passes_of_all_sequences_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    real = StagedModel._begin, StagedModel.pass_over

    def begin(self: StagedModel, step: Step, *given: Any) -> None:
        rows.append(step.n_query)
        real[0](self, step, *given)

    def pass_over(self: StagedModel, hidden: Tensor, *given: Any) -> Tensor:
        rows.append(hidden.shape[1])
        return real[1](self, hidden, *given)

    monkeypatch.setattr(StagedModel, "_begin", begin)
    monkeypatch.setattr(StagedModel, "pass_over", pass_over)
    batch = Batch(setup(SMALL))
    same = [(i, Request(tokens(6 + i, i, 300), Limits(9), CLOCK)) for i in range(4)]
    decoded(batch.decode(batch.prepare(METHODS.get("greedy").build({}).prepare, 4), same))
    assert rows == [6, 7, 8, 9, *[4] * 8]


def test_a_slot_is_taken_again_at_once() -> None:
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(METHODS.get("greedy").build({}).prepare, 2)
    several = [
        (i, Request(tokens(5, i, 300), Limits(n), CLOCK)) for i, n in enumerate([12, 3, 3, 3])
    ]
    found = list(batch.decode(decoders, several))
    assert [each.key for each in found] == [1, 2, 3, 0]
    assert [each.slot for each in found] == [1, 1, 1, 0]
    assert [each.live for each in batch.rounds] == [2] * 10 + [1] * 5
    assert sum(each.tokens for each in batch.rounds) == 12 + 3 * 3
    for each in found:
        assert each.began_ms < each.first_token_ms < each.ended_ms
        assert each.decoded is not None
        assert each.time_to_first_token_ms <= each.ended_ms - each.began_ms


def test_times_stand_still_while_nobody_decodes() -> None:
    class Ticks(type(CLOCK)):  # type: ignore[misc]
        seconds = 0.0

        def now(self) -> float:
            self.seconds += 0.001
            return self.seconds

    ticks = Ticks(torch.device("cpu"))
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(METHODS.get("greedy").build({}).prepare, 2)
    found = []
    for each in batch.decode(decoders, requests(SMALL), ticks):
        ticks.seconds += 1000.0
        found.append(each)
    assert max(each.ended_ms for each in found) < 1000
    assert all(each.decoded and max(each.decoded.step_ms, default=0) < 1000 for each in found)


def test_prompts_in_pieces_run_beside_the_steps_of_others() -> None:
    batch = Batch(setup(SMALL), prefill=4)
    decoders = batch.prepare(METHODS.get("greedy").build({}).prepare, 2)
    several = [(i, Request(tokens(n, i, 300), Limits(12), CLOCK)) for i, n in enumerate([4, 40])]
    first, second = batch.decode(decoders, several)
    assert first.key == 0
    # Ten pieces, one in each round of the other.
    rounds = [each for each in batch.rounds if each.prompts == 1 and each.tokens == 1]
    assert len(rounds) >= 8
    assert second.time_to_first_token_ms > first.time_to_first_token_ms


class Naming(Proposer):
    """A strategy of somebody else, which keeps state and asks its session for a pass itself."""

    rows = 3

    def start(self, session: Session, prefill: Any) -> None:
        self.seen: list[int] = []

    def propose(self, session: Session, room: int) -> Draft:
        base = session.cached
        hidden = session.forward(session.ids(session.tokens[-1:]), session.chain(1, base))
        token = int(session.logits(hidden)[0, -1].argmax())
        session.cache.truncate(base)
        return Draft.chain([token, (token + len(self.seen)) % 300][:room])

    def learn(self, session: Session, verified: Verified) -> None:
        self.seen += verified.draft.tokens


def test_a_strategy_that_knows_nothing_of_batches_runs_in_one() -> None:
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(lambda _: Naming(), 3)
    ours = facts(decoded(batch.decode(decoders, requests(SMALL))))
    assert ours == facts(alone(SMALL, Naming()))


# What goes wrong


class Failing(Proposer):
    rows = 2

    def propose(self, session: Session, room: int) -> Draft:
        if len(session.tokens) > 45:
            raise RuntimeError("no idea")
        return Draft.empty()


def test_an_error_ends_its_sequence_and_no_other() -> None:
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(lambda _: Failing(), 2)
    found = {each.key: each for each in batch.decode(decoders, requests(SMALL))}
    assert [type(found[i].error) for i in range(5)] == [*[type(None)] * 3, RuntimeError, type(None)]
    greedy = alone(SMALL, METHODS.get("greedy").build({}).prepare(setup(SMALL)))
    for key in (0, 1, 2, 4):
        assert found[key].decoded.output_ids == greedy[key].output_ids  # type: ignore[union-attr]


def test_what_is_not_a_number_stays_in_its_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Session.run_and_read

    def run_and_read(self: Session, tokens: Sequence[int], **given: Any) -> tuple[Tensor, Reading]:
        if len(self.tokens) != 44:
            return real(self, tokens, **given)
        step = self.chain(1)
        hidden = self.embed(self.ids(tokens), step) * float("nan")
        hidden = self.run(hidden, 0, self.model.n_layers, step)
        return hidden, self.read(hidden)

    expected = facts(alone(SMALL, METHODS.get("greedy").build({}).prepare(setup(SMALL))))
    monkeypatch.setattr(Session, "run_and_read", run_and_read)
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(METHODS.get("greedy").build({}).prepare, 2)
    for _ in range(2):  # what it wrote does not spoil later ones either
        found = {each.key: each for each in batch.decode(decoders, requests(SMALL))}
        assert isinstance(found[3].error, NumericalError)
        ours = {k: each.decoded for k, each in found.items() if each.decoded is not None}
        assert facts(ours) == {key: expected[key] for key in (0, 1, 2, 4)}


def test_where_passes_cannot_be_joined_they_run_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(*_: object) -> None:
        raise TypeError("this layer looks at masks")

    monkeypatch.setattr(meeting.JoinedStep, "of", of)
    batch = Batch(setup(SMALL))
    make = METHODS.get("prompt-lookup").build({}).prepare
    ours = facts(decoded(batch.decode(batch.prepare(make, 3), requests(SMALL))))
    assert ours == facts(alone(SMALL, make(setup(SMALL))))
    assert batch.why_apart == "TypeError: this layer looks at masks"


def test_who_cannot_decode_beside_others_is_refused() -> None:
    batch = Batch(setup(SMALL))
    for method in ("ppd", "transformers:greedy"):
        with pytest.raises(
            ConfigError, match=r"^no batches with this method: .*leave --batch out$"
        ):
            batch.prepare(METHODS.get(method).build({}).prepare, 2)
    with pytest.raises(ConfigError, match="a batch of 0 sequences; use 1 or more"):
        batch.prepare(METHODS.get("greedy").build({}).prepare, 0)
    with pytest.raises(ConfigError, match="pieces of 0 tokens; use 1 or more"):
        Batch(setup(SMALL), prefill=0)


def test_units_that_are_gone_end_the_batch() -> None:
    class Gone(Decoder):
        def decode(self, session: Session, request: Request) -> Decoded:
            session.reset(request.prompt)
            session.prefill()
            raise UnitError("gone")

    batch = Batch(setup(SMALL))
    with pytest.raises(UnitError):
        list(batch.decode([Gone(), Gone()], requests(SMALL)))
    # Nobody is left behind: the same batch decodes again.
    decoders = batch.prepare(METHODS.get("greedy").build({}).prepare, 2)
    assert len(decoded(batch.decode(decoders, requests(SMALL)))) == 5


def test_a_batch_that_is_left_in_the_middle_decodes_again() -> None:
    batch = Batch(setup(SMALL))
    decoders = batch.prepare(METHODS.get("greedy").build({}).prepare, 2)
    unfinished = batch.decode(decoders, requests(SMALL))
    next(unfinished)
    unfinished.close()  # type: ignore[attr-defined]
    assert not torch.is_inference_mode_enabled()
    assert len(decoded(batch.decode(decoders, requests(SMALL)))) == 5


# Planted bugs


def rows_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    """Each sequence is handed the rows of the one beside it."""
    real = StagedModel.pass_and_read

    def turned(*given: Any) -> list[Any]:
        found: list[Any] = real(*given)
        return found[1:] + found[:1]

    patch.setattr(StagedModel, "pass_and_read", turned)


def cache_of_the_neighbour(patch: pytest.MonkeyPatch) -> None:
    """Rows are written to the cache beside their own."""
    real = joined.JoinedCache.__init__

    def init(self: joined.JoinedCache, parts: Any) -> None:
        real(self, [*parts[1:], parts[0]])

    patch.setattr(joined.JoinedCache, "__init__", init)


def positions_of_the_first(patch: pytest.MonkeyPatch) -> None:
    """All sequences are told where the first one stands."""
    real = joined.JoinedStep.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, parts: Any, cache: Any) -> joined.JoinedStep:
        step: joined.JoinedStep = real(cls, parts, cache)
        step.placed = step.positions[:, :1].expand_as(step.positions)
        return step

    described = ops.Pass._describe

    def describe(
        self: ops.Pass, rows: int, start: int, causal: bool, lists: Any, *rest: Any
    ) -> None:
        slots, positions, *others, owners = lists
        if owners is not None:  # of several sequences
            positions = array("i", [positions[0]] * rows)
        described(self, rows, start, causal, [slots, positions, *others, owners], *rest)

    patch.setattr(joined.JoinedStep, "of", classmethod(of))
    patch.setattr(ops.Pass, "_describe", describe)


@pytest.mark.parametrize(
    "bug", [rows_of_the_neighbour, cache_of_the_neighbour, positions_of_the_first]
)
def test_a_planted_bug_changes_tokens(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    make = METHODS.get("prompt-lookup").build({}).prepare
    expected = alone(SMALL, make(setup(SMALL)))
    bug(monkeypatch)
    batch = Batch(setup(SMALL))
    found = list(batch.decode(batch.prepare(make, 3), requests(SMALL)))
    wrong = [
        each.error is not None or each.decoded.output_ids != expected[each.key].output_ids  # type: ignore[union-attr]
        for each in found
    ]
    assert any(wrong)


def test_parts_are_there_once_and_state_for_each_slot() -> None:
    def slots(name: str, method: str, **options: str) -> list[Any]:
        return Batch(setup(name)).prepare(METHODS.get(method).build(options).prepare, 3)

    for decoders, shared in (
        (slots("reference", "medusa"), "heads"),
        (slots("reference", "prompt-tokens"), "prompts"),
        (slots("reference", "eagle"), "network"),
        (slots("reference", "rest", datastore="reference"), "store"),
        (slots(SMALL, "draft-verify"), "skipped"),
    ):
        assert len({id(getattr(each, shared)) for each in decoders}) == 1, shared
        assert len({id(each) for each in decoders}) == 3
    drafters = slots(SMALL, "speculative", draft_model=MODELS[0])
    assert len({id(each.draft.model) for each in drafters}) == 1
    assert len({id(each.draft.cache) for each in drafters}) == 3
