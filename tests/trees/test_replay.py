"""Decoding played over known texts: by hand, against the loop itself, and what it promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ppdbench.decoding.decoder import Decoder, Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.probe.drafts import GuessRanks
from ppdbench.runs.workload import Item
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.dynamic import DynamicTree, TreeState, amortized_tokens, search
from ppdbench.trees.expected import basis, expected, in_states, played
from ppdbench.trees.record import RankedOutput
from ppdbench.trees.replay import replay
from ppdbench.trees.static import expected_tokens, grow
from ppdbench.trees.tree import Node, Tree
from tests.decoding.matrix import CAPACITY, CLOCK, Case, decode_case
from tests.helpers import staged, tokens
from tests.methods.hidden_transfer.test_strategy import transferring
from tests.methods.medusa.made import random_heads
from tests.methods.prompt_tokens.made import prompted
from tests.trees.made import drawn, outputs

SMALL = Tree(((0,), (1,), (0, 0)))
# Place by place: ways (0, 0), (0,), (), (1, 2), (1,), ().
TEXT = RankedOutput("squad", ("00.11.", "0..2."))

# By hand


def test_a_step_goes_on_behind_the_last_node_accepted_and_its_own_token() -> None:
    # (0, 0) and its own token: three of six tokens. At place 3 (1,) and its own, at 5 the last.
    found = replay(SMALL, [TEXT])
    assert (found.tokens, found.steps) == ((6,), (3,))
    assert found.kept == ({(0, 0): 1, (1,): 1, (): 1},)
    assert found.tokens_per_step.value == 2
    assert found.reached(0, SMALL) == pytest.approx((1, 1 / 3, 1 / 3, 1 / 3))


def test_no_guess_is_accepted_in_the_place_of_the_last_token() -> None:
    assert replay(Tree(((0,),)), [RankedOutput("a", ("0",))]).steps == (1,)
    assert replay(Tree(((0,),)), [RankedOutput("a", ("000",))]).steps == (2,)


def test_steps_without_guesses_come_first() -> None:
    # Place 0 is passed unguided; then (0,) at 1, (1,) at 3, nothing at 5.
    assert replay(SMALL, [TEXT], unguided=1).steps == (4,)
    assert replay(SMALL, [RankedOutput("a", ("0",))], unguided=1).steps == (1,)


def test_states_follow_the_prompt_tokens_of_the_last_node() -> None:
    tree = DynamicTree((TreeState(Tree(((1,),)), (2, 1)), TreeState(SMALL, (1, 1, 1, 1))))
    found = replay(tree, [TEXT])
    # All of (0, 0) in state 2, then (1,) in state 1, to which it leads again.
    assert found.kept == ({(1,): 1, (): 1}, {(0, 0): 1})
    assert (found.share(0), found.share(1)) == (2 / 3, 1 / 3)
    never = DynamicTree((TreeState(Tree(((1,),)), (2, 2)), TreeState(SMALL, (2, 2, 2, 2))))
    idle = replay(never, [TEXT])
    assert (idle.share(0), idle.reached(0, Tree(((1,),)))) == (0, (0, 0))


def test_a_tree_that_guesses_nothing_right_takes_a_step_for_each_token() -> None:
    assert replay(Tree(((31,),)), [TEXT, TEXT]).steps == (6, 6)


# Against the loop

PROMPTS = [tokens(9, seed) for seed in range(4)]
WIDE = Tree(((0,), *((n,) for n in range(1, 13)), (0, 0), (0, 3), (1, 0), (0, 0, 1)))
MANY = Tree((*WIDE.paths, *((n, m) for n in range(2, 9) for m in range(3))))
STATES = DynamicTree(
    (
        TreeState(WIDE.within(1), tuple(1 + n % 3 for n in range(1 + len(WIDE.within(1))))),
        TreeState(WIDE.within(2), tuple(1 + n % 3 for n in range(1 + len(WIDE.within(2))))),
        TreeState(WIDE, tuple(1 + n % 3 for n in range(1 + len(WIDE)))),
    )
)


def medusa(model: StagedModel, folder: Path) -> tuple[Decoder, Tree | DynamicTree]:
    MANY.save(folder / "tree.json")
    return random_heads(model, folder, tree=str(folder / "tree.json")), MANY


def hidden(model: StagedModel, folder: Path) -> tuple[Decoder, Tree | DynamicTree]:
    return transferring(WIDE), WIDE


def prompt_tokens(model: StagedModel, folder: Path) -> tuple[Decoder, Tree | DynamicTree]:
    return prompted(model, STATES), STATES


def calibrated(decoder: Decoder, model: StagedModel, limits: Limits) -> list[RankedOutput]:
    """The ranks of a method's guesses on greedy outputs, as the probe has them."""
    ranks, made = GuessRanks("some", decoder), []
    for prompt in PROMPTS:
        session = Session(model, CAPACITY, spare=decoder.rows)
        output = autoregressive(session, Request(prompt, limits, CLOCK)).output_ids
        item = Item(None, None, prompt, 0, limits.max_new_tokens)  # type: ignore[arg-type]
        found = ranks(session, item, output)["ranks"]
        made.append(RankedOutput.of("some", list(found.values())))
    return made


@pytest.mark.parametrize("make", [medusa, hidden, prompt_tokens])
@pytest.mark.parametrize("end", ["length", "eos"])
def test_decoding_takes_the_steps_that_were_played(
    make: Callable[[StagedModel, Path], tuple[Decoder, Tree | DynamicTree]],
    end: str,
    tmp_path: Path,
) -> None:
    model = staged("llama")
    decoder, tree = make(model, tmp_path)
    some = decode_case(decoder, Case("own", PROMPTS[0], Limits(30)), model).output_ids
    limits = Limits(30, frozenset(some[9:10]) if end == "eos" else frozenset())
    found = replay(tree, calibrated(decoder, model, limits), int(make is prompt_tokens))
    results = [decode_case(decoder, Case("own", prompt, limits), model) for prompt in PROMPTS]
    assert found.tokens == tuple(len(each.output_ids) - 1 for each in results)
    assert found.steps == tuple(len(each.accepted) for each in results)
    assert sum(found.steps) < sum(found.tokens)  # something was accepted


# What is expected


@pytest.mark.parametrize("method", ["medusa", "prompt-tokens"])
def test_expectations_are_those_of_the_outputs_with_an_interval(method: str) -> None:
    known = Accuracies.counted(method, outputs(0))
    tree = grow(known, 8)
    walked = replay(tree, known.outputs, known.unguided)
    found = expected(tree, known)
    assert found.value == sum(walked.tokens) / sum(walked.steps)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    assert known.unguided == (method == "prompt-tokens")


def test_counts_alone_give_an_expectation_without_an_interval() -> None:
    known = drawn(0)
    tree = search(known, 16)
    assert expected(grow(known, 4), known).value == expected_tokens(grow(known, 4), known)
    assert expected(tree, known).value == amortized_tokens(tree, known)
    assert expected(tree, known).low is None
    assert played(tree, known) is None


def test_accuracies_over_all_places_promise_more_than_decoding_finds() -> None:
    # Easy stretches are passed in few steps: half of all places are easy, of steps fewer are.
    known = Accuracies.counted("medusa", outputs(1, n=40))
    tree = Tree(((0,), (1,)))
    assert expected(tree, known).value < 0.96 * expected_tokens(tree, known)


def test_nodes_are_as_likely_as_steps_accepted_them() -> None:
    known = Accuracies.counted("prompt-tokens", outputs(2))
    for tree in (grow(known, 6), search(known, 24)):
        walked = played(tree, known)
        assert walked is not None
        guided = sum(ends.total() for ends in walked.kept)
        views = in_states(tree, known)
        shares = [1.0 if view.share is None else view.share for view in views]
        assert sum(shares) == pytest.approx(1)
        tokens = sum(s * v.tokens for s, v in zip(shares, views, strict=True)) * guided
        # Every output begins with a step that has no guesses, and gives one token.
        assert tokens == pytest.approx(sum(walked.tokens) - len(walked.tokens))
        for view, share in zip(views, shares, strict=True):
            assert sum(view.last) == pytest.approx(1 if share else 0)


def test_what_an_expectation_rests_on_is_said() -> None:
    known = Accuracies.counted("medusa", outputs(0))
    assert "6 greedy outputs (240 tokens: task 0, task 1)" in basis(known)
    assert "calibrate again" in basis(drawn(0))
    # Its guesses depend on the branch that they are made on, and those of one were counted.
    assert "eagle makes others" in basis(Accuracies.counted("eagle:depth=3", outputs(0)))


def naive(tree: Tree, output: RankedOutput) -> int:
    """Steps, by trying all nodes at every place."""
    place = steps = 0
    while place < output.tokens:
        room = output.tokens - place - 1
        right: list[Node] = [
            path
            for path in ((), *tree.paths)
            if len(path) <= room
            and all(output.ranks[j][place] == "0123456789abcdef"[r] for j, r in enumerate(path))
        ]
        place += 1 + max(map(len, right))
        steps += 1
    return steps


@pytest.mark.parametrize("seed", range(4))
def test_walks_are_those_of_trying_every_node(seed: int) -> None:
    made = outputs(seed)
    tree = grow(drawn(seed, distances=3), 20)
    assert replay(tree, made).steps == tuple(naive(tree, output) for output in made)
