"""Rows that join a pass on the way: nodes never notice, and the cache keeps none of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.draft import EMPTY, Computed, Draft, Insertion
from ppdbench.decoding.identity import as_run, as_verified, one_row_logits
from ppdbench.decoding.loop import Prefill, Verified, Verifier
from ppdbench.decoding.passes import run_pass
from ppdbench.decoding.sampling import GREEDY, Chooser, Target
from ppdbench.engine.masks import StepMaker
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import DraftError
from tests.decoding.matrix import (
    CAPACITY,
    CLOCK,
    Oracle,
    assert_exact,
    cases,
    decode_case,
    free,
    reference,
)
from tests.families import FAMILIES
from tests.helpers import VOCAB, assert_near, staged, tokens

PROMPT = tokens(9, seed=1)
# The newest token has children 0 and 1; 0 has 2 and 3; 3 has 4.
TREE = Draft.tree([5, 6, 7, 8, 9], [-1, -1, 0, 0, 3])
CHAIN = Draft.chain([5, 6, 7])
LAYERS = [(0,), (1,), (3,), (0, 2), (1, 1), (0, 1, 2, 3)]


def halved(hidden: Tensor, n: int) -> Tensor:
    """States that are not those of any token."""
    return 0.5 * hidden[:, :n].flip(2)


def ahead(draft: Draft, layers: Sequence[int]) -> Draft:
    """The draft with a row for every row that is a token, at each of these layers.

    As in hidden transfer: a row sees its token, what that sees, and its token's earlier rows.
    """
    parents = draft.lineage
    lines: list[tuple[int, ...]] = [(0,)]
    for node, parent in enumerate(parents, start=1):
        lines.append((*lines[1 + parent], node))
    n = 1 + len(draft)
    insertions = []
    for i, layer in enumerate(layers):
        earlier = [tuple(n * j + row for j in range(1, i + 1)) for row in range(n)]
        sees = tuple(line + rows for line, rows in zip(lines, earlier, strict=True))
        depths = tuple(len(line) + i for line in lines)
        insertions.append(Insertion(layer, lambda hidden: halved(hidden, n), sees, depths))
    return replace(draft, insertions=tuple(insertions))


def ready(model: StagedModel, rows: int, fixed: bool = False) -> Session:
    """A session after its prompt, with a newest token that no layer has run."""
    session = Session(model, CAPACITY, spare=rows, fixed_rows=rows if fixed else None)
    session.reset(list(PROMPT))
    session.prefill()
    session.tokens.append(17)
    return session


def held(session: Session, layer: int, first: int, n: int) -> tuple[Tensor, ...]:
    """What a layer's cache has in rows [first, first + n)."""
    return tuple(kept[:, :, first : first + n].clone() for kept in session.cache.rows(layer))


# Nodes


@torch.inference_mode()
@pytest.mark.parametrize("layers", LAYERS, ids=str)
@pytest.mark.parametrize("draft", [TREE, CHAIN, EMPTY], ids=["tree", "chain", "nothing"])
@pytest.mark.parametrize("name", FAMILIES)
def test_inserted_rows_change_nothing_for_tokens(
    name: str, draft: Draft, layers: tuple[int, ...]
) -> None:
    model, full = staged(name), ahead(draft, layers)
    plain, joined = ready(model, full.rows), ready(model, full.rows)
    n, start = 1 + len(draft), len(PROMPT)
    truth, found = run_pass(plain, draft), run_pass(joined, full)
    assert found.shape[1] == full.rows
    assert_near(found[:, :n], truth)
    for layer in range(model.n_layers):
        for ours, theirs in zip(
            held(joined, layer, start, n), held(plain, layer, start, n), strict=True
        ):
            assert_near(ours, theirs)


@torch.inference_mode()
@pytest.mark.parametrize("draft", [TREE, CHAIN, EMPTY], ids=["tree", "chain", "nothing"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "opt", "mistral-window"])
def test_in_one_fixed_shape_nodes_are_the_same_to_the_last_bit(name: str, draft: Draft) -> None:
    model = staged(name)
    for layers in LAYERS:
        full = ahead(draft, layers)
        plain, joined = ready(model, full.rows, fixed=True), ready(model, full.rows, fixed=True)
        n, start = 1 + len(draft), len(PROMPT)
        assert torch.equal(run_pass(joined, full)[:, :n], run_pass(plain, draft))
        for layer in range(model.n_layers):
            ours, theirs = held(joined, layer, start, n), held(plain, layer, start, n)
            assert all(map(torch.equal, ours, theirs))


@torch.inference_mode()
def test_in_one_fixed_shape_no_row_depends_on_how_many_joined() -> None:
    model = staged("llama")
    full = ahead(TREE, (1, 2))
    first = replace(full, insertions=full.insertions[:1])
    both, one = ready(model, full.rows, fixed=True), ready(model, full.rows, fixed=True)
    assert torch.equal(run_pass(both, full)[:, : first.rows], run_pass(one, first))


# Inserted rows


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_the_embedding_of_a_token_inserted_is_that_token(name: str) -> None:
    """Positions, visibility and windows: as an embedding behind a node it is the node's child."""
    model = staged(name)
    own = model.adapter.words(torch.tensor([[31, 32]]))
    # 31 behind node 4, 32 behind 31: five and six places after the newest token's parent.
    chain = Insertion(0, lambda hidden: own, ((0, 1, 4, 5), (0, 1, 4, 5, 6)), (4, 5))
    inserted = run_pass(ready(model, 8), replace(TREE, insertions=(chain,)))[:, 6:]
    grown = Draft.tree([*TREE.tokens, 31, 32], [*(TREE.parents or ()), 4, 5])
    assert_near(inserted, run_pass(ready(model, 8), grown)[:, 6:])


@torch.inference_mode()
@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_tokens_own_state_inserted_later_is_that_token(name: str, layer: int) -> None:
    """From any layer on: the state of the next token, taken from a pass that had it."""
    model = staged(name)
    known: dict[int, Tensor] = {}
    grown = Draft.tree([*TREE.tokens, 31], [*(TREE.parents or ()), 4])
    truth = run_pass(ready(model, 8), grown, known.__setitem__)
    with_keys = Insertion(layer, lambda hidden: known[layer][:, 6:], ((0, 1, 4, 5),), (4,))
    inserted = run_pass(ready(model, 8), replace(TREE, insertions=(with_keys,)))
    assert_near(inserted[:, 6:], truth[:, 6:])


@torch.inference_mode()
def test_a_row_sees_what_it_names_and_nothing_else() -> None:
    """Exchanging a node's token moves exactly the inserted rows that see the node."""
    model, full = staged("llama"), ahead(TREE, (1, 2))
    before = run_pass(ready(model, full.rows), full)
    for node in range(len(TREE)):
        swapped = list(TREE.tokens)
        swapped[node] = 40
        after = run_pass(ready(model, full.rows), replace(full, tokens=tuple(swapped)))
        moved = ((before - after).abs().amax(-1) > 1e-6)[0].tolist()
        rows = [row for insertion in full.insertions for row in insertion.sees]
        assert moved[6:] == [1 + node in row for row in rows]


@torch.inference_mode()
def test_rows_of_one_insertion_may_see_each_other_both_ways() -> None:
    model = staged("llama")

    def outputs(sees: tuple[tuple[int, ...], ...], second: float) -> Tensor:
        states = torch.stack([torch.full((32,), 0.3), torch.full((32,), second)])[None]
        both = Insertion(1, lambda hidden: states, sees, (1, 1))
        return run_pass(ready(model, 3), Draft(insertions=(both,)))[0, 1]

    assert torch.equal(outputs(((0,), (0,)), 0.5), outputs(((0,), (0,)), 0.7))
    assert not torch.equal(outputs(((0, 2), (0, 1)), 0.5), outputs(((0, 2), (0, 1)), 0.7))


@torch.inference_mode()
def test_a_sliding_window_is_measured_in_positions() -> None:
    """A row that stands so far ahead that the window has left everything behind sees itself."""
    model = staged("mistral-window")
    state = torch.randn(1, 1, 32, generator=torch.Generator().manual_seed(0))
    far = Insertion(2, lambda hidden: state, ((0,),), (20,))
    outputs = [
        run_pass(session, Draft(tokens=(token,), insertions=(far,)))[:, 2]
        for token in (5, 6)
        for session in [ready(model, 3)]
    ]
    assert torch.equal(*outputs)


@torch.inference_mode()
def test_states_are_made_of_all_rows_so_far() -> None:
    model, seen = staged("llama"), []

    def states(hidden: Tensor) -> Tensor:
        seen.append(tuple(hidden.shape))
        return halved(hidden, 2)

    two = tuple(Insertion(layer, states, ((0,), (0,)), (1, 1)) for layer in (0, 2, 3))
    run_pass(ready(model, 10), replace(CHAIN, insertions=two))
    assert seen == [(1, 4, 32), (1, 6, 32), (1, 8, 32)]


# After the pass


@torch.inference_mode()
@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_the_cache_afterwards_is_that_of_the_pass_without(layers: tuple[int, ...]) -> None:
    model, full = staged("llama"), ahead(TREE, layers)
    sessions = [ready(model, full.rows), ready(model, full.rows)]
    outcomes = [
        Verifier(session, GREEDY).verify(draft, 2)
        for session, draft in zip(sessions, (TREE, full), strict=True)
    ]
    assert outcomes[0].outcome == outcomes[1].outcome
    assert outcomes[0].predictions == outcomes[1].predictions
    assert {s.cache.lengths[i] for s in sessions for i in range(4)} == {10}
    for layer in range(model.n_layers):
        for ours, theirs in zip(*(s.cache.rows(layer) for s in sessions), strict=True):
            assert_near(ours, theirs)


@torch.inference_mode()
def test_a_verified_draft_tells_nodes_and_inserted_rows_apart() -> None:
    model, full = staged("llama"), ahead(TREE, (1, 3))
    taps: dict[int, Tensor] = {}
    session = ready(model, full.rows)
    whole = run_pass(ready(model, full.rows), full, taps.__setitem__)
    verified = Verifier(session, GREEDY, taps=(2, 4)).verify(full, 2)
    assert torch.equal(verified.rows, whole)
    assert torch.equal(verified.hidden, whole[:, :6])
    assert verified.first_inserted == 6
    assert len(verified.predictions) == 6
    assert {layer: tap.shape[1] for layer, tap in verified.taps.items()} == {2: 6, 4: 6}
    assert torch.equal(verified.taps[2], taps[2][:, :6])


class Ahead(Oracle):
    """Drafts as the oracle does, with rows on top that nobody asked for."""

    layers = (0, 1, 3)

    def __init__(self, model: StagedModel, depth: int, wrong_from: int | None, tree: bool) -> None:
        super().__init__(model, depth, wrong_from, tree)
        nodes = 1 + (2 * depth if tree else depth)
        self.rows = nodes * (1 + len(self.layers))

    def propose(self, session: Session, room: int) -> Draft:
        return ahead(super().propose(session, room), self.layers)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mistral-window"])
def test_drafts_with_inserted_rows_are_exact(name: str, tree: bool) -> None:
    model = staged(name)
    for wrong_from in (0, 2, 4):
        for case in cases(model):
            ours = assert_exact(Ahead(model, 4, wrong_from, tree), case, model)
            plain = decode_case(Oracle(model, 4, wrong_from, tree), case, model)
            assert ours.accepted == plain.accepted
            fixed = Ahead(model, 4, wrong_from, tree)
            assert_exact(fixed, case, model, fixed_rows=fixed.rows)


def test_sampled_chains_may_carry_inserted_rows() -> None:
    model = staged("llama")
    chooser = lambda: Chooser(Target(kind="top-k"), torch.Generator().manual_seed(3))  # noqa: E731
    case = next(iter(cases(model)))
    outputs = []
    for make in (Oracle, Ahead):
        oracle = make(model, 3, 3, False)
        session = Session(model, CAPACITY, spare=oracle.rows)
        outputs.append(
            oracle.decode(session, Request(list(case.prompt), case.limits, CLOCK, chooser()))
        )
    assert outputs[0].output_ids == outputs[1].output_ids


def test_rounding_is_measured_in_the_shape_that_was_verified() -> None:
    """The judge runs as many rows from the same layers on as the method did."""
    model = staged("llama")
    case = next(iter(cases(model)))
    for tree in (False, True):
        oracle = Ahead(model, 3, 2, tree)
        ours, greedy = decode_case(oracle, case, model), reference(case, model)
        n = 1 + (6 if tree else 3)
        assert ours.rows[0] == 4 * n
        assert ours.inserted[0] == ((0, n), (1, n), (3, n))
        session = Session(model, CAPACITY, spare=oracle.rows)
        single = one_row_logits(session, list(case.prompt), greedy, 9)
        run = partial(oracle.decode, session, Request(list(case.prompt), case.limits, CLOCK))
        assert single is not None
        for several in (
            as_verified(session, list(case.prompt), ours, 9),
            as_run(run, session, ours, 9),
        ):
            assert several is not None
            assert 0 < float((several - single).abs().max()) < 1e-4


# Shapes that repeat


def test_a_shape_that_repeats_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppdbench.engine import masks

    full = ahead(Draft.tree([1, 2, 3], [-1, 0, -1]), (1, 2))
    joined = [(i.sees, i.depths) for i in full.insertions]
    steps = StepMaker(64, torch.device("cpu"))
    masks._family.cache_clear()
    made = [steps.tree(start, (-1, 0, 1, 0), 63, joined) for start in (4, 5, 9)]
    assert masks._family.cache_info().misses == 1
    for step in made:
        assert step.visible is not None
        assert step.visible.shape == (1, 12, step.start + 12)
        assert bool(step.visible[:, :, : step.start].all())
        assert torch.equal(step.visible[:, :, step.start :], made[0].visible[:, :, 4:])  # type: ignore[index]
        assert torch.equal(step.positions - step.start, made[0].positions - 4)


# What no pass could run


def new(
    layer: int = 1,
    sees: tuple[tuple[int, ...], ...] = ((0,),),
    depths: tuple[int, ...] = (1,),
    states: Callable[[Tensor], Tensor] = lambda hidden: hidden[:, :1],
) -> Insertion:
    return Insertion(layer, states, sees, depths)


BAD = {
    "a row that is not there": ([new(sees=((0, 7),))], "row 4 sees row 7; use 0..4"),
    "a row before the first": ([new(sees=((-1,),))], "row 4 sees row -1; use 0..4"),
    "a row that joins later": (
        [new(sees=((5,),)), new(layer=2)],
        "row 4 sees row 5; use 0..4",
    ),
    "a depth missing": ([new(depths=())], "an insertion of 1 rows with 0 depths"),
    "no rows at all": ([new(sees=(), depths=())], "an insertion of 0 rows"),
    "a place behind the newest token": ([new(depths=(-1,))], "row 4 stands at depth -1; use 0"),
    "falling layers": ([new(layer=2), new(layer=1)], r"at layers \[2, 1\]; use 0 or more, the low"),
    "a layer below the first": ([new(layer=-1)], r"at layers \[-1\]"),
    "a layer above the last": ([new(layer=4)], r"after 4 layers; use 0\.\.3"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_insertions_that_no_pass_could_run_are_refused(what: str) -> None:
    insertions, message = BAD[what]
    with pytest.raises(DraftError, match=message) as caught:
        Draft.chain([5, 6, 7], insertions=insertions).check(VOCAB, 4)
    assert "\n" not in str(caught.value)


def test_a_draft_that_is_computed_in_part_takes_no_insertions() -> None:
    half = Draft.chain([5], computed=Computed(torch.zeros(1, 2, 32), 2), insertions=[new(3)])
    with pytest.raises(DraftError, match="some layers are computed"):
        half.check(VOCAB, 4)


@pytest.mark.parametrize(
    "states",
    [
        lambda hidden: hidden.repeat(1, 2, 1),
        lambda hidden: hidden[0, :1],
        lambda hidden: hidden[:, :1, :7],
        lambda hidden: hidden[:, :1].double(),
    ],
    ids=["too many", "no batch", "too narrow", "another type"],
)
@torch.inference_mode()
def test_states_of_the_wrong_shape_are_refused(states: Callable[[Tensor], Tensor]) -> None:
    draft = Draft(insertions=(new(states=states),))
    with pytest.raises(DraftError, match="after 1 layers gave"):
        run_pass(ready(staged("llama"), 4), draft)


# Drafts that lose nodes


def test_a_draft_that_keeps_its_nodes_keeps_its_insertions() -> None:
    full = ahead(TREE, (1, 2))
    assert full.within(3) is full
    assert full.within(0) is EMPTY


@torch.inference_mode()
@pytest.mark.parametrize("draft", [TREE, CHAIN], ids=["tree", "chain"])
@pytest.mark.parametrize("room", [1, 2])
def test_what_is_left_of_a_draft_is_what_a_smaller_one_would_be(draft: Draft, room: int) -> None:
    cut, small = ahead(draft, (0, 1, 2)).within(room), ahead(draft.within(room), (0, 1, 2))
    cut.check(VOCAB, 4)
    assert (cut.tokens, cut.parents) == (small.tokens, small.parents)
    for ours, theirs in zip(cut.insertions, small.insertions, strict=True):
        assert (ours.layer, ours.sees, ours.depths) == (theirs.layer, theirs.sees, theirs.depths)
    model = staged("llama")
    assert torch.equal(run_pass(ready(model, 24), cut), run_pass(ready(model, 24), small))


def test_a_row_goes_with_any_row_that_it_sees_at_whatever_distance() -> None:
    chain = Draft.chain(
        [5, 6],
        insertions=[
            new(1, ((0,), (0, 1), (0, 2)), (1, 2, 3)),  # rows 3, 4, 5: 5 sees the node that goes
            new(2, ((5,), (4, 8), (3, 7)), (4, 4, 4)),  # rows 6, 7, 8: 7 and 8 see each other
            new(3, ((6,),), (5,)),
        ],
    )
    cut = chain.within(1)
    assert [(i.layer, i.sees, i.depths) for i in cut.insertions] == [
        (1, ((0,), (0, 1)), (1, 2)),
        (2, ((3, 5), (2, 4)), (4, 4)),
    ]


def test_cut_drafts_never_see_what_is_not_there() -> None:
    draw = random.Random(2)
    for _ in range(200):
        nodes = draw.randrange(1, 7)
        parents = [draw.randrange(-1, node) for node in range(nodes)]
        insertions, rows = [], 1 + nodes
        for layer in range(draw.randrange(1, 4)):
            n = draw.randrange(1, 4)
            sees = tuple(
                tuple(draw.sample(range(rows + n), k=draw.randrange(0, 3))) for _ in range(n)
            )
            insertions.append(new(layer, sees, (1,) * n))
            rows += n
        tree = Draft.tree(range(nodes), parents, insertions=insertions)
        for room in range(1, 5):
            cut = tree.within(room)
            cut.check(VOCAB, 4)
            assert cut.within(room) is cut


# Learning


def test_a_strategy_sees_its_inserted_rows() -> None:
    model, seen = staged("llama"), []

    class Watching(Ahead):
        def start(self, session: Session, prefill: Prefill) -> None:
            super().start(session, prefill)

        def learn(self, session: Session, verified: Verified) -> None:
            inserted = verified.draft.rows - 1 - len(verified.draft)
            seen.append(inserted)
            assert verified.rows[:, verified.first_inserted :].shape == (1, inserted, 32)

    case = next(iter(cases(model)))
    assert decode_case(Watching(model, 2, 1, True), case, model).output_ids == free(
        model, list(case.prompt), case.limits.max_new_tokens
    )
    assert max(seen) == 15
