"""Fast passes are refused where they are wrong, and only there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families import tiny
from benchmarks.flat_bugs import BLOCK, FLAT_BUGS, rounded
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.graphs import CapturedRows, Graphs
from ppdbench.engine.pass_check import PassPlan
from ppdbench.engine.reading import Reading
from ppdbench.engine.staged import StagedModel, wider
from ppdbench.errors import NumericalError
from tests.capturing import Repeated
from tests.families import stock_model
from tests.helpers import plain, tokens

COUNTS = (1, 3, 8)
DTYPES = [torch.float32, torch.bfloat16]
Turn = tuple[Tensor, Tensor]


def made(dtype: torch.dtype = torch.float32) -> StagedModel:
    """A model whose passes are captured, its weights in plain rows so that bugs can change them."""
    stock = stock_model("llama").to(dtype)
    model = StagedModel(stock, packed=False, text=tokens(150))
    model.graphs = Graphs(model.adapter, Repeated())
    model.capture(COUNTS)
    return model


# Bugs: a layer of a captured pass, run in the place of the right one.
Damage = Callable[[Adapter, int, Tensor, Tensor, Turn, CapturedRows], Tensor]


def too_large(
    adapter: Adapter, i: int, hidden: Tensor, mask: Tensor, turn: Turn, rows: CapturedRows
) -> Tensor:
    return 1.04 * adapter.call_layer(i, hidden, mask, turn, rows)


def no_last_block(
    adapter: Adapter, i: int, hidden: Tensor, mask: Tensor, turn: Turn, rows: CapturedRows
) -> Tensor:
    """The last columns of the output are forgotten, as by a loop without its rest."""
    out = adapter.call_layer(i, hidden, mask, turn, rows)
    return torch.cat([out[..., :-BLOCK], hidden[..., -BLOCK:]], dim=-1)


def turned_back(
    adapter: Adapter, i: int, hidden: Tensor, mask: Tensor, turn: Turn, rows: CapturedRows
) -> Tensor:
    cos, sin = turn
    return adapter.call_layer(i, hidden, mask, (cos, -sin), rows)


def one_short(
    adapter: Adapter, i: int, hidden: Tensor, mask: Tensor, turn: Turn, rows: CapturedRows
) -> Tensor:
    """The keys that a row sees are counted one short, so that it does not see itself."""
    seen = mask.roll(-1, dims=-1) & mask
    seen[..., -1] = False
    return adapter.call_layer(i, hidden, seen, turn, rows)


def coarse(
    adapter: Adapter, i: int, hidden: Tensor, mask: Tensor, turn: Turn, rows: CapturedRows
) -> Tensor:
    """Matrices are read with few of their digits, less than bfloat16 has."""
    layer = copy.deepcopy(adapter.layers[i])
    for weight in layer.parameters():
        if weight.dim() == 2:
            weight.data = rounded(weight.data)
    return adapter.with_layers({i: layer}).call_layer(i, hidden, mask, turn, rows)


BUGS: dict[str, Damage] = {
    "states 4 % too large": too_large,
    "last columns forgotten": no_last_block,
    "turned the wrong way": turned_back,
    "keys counted one short": one_short,
    "matrices read coarsely": coarse,
}


def plant(model: StagedModel, damage: Damage) -> None:
    """Have the layers of captured passes do something else; eager ones stay as they are."""
    adapter = copy.copy(model.adapter)
    adapter.call_layer = partial(damage, model.adapter)  # type: ignore[method-assign]
    model.graphs = model.graphs.of(adapter)


def test_the_same_bugs_are_planted_into_both_kinds_of_passes() -> None:
    assert list(BUGS) == list(FLAT_BUGS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_good_passes_are_never_refused_and_planted_bugs_always(dtype: torch.dtype) -> None:
    model = made(dtype)
    for seed in range(8):
        model.hold_captured(COUNTS, seed=seed)
    for number, damage in enumerate(BUGS.values()):
        plant(model, damage)
        for n in COUNTS:
            with pytest.raises(NumericalError, match="off by"):
                model.hold_captured([n], seed=number)


def test_a_pass_that_computes_something_else_is_refused_with_what_to_do() -> None:
    model = made()
    plant(model, too_large)
    said = r"^a captured pass of 1 rows is off by .* after 1 layers, .*; use --compile off$"
    with pytest.raises(NumericalError, match=said):
        model.capture([1])


class OtherLikeliest(Graphs):
    """Graphs whose readout names another token than the likeliest."""

    def read(self, hidden: Tensor) -> Reading | None:
        found = super().read(hidden)
        return found and Reading(found.logits, found.likeliest ^ 1, found.peaks)


def test_a_pass_that_finds_another_likeliest_token_is_refused() -> None:
    model = made()
    model.graphs = OtherLikeliest(model.adapter, Repeated())
    with pytest.raises(NumericalError, match=r"tokens that it finds likeliest; use --compile off"):
        model.capture([1])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((stock_model, n) for n in ("llama-mha-tied", "qwen3", "gemma2", "gpt2", "opt", "phi3")),
        *((tiny, n) for n in ("bloom", "modernbert-decoder")),  # words are normed
    ],
)
def test_the_wider_model_is_the_stock_model_in_that_type(
    make: Callable[[str], Any], name: str
) -> None:
    model, truth = StagedModel(make(name)), StagedModel(make(name).double())
    ids = tokens(20)
    with torch.inference_mode():
        ours = wider(model).logits(plain(wider(model), ids))
        found = truth.logits(plain(truth, ids))
    assert ours.dtype == torch.float64
    # Words are scaled in the type of the model, and angles are told in float32.
    assert float((ours - found).abs().max() / found.abs().max()) < 1e-6


def test_rows_of_a_plan_are_drawn_anew_by_seed_and_alike_for_the_same_one() -> None:
    text = range(200)
    first, again, other = (PassPlan.over(text, COUNTS, 4096, seed) for seed in (1, 1, 2))
    assert first == again
    assert first.tokens != other.tokens
    assert {len(each.rows) for each in first.passes[8]} == {7, 8}  # 7 rows are filled up to 8
    trees = [each for planned in first.passes.values() for each in planned if each.parents]
    assert [len(tree.rows) for tree in trees] == [3, 8]
    for tree in trees:
        assert first.parents[tree.rows[0]] == tree.start - 1


def test_a_short_model_gets_a_short_prompt() -> None:
    plan = PassPlan.over(range(200), COUNTS, 40, 0)
    assert plan.longest <= 40
