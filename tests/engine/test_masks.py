"""Steps: which rows, which positions, and who sees whom, written out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.masks import PREBUILT_ROWS, FixedShape, Step, StepMaker, behind

STEPS = StepMaker(32, torch.device("cpu"))


def windowed(window: int | None) -> StepMaker:
    return StepMaker(STEPS.capacity, STEPS.device, window)


def fixed(rows: int, keys: int) -> StepMaker:
    return StepMaker(STEPS.capacity, STEPS.device, shape=FixedShape(rows, keys))


def drawn(mask: Tensor | None, row: int = 0) -> list[str]:
    """A mask as lines of x and dots."""
    assert mask is not None
    return ["".join("x" if seen else "." for seen in query) for query in mask[row, 0].tolist()]


# Chains


def test_a_prefill_leaves_causal_order_to_the_kernel() -> None:
    step = STEPS.chain(0, 5)
    assert step.mask(None) is None
    assert (step.start, step.end, step.n_query, step.key_length) == (0, 5, 5, 5)
    assert step.positions.tolist() == [[0, 1, 2, 3, 4]]
    assert step.contiguous
    assert step.rows is None


@pytest.mark.parametrize("start", [0, 1, 9])
def test_a_single_query_needs_no_mask(start: int) -> None:
    step = windowed(3).chain(start, 1)
    assert step.mask(3) is None
    assert step.positions.tolist() == [[start]]
    assert step.key_length == start + 1
    assert step.contiguous


def test_several_queries_after_a_prefix_see_it_and_each_other_in_order() -> None:
    step = STEPS.chain(2, 3)
    assert step.positions.tolist() == [[2, 3, 4]]
    assert step.contiguous
    assert drawn(step.mask(None)) == ["xxx..", "xxxx.", "xxxxx"]


@pytest.mark.parametrize("n", [2, PREBUILT_ROWS, PREBUILT_ROWS + 1])
@pytest.mark.parametrize("start", [1, 7])
def test_what_a_chain_sees_is_causal_order_made_before_or_now(n: int, start: int) -> None:
    steps = StepMaker(PREBUILT_ROWS + 9, torch.device("cpu"))
    mask = steps.chain(start, n).mask(None)
    assert mask is not None
    rows, keys = torch.arange(start, start + n), torch.arange(start + n)
    assert torch.equal(mask[0, 0], keys <= rows[:, None])


def test_a_window_hides_rows_from_it_on() -> None:
    step = windowed(2).chain(2, 3)
    assert drawn(step.mask(2)) == [".xx..", "..xx.", "...xx"]
    assert drawn(step.mask(None)) == ["xxx..", "xxxx.", "xxxxx"]


def test_a_prefill_gets_a_mask_only_where_it_outgrows_the_narrowest_window() -> None:
    assert windowed(4).chain(0, 4).mask(4) is None
    step = windowed(3).chain(0, 4)
    assert drawn(step.mask(3)) == ["x...", "xx..", "xxx.", ".xxx"]
    assert drawn(step.mask(4)) == ["x...", "xx..", "xxx.", "xxxx"]


# Trees


def test_tree_nodes_see_the_prefix_their_ancestors_and_themselves() -> None:
    step = STEPS.tree(2, [-1, -1, 0, 0, 2, 1])
    assert drawn(step.mask(None)) == [
        "xxx.....",
        "xx.x....",
        "xxx.x...",
        "xxx..x..",
        "xxx.x.x.",
        "xx.x...x",
    ]
    assert step.positions.tolist() == [[2, 2, 3, 3, 4, 3]]
    assert (step.start, step.end, step.key_length, step.n_query) == (2, 8, 8, 6)
    assert not step.contiguous


def test_a_window_over_a_tree_counts_depth_and_not_rows() -> None:
    # Rows 3 and 4 are one level: the last node is 2 deep, 5 rows after the sequence began.
    step = STEPS.tree(2, [-1, -1, 1, 1, 3])
    assert step.positions.tolist() == [[2, 2, 3, 3, 4]]
    assert drawn(step.mask(3)) == ["xxx....", "xx.x...", ".x.xx..", ".x.x.x.", "...x.xx"]


def test_a_tree_that_is_a_chain_sees_what_a_chain_sees() -> None:
    for window in (None, 3):
        tree, chain = STEPS.tree(4, [-1, 0, 1, 2]), windowed(window).chain(4, 4)
        assert drawn(tree.mask(window)) == drawn(chain.mask(window))
        assert tree.positions.tolist() == chain.positions.tolist()


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([0], r"node 0 names parent 0; use -1\.\.-1"),
        ([-1, 1], r"node 1 names parent 1; use -1\.\.0"),
        ([-1, 2, -1], r"node 1 names parent 2; use -1\.\.0"),
        ([-1, 0, -2], r"node 2 names parent -2; use -1\.\.1"),
    ],
)
def test_a_parent_must_come_before_its_child(parents: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        STEPS.tree(3, parents)


def test_rows_that_join_a_tree_see_what_they_name_and_stand_where_they_say() -> None:
    joined = [(((0, 1), (0, 2)), (2, 2)), (((0, 1, 3), ()), (3, 9))]
    step = STEPS.tree(2, [-1, 0, 0], last=10, joined=joined)
    assert drawn(step.mask(None)) == [
        "xxx......",
        "xxxx.....",
        "xxx.x....",
        "xxxx.x...",
        "xxx.x.x..",
        "xxxx.x.x.",
        "xx......x",
    ]
    assert step.positions.tolist() == [[2, 3, 3, 4, 4, 5, 10]]
    assert (step.start, step.end, step.key_length, step.n_query) == (2, 9, 9, 7)
    assert drawn(step.mask(3))[3:] == ["..xx.x...", "..x.x.x..", "...x.x.x.", "........x"]


# Rows behind a text


def test_rows_behind_a_text_see_it_up_to_their_reach() -> None:
    own = torch.eye(3, dtype=torch.bool)
    own[2, 0] = True
    step = behind(4, torch.tensor([1, 3, 2]), torch.tensor([2, 4, 4]), own)
    assert drawn(step.mask(None)) == ["xx..x..", "xxxx.x.", "xxx.x.x"]
    assert drawn(step.mask(2)) == [".x..x..", "...x.x.", "......x"]
    assert step.positions.tolist() == [[2, 4, 4]]
    assert (step.start, step.end, step.key_length, step.n_query) == (4, 7, 7, 3)


# Shapes that stay fixed


def test_a_fixed_step_masks_what_is_not_written_yet() -> None:
    step = fixed(3, 7).chain(2, 3)
    assert step.positions.tolist() == [[2, 3, 4]]
    assert step.rows is not None
    assert step.rows.tolist() == [2, 3, 4]
    assert drawn(step.mask(None)) == ["xxx....", "xxxx...", "xxxxx.."]
    assert drawn(step.mask(2)) == [".xx....", "..xx...", "...xx.."]
    assert not step.contiguous


def test_fixed_steps_have_one_shape_at_every_position() -> None:
    def shapes(step: Step) -> list[object]:
        mask, windowed = step.mask(None), step.mask(3)
        assert mask is not None
        assert windowed is not None
        assert step.rows is not None
        tensors = (mask, windowed, step.positions, step.rows)
        return [step.n_query, step.key_length, *(t.shape for t in tensors)]

    first = shapes(fixed(4, 16).chain(0, 4))
    for start in range(1, 13):
        assert shapes(fixed(4, 16).chain(start, 4)) == first


def test_a_single_fixed_query_has_a_mask_too() -> None:
    assert drawn(fixed(1, 6).chain(3, 1).mask(None)) == ["xxxx.."]


def test_windows_of_different_layers_do_not_mix() -> None:
    step = windowed(2).chain(4, 2)
    masks = {window: drawn(step.mask(window)) for window in (2, 3, None, 2, 3)}
    assert masks == {
        2: ["...xx.", "....xx"],
        3: ["..xxx.", "...xxx"],
        None: ["xxxxx.", "xxxxxx"],
    }


# What is added to scores


def test_what_is_added_hides_what_is_not_seen_from_each_query_of_a_group() -> None:
    step, far = STEPS.tree(1, [-1, -1]), float("-inf")
    added = step.added(None, 3, torch.bfloat16)
    assert added is not None
    assert added.dtype == torch.bfloat16
    assert added.tolist() == [[[[0.0, 0.0, far], [0.0, far, 0.0]] * 3]]


def test_what_is_added_is_made_once_for_all_layers_of_a_kind() -> None:
    step = windowed(2).chain(4, 2)
    kinds = [(w, g, t) for w in (2, None) for g in (1, 2) for t in (torch.float32, torch.bfloat16)]
    made = [step.added(*kind) for kind in kinds]
    assert all(step.added(*kind) is one for kind, one in zip(kinds, made, strict=True))
    for (window, groups, dtype), one in zip(kinds, made, strict=True):
        mask = step.mask(window)
        assert mask is not None
        assert one is not None
        assert one.dtype == dtype
        assert torch.equal(one == 0, mask.repeat(1, 1, groups, 1))


def test_nothing_is_added_where_order_alone_decides() -> None:
    assert STEPS.chain(0, 5).added(None, 2, torch.float32) is None
    assert STEPS.chain(5, 1).added(None, 2, torch.float32) is None


def test_one_query_sees_the_same_from_every_head() -> None:
    added = fixed(1, 6).chain(3, 1).added(None, 4, torch.float32)
    assert added is not None
    assert added.shape == (1, 1, 1, 6)
