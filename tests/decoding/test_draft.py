"""Drafts: what may be proposed, how deep each token stands, what fits into the room left."""

from __future__ import annotations

import random

import pytest
import torch

from ppdbench.decoding.draft import EMPTY, Computed, Draft, Insertion
from ppdbench.errors import DraftError

VOCAB = 10
# The newest token has children 0 and 1; 0 has 2 and 3; 3 has 4. Nodes 5 and 6 ride on 4 and 5.
BUSHY = Draft.tree([1, 2, 3, 4, 5, 8, 9], [-1, -1, 0, 0, 3, 4, 5], riders=2)


def even(n: int) -> torch.Tensor:
    return torch.full((n, VOCAB), 1 / VOCAB)


def test_a_chain_deepens_by_one_per_token() -> None:
    assert Draft.chain([4, 4, 7]).depths == (1, 2, 3)
    assert Draft.empty().depths == ()


def test_a_node_stands_one_deeper_than_its_parent() -> None:
    assert BUSHY.depths == (1, 1, 2, 2, 3, 4, 5)
    assert Draft.tree([1, 2, 3], [-1, -1, -1]).depths == (1, 1, 1)


def test_riders_are_not_counted_as_proposed() -> None:
    assert (len(BUSHY), BUSHY.proposed) == (7, 5)
    assert Draft((1, 2, 3), riders=1).proposed == 2
    assert (len(Draft.empty()), Draft.empty().proposed) == (0, 0)


GOOD = {
    "nothing": EMPTY,
    "a chain": Draft.chain([0, 9, 9]),
    "a tree with riders on riders": BUSHY,
    "riders that repeat a node": Draft.tree([5, 5, 5], [-1, -1, -1], riders=2),
    "the same token under two parents": Draft.tree([1, 2, 3, 3], [-1, -1, 0, 1]),
    "riders alone": Draft.tree([1, 2], [-1, 0], riders=2),
    "a chain that was drawn": Draft.chain([1, 2], probabilities=even(2)),
    "a chain half computed": Draft.chain([1, 2], computed=Computed(torch.zeros(1, 3, 4), 2)),
    "no token, but half computed": Draft.chain([], computed=Computed(torch.zeros(1, 1, 4), 2)),
}

BAD = {
    "an id past the end": (Draft.chain([3, 10]), "draft token 1 is 10; use 0..9"),
    "a negative id": (Draft.chain([-1]), "draft token 0 is -1; use 0..9"),
    "a truth value": (Draft.chain([True]), "draft token 0 is True, not a token id"),
    "a float": (Draft.chain([1.0]), "draft token 0 is 1.0"),  # type: ignore[list-item]
    "a tensor": (Draft.chain([torch.tensor(1)]), "not a token id"),  # type: ignore[list-item]
    "an impossible rider": (Draft.tree([3, 11], [-1, 0], riders=1), "draft token 1 is 11"),
    "more riders than nodes": (Draft.tree([1], [-1], riders=2), "2 riders in a draft of 1"),
    "fewer riders than none": (Draft((1,), riders=-1), "-1 riders in a draft of 1"),
    "too few parents": (Draft.tree([1, 2], [-1]), "1 parents for 2 draft tokens"),
    "too many parents": (Draft.tree([1], [-1, 0]), "2 parents for 1 draft tokens"),
    "its own parent": (Draft.tree([1, 2], [-1, 1]), "node 1 names parent 1; use -1..0"),
    "a parent before the root": (Draft.tree([1], [-2]), "node 0 names parent -2; use -1..-1"),
    "twins": (Draft.tree([4, 1, 4], [-1, 0, -1]), "nodes 0 and 2 are the same continuation"),
    "a drawn tree": (
        Draft((1, 2), (-1, -1), probabilities=even(2)),
        "for a tree of 2 tokens; use a row for each parent",
    ),
    "one distribution too few": (
        Draft.chain([1, 2], probabilities=even(1)),
        r"shape \(1, 10\) for a chain of 2 tokens",
    ),
    "a narrower vocabulary": (
        Draft.chain([1], probabilities=even(1)[:, :7]),
        r"shape \(1, 7\) for a chain of 1 tokens",
    ),
    "a computed tree": (
        Draft((1, 2), (-1, 0), computed=Computed(torch.zeros(1, 3, 4), 2)),
        "3 rows for a tree of 2 tokens",
    ),
    "no row for the newest token": (
        Draft.chain([1, 2], computed=Computed(torch.zeros(1, 2, 4), 2)),
        "2 rows for a chain of 2 tokens; use a chain and one row more",
    ),
}


@pytest.mark.parametrize("what", sorted(GOOD))
def test_what_a_pass_can_verify_is_let_through(what: str) -> None:
    GOOD[what].check(VOCAB)


@pytest.mark.parametrize("what", sorted(BAD))
def test_what_no_pass_can_verify_is_refused(what: str) -> None:
    draft, message = BAD[what]
    with pytest.raises(DraftError, match=message) as caught:
        draft.check(VOCAB)
    assert "\n" not in str(caught.value)


def test_merged_drafts_share_what_begins_alike() -> None:
    chains = map(Draft.chain, [(5, 6, 7), (5, 6, 8), (), (6, 6), (5, 6, 7)])
    assert Draft.merged(chains) == Draft.tree([5, 6, 7, 8, 6, 6], [-1, 0, 1, 1, -1, 4])
    trees = [Draft.tree([5, 6, 7], [-1, -1, 0]), Draft.tree([6, 5, 8, 7], [-1, -1, 0, 1])]
    assert Draft.merged(trees) == Draft.tree([5, 6, 7, 8], [-1, -1, 0, 1])
    assert len(Draft.merged([])) == 0


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (BUSHY, "riders"),
        (Draft.chain([1], insertions=[Insertion(0, torch.clone, ((),), (1,))]), "inserted rows"),
        (Draft.chain([1], probabilities=even(1)), "drawn"),
    ],
)
def test_what_means_more_than_its_tokens_is_not_merged(draft: Draft, said: str) -> None:
    with pytest.raises(DraftError, match=f"{said}.* cannot be merged"):
        Draft.merged([Draft.chain([1, 2]), draft])


def test_a_draft_that_fits_is_handed_back_as_it_is() -> None:
    for draft in GOOD.values():
        assert draft.within(5) is draft
    assert BUSHY.within(5) is BUSHY


def test_without_room_nothing_is_left() -> None:
    for draft in (BUSHY, Draft.chain([1, 2]), Draft((1, 2), riders=1)):
        assert draft.within(0) is EMPTY
        assert len(draft.within(-1)) == 0


def test_a_chain_loses_its_end_with_all_that_belongs_to_it() -> None:
    hidden = torch.arange(16.0).reshape(1, 4, 4)
    drawn = torch.rand(3, VOCAB, generator=torch.Generator().manual_seed(0))
    cut = Draft.chain([5, 6, 7], computed=Computed(hidden, 2), probabilities=drawn).within(2)
    assert cut.tokens == (5, 6)
    assert cut.computed is not None
    assert cut.computed.layers == 2
    assert torch.equal(cut.computed.hidden, hidden[:, :3])
    assert cut.probabilities is not None
    assert torch.equal(cut.probabilities, drawn[:2])
    cut.check(VOCAB)


def test_a_tree_loses_deep_nodes_and_renumbers_the_others() -> None:
    tree = Draft.tree([1, 2, 3, 4, 5, 6], [-1, 0, 1, -1, 3, 4])
    cut = tree.within(2)
    assert (cut.tokens, cut.parents) == ((1, 2, 4, 5), (-1, 0, -1, 2))
    cut = tree.within(1)
    assert (cut.tokens, cut.parents) == ((1, 4), (-1, -1))


def test_families_that_are_left_keep_what_their_tokens_were_drawn_from() -> None:
    """Depth first, a family that goes stands between two that stay."""
    drawn = torch.rand(5, VOCAB, generator=torch.Generator().manual_seed(0))
    tree = Draft.tree([1, 2, 3, 4, 5, 6], [-1, 0, 1, -1, 3, 4], probabilities=drawn)
    by_parent = dict(zip(tree.families, drawn, strict=True))
    for room, parents in ((2, [-1, 0, 3]), (1, [-1])):
        cut = tree.within(room)
        cut.check(VOCAB)
        assert cut.probabilities is not None
        assert torch.equal(cut.probabilities, torch.stack([by_parent[node] for node in parents]))


def test_riders_beyond_the_room_go_and_shallow_ones_stay_riders() -> None:
    tree = Draft.tree([1, 2, 7, 8], [-1, 0, 1, -1], riders=2)
    cut = tree.within(2)
    assert (cut.tokens, cut.parents, cut.riders) == ((1, 2, 8), (-1, 0, -1), 1)
    assert cut.proposed == 2
    chain = Draft((1, 2, 3, 4), riders=2).within(3)
    assert (chain.tokens, chain.depths, chain.riders) == ((1, 2, 3), (1, 2, 3), 1)


def lines(draft: Draft) -> set[tuple[tuple[int, ...], bool]]:
    """Every node as the tokens on the way to it, and whether it rides."""
    assert draft.parents is not None or not draft.tokens
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, draft.parents or (), strict=True):
        found.append((token,) if parent < 0 else (*found[parent], token))
    return {(line, node >= draft.proposed) for node, line in enumerate(found)}


def test_cut_trees_keep_exactly_the_lines_that_fit() -> None:
    draw = random.Random(1)
    for _ in range(200):
        n, riders = draw.randrange(1, 9), draw.randrange(0, 4)
        parents = [draw.randrange(-1, node) for node in range(n + riders)]
        # Tokens all differ, so that a line names its node.
        tree = Draft.tree(range(n + riders), parents, riders=riders)
        tree.check(n + riders)
        for room in range(6):
            cut = tree.within(room)
            cut.check(n + riders)
            assert lines(cut) == {line for line in lines(tree) if len(line[0]) <= room}
