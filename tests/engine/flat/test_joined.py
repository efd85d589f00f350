"""Rows of several sequences in one flat pass: bit for bit what each sequence gives alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from ppdbench.engine.flat import passes
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.joined import JoinedCache, JoinedStep
from ppdbench.engine.masks import Step, TrainedRows
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import StateTap
from tests.families import FAMILIES, stock_model
from tests.helpers import CAPACITY, tokens

PROMPTS = (3, 11, 20, 30)
TREE = (-1, 0, 0, 1)


def made(name: str, dtype: torch.dtype) -> StagedModel:
    stock = stock_model(name) if name in FAMILIES else tiny(name)
    model = StagedModel(stock.to(dtype), passes=FLAT)
    assert model.flat is not None, model.path.why
    return model


def started(model: StagedModel) -> list[Session]:
    """Sequences of different lengths, their prompts run."""
    sessions = []
    for n in PROMPTS:
        session = Session(model, CAPACITY, spare=8)
        session.reset(tokens(n, n))
        session.prefill()
        sessions.append(session)
    return sessions


def asked(sessions: list[Session]) -> list[tuple[Tensor, Step]]:
    """A row, a tree, a chain, and a tree with a trained row: hidden states and steps."""
    one, two, three, four = sessions
    steps = [one.chain(1), two.tree(TREE), three.chain(5), four.tree((-1, 0, 0))]
    shape = four.model.cache_shape
    rows = torch.full((shape.n_layers, shape.n_heads, 1, shape.head_dim), 0.5, dtype=shape.dtype)
    steps[3].given = (TrainedRows(rows, -rows, first=1),)
    return [
        (s.embed(s.ids(tokens(step.n_query, i)), step), step)
        for i, (s, step) in enumerate(zip(sessions, steps, strict=True))
    ]


@torch.inference_mode()
def alone(model: StagedModel) -> tuple[list[Tensor], list[Session]]:
    sessions = started(model)
    found = [
        s.read(s.run(hidden, 0, model.n_layers, step)).logits
        for s, (hidden, step) in zip(sessions, asked(sessions), strict=True)
    ]
    return found, sessions


@torch.inference_mode()
def together(model: StagedModel) -> tuple[list[Tensor], list[Session]]:
    sessions = started(model)
    parts = asked(sessions)
    cache = JoinedCache([s.cache for s in sessions])
    step = JoinedStep.of([step for _, step in parts], cache)
    hidden = torch.cat([hidden for hidden, _ in parts], dim=1)
    out = model.read_out(model.pass_over(hidden, 0, model.n_layers, step, cache)).logits
    return [out[:, rows] for rows in step.rows_of_parts], sessions


def same(model: StagedModel) -> bool:
    """True if rows and caches are those of each sequence alone, bit for bit."""
    (ours, here), (theirs, there) = together(model), alone(model)
    caches = [
        torch.equal(a, b)
        for one, other in zip(here, there, strict=True)
        for layer in range(model.n_layers)
        for a, b in zip(one.cache.rows(layer), other.cache.rows(layer), strict=True)
    ]
    return all(map(torch.equal, ours, theirs)) and all(caches)


@pytest.mark.parametrize(
    "name", ["llama", "mistral-window", "gemma2", "gpt2", "bloom", "diffllama", "youtu"]
)
def test_joined_rows_are_bit_for_bit_those_of_each_alone(name: str, dtype: torch.dtype) -> None:
    assert same(made(name, dtype))


@pytest.mark.parametrize(
    ("name", "looked_up"), [("llama", True), ("gemma2", False), ("gpt2", False)]
)
@torch.inference_mode()
def test_passes_over_tokens_are_those_over_their_states(
    name: str, looked_up: bool, dtype: torch.dtype
) -> None:
    model = made(name, dtype)
    assert model.flat is not None and model.flat.looks_up == looked_up
    [session] = started(model)[:1]
    start = session.cached
    for step in (session.chain(1), session.chain(4), session.tree(TREE)):
        ids, found = tokens(step.n_query, 3), []
        words = session.ids(ids)
        for entering in (model.entering(words, step), model.embed(words, step)):
            [done] = model.pass_and_read(entering, step, session.cache, None, [step.n_query])
            found.append((done[0], done[1].logits, done[1].likeliest, done[1].peaks))
            session.cache.truncate(start)
        assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
@torch.inference_mode()
def test_a_pass_to_an_exit_is_its_layers_and_then_their_readout(
    name: str, dtype: torch.dtype
) -> None:
    model = made(name, dtype)
    [session] = started(model)[:1]
    start, last = session.cached, model.n_layers - 1
    for n in (1, 3):
        ids, step = session.ids(tokens(n, 3)), session.chain(n)
        hidden = session.run(session.embed(ids, step), 0, last, step)
        wanted = session.read(hidden)
        rows = [session.cache.rows(layer) for layer in range(last)]
        kept = [(keys.clone(), values.clone()) for keys, values in rows]
        session.cache.truncate(start)
        states, reading = session.run_to_exit(ids, last, step)
        assert torch.equal(states, hidden)
        assert torch.equal(reading.logits, wanted.logits) and reading.tokens == wanted.tokens
        assert session.cache.length(last - 1) == start + n and session.cache.length(last) == start
        for layer, before in enumerate(kept):
            assert all(map(torch.equal, session.cache.rows(layer), before))
        session.cache.truncate(start)


def test_so_they_are_in_several_passes_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("mistral-window", torch.float32)
    monkeypatch.setattr(passes, "AT_ONCE", 4)  # the chain of five is cut
    assert same(model)


def owner_of_the_neighbour(rows: passes._JoinedRows) -> None:
    rows.owners = [(owner + 1) % len(PROMPTS) for owner in rows.owners]


def one_key_too_few(rows: passes._JoinedRows) -> None:
    rows.reach = [max(1, n - 1) for n in rows.reach]


def one_key_too_many(rows: passes._JoinedRows) -> None:
    rows.reach = [n + 1 for n in rows.reach]


def stored_one_row_later(rows: passes._JoinedRows) -> None:
    rows.slots = [slot + 1 if slot >= 0 else slot for slot in rows.slots]


@pytest.mark.parametrize(
    "bug", [owner_of_the_neighbour, one_key_too_few, one_key_too_many, stored_one_row_later]
)
def test_a_planted_bug_changes_bits(
    bug: Callable[[passes._JoinedRows], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made("llama", torch.float32)
    real = passes._JoinedRows.as_pass

    def as_pass(self: passes._JoinedRows, *given: object) -> object:
        bug(self)
        return real(self, *given)

    monkeypatch.setattr(passes._JoinedRows, "as_pass", as_pass)
    assert not same(model)


def test_owners_that_are_not_there_are_refused() -> None:
    model = made("llama", torch.float32)
    sessions = started(model)[:2]
    blocks = passes.CacheBlocks.joined([model.flat.layers._blocks_of(s.cache) for s in sessions])
    lists = [0], [0], [], [0, 0]
    with pytest.raises(ValueError, match=r"owners 2\.\.2 of 2 caches"):
        passes.Pass(0, *lists, passes.Turns((), whole=False), blocks, reach=[1], owners=[2])
    with pytest.raises(ValueError, match="whose they are"):
        passes.Pass(0, *lists, passes.Turns((), whole=False), blocks, reach=[1])


def test_single_rows_are_described_as_lists_describe_them() -> None:
    model = made("llama", torch.float32)
    caches = [session.cache for session in started(model)[:2]]
    blocks = passes.CacheBlocks.joined(list(map(model.flat.layers._blocks_of, caches)))
    turns = passes.Turns([(torch.rand(2, 8), torch.rand(2, 8))], whole=False)
    single = passes.Pass.of_single([3, 5], turns, blocks)
    lists = [3, 5], [3, 5], [], [0, 0, 0]
    whole = passes.Pass(0, *lists, turns, blocks, reach=[4, 6], owners=[0, 1], places=[])
    assert [[*some] for some in single._kept[0]] == [[*some] for some in whole._kept[0]]
    assert single._kept[1:3] == whole._kept[1:3]
    fields = [name for name, _ in passes.Pass.of_single([0, 1], turns, blocks).data._fields_]
    plain = [name for name in fields if isinstance(getattr(whole.data, name), int)]
    apart = {"slots", "positions", "reach", "offsets", "owners", "seen", "places", "cos", "sin"}
    for name in {*plain} - apart:
        assert getattr(single.data, name) == getattr(whole.data, name), name
    for slots in ([3], [3, blocks.capacity], [-1, 3], [1, 2, 3]):
        with pytest.raises(ValueError, match="of 2 caches of"):
            passes.Pass.of_single(slots, turns, blocks)
    with pytest.raises(ValueError, match=r"turns of \[3\] rows for 2"):
        three = passes.Turns([(torch.rand(3, 8), torch.rand(3, 8))], whole=False)
        passes.Pass.of_single([3, 5], three, blocks)


@pytest.mark.parametrize("left_out", [None, ({1}, {2}), ({0, 3}, {0, 3})])
@pytest.mark.parametrize("single", [True, False], ids=["single rows", "chains and trees"])
@torch.inference_mode()
def test_passes_that_are_read_out_in_one_go_are_those_of_two_calls(
    left_out: tuple[set[int], set[int]] | None, single: bool, dtype: torch.dtype
) -> None:
    whole = made("llama", dtype)
    model = whole if left_out is None else SkippedModel(whole, *left_out)
    found: list[list[tuple[Tensor, ...]]] = []
    tapped: list[dict[int, Tensor]] = [{}, {}]
    lengths = []
    for in_one_go in (True, False):
        sessions = started(whole)
        parts = asked(sessions)
        if single:
            steps = [s.chain(1) for s in sessions]
            parts = [(hidden[:, :1], step) for (hidden, _), step in zip(parts, steps, strict=True)]
        cache = JoinedCache([s.cache for s in sessions])
        step = JoinedStep.of([step for _, step in parts], cache)
        hidden = torch.cat([hidden for hidden, _ in parts], dim=1)
        tap, counts = StateTap([2], tapped[not in_one_go]), [part.n_query for part in step.parts]
        if in_one_go:
            both = model.pass_and_read(hidden, step, cache, tap, counts)
        else:
            states = model.pass_over(hidden, 0, model.n_layers, step, cache, tap)
            cut = torch.split(states, counts, dim=1)
            both = [*zip(cut, model.read_out(states).parts(counts), strict=True)]
        found.append([(rows, r.logits, r.likeliest, r.peaks) for rows, r in both])
        lengths.append([s.cache.lengths for s in sessions])
    assert len(found[0]) == len(PROMPTS)
    for ours, theirs in zip(*found, strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert torch.equal(tapped[0][2], tapped[1][2])
    assert lengths[0] == lengths[1]
