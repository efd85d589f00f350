"""Which size pays: the rows of trees, what they promise, and the choice among them."""

from __future__ import annotations

import pytest

from ppdbench.errors import ConfigError, UnknownName
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.curve import KINDS, TreePlan, curve, fastest, timed
from ppdbench.trees.dynamic import DynamicTree, amortized_tokens, search
from ppdbench.trees.expected import expected
from ppdbench.trees.static import expected_tokens, grow
from ppdbench.trees.tree import Tree
from tests.trees.made import accuracies, drawn, outputs
from tests.trees.test_latency import curve as times

PROMPTS = drawn(0)
MEDUSA = drawn(0, method="medusa")


def test_medusa_inserts_nothing_so_that_rows_are_nodes() -> None:
    plan = TreePlan.of(MEDUSA)
    assert plan.kinds == ("static", "random")
    points = curve(plan, "static", (1, 2, 9))
    assert [(p.rows, p.nodes) for p in points] == [(2, 2), (9, 9)]
    assert points[1].tree == grow(MEDUSA, 8)
    assert points[1].tokens_per_step == expected_tokens(grow(MEDUSA, 8), MEDUSA)


def test_static_trees_of_prompt_tokens_carry_all_of_them_at_every_node() -> None:
    plan = TreePlan.of(PROMPTS)
    assert plan.kinds == KINDS
    points = curve(plan, "static", (7, 8, 11, 12))
    assert [(p.size, p.rows, p.nodes) for p in points] == [(8, 8, 2), (12, 12, 3)]
    assert points[1].tree == grow(PROMPTS, 2)


def test_dynamic_trees_fill_their_rows() -> None:
    (point,) = curve(TreePlan.of(PROMPTS), "dynamic", [24])
    assert point.tree == search(PROMPTS, 24)
    assert isinstance(point.tree, DynamicTree)
    assert (point.rows, point.nodes) == (24, 1 + max(len(s.tree) for s in point.tree.states))
    assert point.tokens_per_step == amortized_tokens(point.tree, PROMPTS)
    assert point.others["static"] == expected_tokens(grow(PROMPTS, 5), PROMPTS)
    assert 1 < point.others["random"] <= point.others["static"] <= point.tokens_per_step


def test_rows_per_guess_count_embeddings_and_shares_of_layers() -> None:
    several = TreePlan.of(PROMPTS, inserted=2)
    assert curve(several, "static", [21])[0].rows == 21  # 3 nodes of 1 + 3 * 2
    (point,) = curve(several, "dynamic", [21])
    assert point.tree == search(PROMPTS, 21, rows_per_prompt=2)
    hidden = drawn(0, method="hidden-transfer")
    assert curve(TreePlan.of(hidden), "static", [8])[0].rows == 8
    # 2.2 rows per node: 4 of them in 9.
    assert curve(TreePlan.of(hidden, inserted=0.4), "static", [9])[0].nodes == 4


def test_labels_with_options_are_of_the_same_method() -> None:
    assert TreePlan.of(drawn(0, method="prompt-tokens:addon=x")).kinds == KINDS


def test_depth_limits_what_is_guessed_and_inserted() -> None:
    plan = TreePlan.of(PROMPTS, depth=1)
    (point,) = curve(plan, "static", [9])
    assert (point.rows, point.nodes) == (8, 4)
    assert isinstance(point.tree, Tree)
    assert point.tree.depth == 1


def test_a_size_that_has_no_tree_of_its_own_is_left_out() -> None:
    known = accuracies((0.5, 0.1), method="medusa")
    assert [p.rows for p in curve(TreePlan.of(known), "static", (1, 2, 3, 4, 64))] == [2, 3]


def test_the_speedup_is_tokens_over_the_time_of_a_pass_against_greedy() -> None:
    known = accuracies((0.5, 0.25, 0.125), method="medusa")
    points = timed(
        curve(TreePlan.of(known), "static", (2, 3, 4)), times(2, 2.5, 6, 7, sizes=(1, 2, 3, 4))
    )
    assert [p.seconds for p in points] == pytest.approx([0.0025, 0.006, 0.007])
    assert [p.speedup for p in points] == pytest.approx([1.5 / 1.25, 1.75 / 3, 1.875 / 3.5])
    assert fastest(points) is points[0]


def test_where_passes_cost_the_same_the_largest_tree_is_chosen() -> None:
    points = timed(curve(TreePlan.of(MEDUSA), "static", (2, 4, 8)), times(5, 5, 5, 5))
    assert fastest(points).size == 8


def test_random_trees_are_those_of_their_seed() -> None:
    one, other = (curve(TreePlan.of(MEDUSA, seed=seed), "random", [12])[0].tree for seed in (0, 1))
    assert one != other
    assert one == curve(TreePlan.of(MEDUSA, seed=0), "random", [12])[0].tree


def test_what_no_plan_can_be_made_of_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--depth 4, but .* reach 3 tokens ahead; use 1\.\.3"):
        TreePlan.of(PROMPTS, depth=4)
    for inserted in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="--rows-per-guess"):
            TreePlan.of(PROMPTS, inserted=inserted)
    with pytest.raises(ConfigError, match=r"takes as many rows as it has embeddings; use 1, 2"):
        curve(TreePlan.of(PROMPTS, inserted=0.5), "dynamic", [20])
    with pytest.raises(ConfigError, match=r"dynamic trees are for prompt-tokens, .* medusa"):
        curve(TreePlan.of(MEDUSA), "dynamic", [20])
    with pytest.raises(UnknownName, match="did you mean dynamic"):
        curve(TreePlan.of(PROMPTS), "dynamc", [20])


def test_sizes_without_room_for_a_node_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no static tree of 7 rows .* take 8 rows"):
        curve(TreePlan.of(PROMPTS), "static", (3, 7))
    never = accuracies((0.0, 0.0), method="prompt-tokens")
    for kind in ("dynamic", "static"):
        with pytest.raises(ConfigError, match="right at least once"):
            curve(TreePlan.of(never), kind, [20])


def test_known_outputs_are_decoded_with_every_tree() -> None:
    known = Accuracies.counted("medusa", outputs(0))
    points = curve(TreePlan.of(known), "static", (3, 9))
    for point in points:
        found = expected(point.tree, known)
        assert (point.tokens_per_step, point.tokens_low) == (found.value, found.low)
    assert points[1].others["random"] <= points[1].tokens_per_step
