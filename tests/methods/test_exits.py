"""What nobody asked for: exits, lengths, candidates; by depth, or by a probe of deep models."""

from __future__ import annotations

import pytest
import torch

from ppdbench.decoding.decoder import Setup
from ppdbench.engine.staged import StagedModel
from ppdbench.methods import exits
from ppdbench.methods.exits import (
    BY_DEPTH,
    CANDIDATES,
    DRAFTED,
    MOST,
    agreement,
    chosen_candidates,
    chosen_drafts,
    chosen_exit,
    chosen_length,
    found_among,
    pace,
)
from tests.families import stock_model
from tests.helpers import plain, tokens
from tests.methods.prompt_tokens.made import as_loaded

DEEP = StagedModel(stock_model("llama", num_hidden_layers=BY_DEPTH + 4), text=tokens(60))
SMALL = StagedModel(stock_model("llama"), text=tokens(60))


def setup(model: StagedModel = DEEP) -> Setup:
    return Setup(as_loaded(model), 64)


def test_small_models_exit_by_depth_and_are_not_probed() -> None:
    found = chosen_exit(setup(SMALL), 1, lambda *_: 0.0)
    assert (found.layers, found.matches, found.facts()) == (1, None, {})


def test_shares_are_those_of_every_third_position_counted_by_hand() -> None:
    ids, states = list(DEEP.text), {}
    with torch.inference_mode():
        cache, steps = DEEP.new_cache(64)
        keep = states.__setitem__
        DEEP.forward(torch.tensor([ids]), steps.prefill(len(ids)), cache, tap=keep)
        final = DEEP.logits(plain(DEEP, ids)).argmax(-1)[0, 2::3]
        first = DEEP.logits(states[7]).topk(3).indices[0, 2::3]
    by_hand = [bool((row == token).any()) for row, token in zip(first, final, strict=True)]
    assert found_among(DEEP, 1, 3)[7][2] == sum(by_hand) / len(by_hand)


def test_the_exit_is_worth_most_and_of_equal_ones_the_earliest() -> None:
    first = chosen_exit(setup(), 4, lambda layer, match: 0.0)
    assert first.layers == 1
    best = chosen_exit(setup(), 4, lambda layer, match: -abs(layer - 9))
    assert best.told(DEEP.n_layers) == "9 of 16"
    assert best.facts()["exit_probe"]["exit"] == 9
    assert chosen_exit(setup(), 4, lambda layer, match: match) == chosen_exit(
        setup(), 4, lambda layer, match: match
    )


def found(monkeypatch: pytest.MonkeyPatch, shares: dict[int, tuple[float, ...]]) -> None:
    """Let the probe find these shares after each layer."""
    monkeypatch.setattr(
        exits,
        "found_among",
        lambda model, first, most: {e: s[:most] for e, s in shares.items() if e >= first},
    )


def test_one_more_candidate_never_finds_less_and_all_of_them_find_every_token() -> None:
    for shares in found_among(DEEP, 1, DEEP.vocab_size).values():
        assert sorted(shares) == list(shares)
        assert shares[-1] == 1.0


def test_pace_is_tokens_by_time_counted_by_hand() -> None:
    assert pace(0.0, 0.25, 2) == 1 / 1.5
    assert pace(1.0, 0.25, 2) == 3 / 1.5
    assert pace(0.5, 0.1, 3) == pytest.approx((1 + 0.5 + 0.25 + 0.125) / 1.3)


def test_small_models_draft_a_few_tokens_and_have_a_few_candidates() -> None:
    small = setup(SMALL)
    assert chosen_drafts(small, 0, 0, 1).count == DRAFTED
    assert chosen_candidates(small, 0, 0, 2).count == CANDIDATES
    length = chosen_length(small, "itself", lambda: SMALL)
    assert (length.count, length.facts()) == (DRAFTED, {})


def test_the_more_is_right_the_longer_drafts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    for share in (0.0, 0.9, 1.0):
        found(monkeypatch, dict.fromkeys(range(1, DEEP.n_layers), (share,)))
        drafts = chosen_drafts(setup(), 0, 0, 4)
        assert drafts.exit.layers == 1, "all know as much, and the first is the cheapest"
        lengths.append(drafts.count)
    assert lengths[0] == 1
    assert lengths == sorted(lengths)
    assert lengths[-1] == MOST


def test_what_was_asked_is_kept_and_the_other_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found(monkeypatch, dict.fromkeys(range(1, DEEP.n_layers), (1.0,)))
    both = chosen_drafts(setup(), 7, 3, 4)
    assert (both.exit.layers, both.exit.matches, both.count) == (7, None, 3)
    at_seven = chosen_drafts(setup(), 7, 0, 4)
    assert (at_seven.exit.layers, at_seven.count) == (7, MOST)
    assert chosen_drafts(setup(), 0, 2, 4).drafting(DEEP.n_layers) == {
        "exit_layer": "1 of 16",
        "draft_length": "2",
    }


def test_candidates_are_as_many_as_each_find_some_tokens_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The eighth layer saves 0.5 * 8 layers, the twelfth 0.9 * 4.
    found(monkeypatch, {8: (0.4, 0.5, 0.52, 0.9), 12: (0.9, 0.91, 0.92, 0.93)})
    chosen = chosen_candidates(setup(), 0, 0, 8)
    assert (chosen.exit.layers, chosen.count) == (8, 2)
    assert chosen.exit.matches == {8: (0.4, 0.5, 0.52, 0.9), 12: (0.9, 0.91, 0.92, 0.93)}
    assert chosen_candidates(setup(), 12, 0, 8).count == 1
    asked = chosen_candidates(setup(), 0, 4, 8)
    assert (asked.exit.layers, asked.count) == (8, 4)


def test_a_second_model_drafts_as_long_as_both_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = StagedModel(stock_model("llama", num_hidden_layers=2), text=tokens(60))
    assert agreement(DEEP, DEEP) == 1.0
    itself = chosen_length(setup(), "itself", lambda: DEEP)
    assert itself.count == 1, "drafts that cost as much as what they save"
    measured = chosen_length(setup(), "twin", lambda: twin)
    assert measured.agreement == agreement(DEEP, twin)
    assert measured.facts()["length_probe"].keys() == {"draft_length", "agreement", "cost"}
    counts = []
    for share in (0.0, 0.5, 0.9, 1.0):
        monkeypatch.setattr(exits, "agreement", lambda one, other, share=share: share)
        counts.append(chosen_length(setup(), "twin", lambda: twin).count)
    assert counts[0] == 1
    assert counts == sorted(counts)
    assert counts[-1] == MOST


def test_a_run_probes_once_for_all_that_ask_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def look(model: StagedModel, first: int, most: int) -> exits.Shares:
        looked.append((first, most))
        return dict.fromkeys(range(first, model.n_layers), (0.5,) * most)

    monkeypatch.setattr(exits, "found_among", look)
    run = setup()
    chosen_drafts(run, 0, 0, 4)
    chosen_drafts(run, 0, 6, 4)
    chosen_exit(run, 8, lambda layer, match: match)
    chosen_candidates(run, 0, 3, 8)
    assert looked == [(1, 1), (8, 3)]
