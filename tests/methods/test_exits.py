"""An exit that nobody asked for: by depth in small models, by a probe of the model in deep ones."""

from __future__ import annotations

import torch

from ppdbench.engine.staged import StagedModel
from ppdbench.methods.exits import BY_DEPTH, chosen_exit, match_shares
from tests.families import stock_model
from tests.helpers import plain, tokens

DEEP = StagedModel(stock_model("llama", num_hidden_layers=BY_DEPTH + 4), text=tokens(60))


def test_small_models_exit_by_depth_and_are_not_probed() -> None:
    small = StagedModel(stock_model("llama"), text=tokens(60))
    found = chosen_exit(small, 1, lambda *_: 0.0)
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
    assert match_shares(DEEP, 1, 3)[7] == torch.tensor(by_hand).float().mean()


def test_the_exit_is_worth_most_and_of_equal_ones_the_earliest() -> None:
    first = chosen_exit(DEEP, 4, lambda layer, match: 0.0)
    assert first.layers == 1
    best = chosen_exit(DEEP, 4, lambda layer, match: -abs(layer - 9))
    assert best.told(DEEP.n_layers) == "9 of 16"
    assert best.facts()["exit_probe"]["exit"] == 9
    assert chosen_exit(DEEP, 4, lambda layer, match: match) == chosen_exit(
        DEEP, 4, lambda layer, match: match
    )
