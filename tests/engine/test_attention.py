"""Attention in every shape that passes have, against the formula written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.attention import SLOW_FROM, attend
from ppdbench.engine.masks import FixedShape, Step, StepMaker

CPU = torch.device("cpu")
STEPS = StepMaker(32, CPU)
PASSES = {
    "one row": STEPS.chain(6, 1),
    "a prefill": STEPS.chain(0, 5),
    "a chain": STEPS.chain(6, 3),
    "siblings": STEPS.tree(6, [-1, -1, -1]),
    "one row of a fixed shape": StepMaker(32, CPU, shape=FixedShape(1, 9)).chain(4, 1),
}


def states(step: Step, groups: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of two KV heads, for two sequences if the step is for two."""
    made = torch.Generator().manual_seed(0)
    batch, keys = len(step.positions), step.key_length
    shapes = (2 * groups, step.n_query), (2, keys), (2, keys)
    found = [torch.randn(batch, heads, n, 8, generator=made).to(dtype) for heads, n in shapes]
    return found[0], found[1], found[2]


def written_out(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, cap: float | None
) -> Tensor:
    """[batch, query, heads, head_dim], every KV head repeated for the queries that share it."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if cap is not None:
        scores = cap * torch.tanh(scores / cap)
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    found: Tensor = (weights @ value).transpose(1, 2)
    return found


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("cap", [None, 2.0])
def test_attention_is_what_the_formula_says(name: str, groups: int, cap: float | None) -> None:
    step = PASSES[name]
    query, key, value = states(step, groups, torch.float32)
    mask = step.mask(None)
    causal = torch.ones(step.n_query, step.key_length).tril(step.key_length - step.n_query).bool()
    wanted = written_out(query, key, value, causal if mask is None else mask, cap)
    for given in (mask, step.added(None, groups, query.dtype)):
        found, _ = attend(torch.nn.Identity(), query, key, value, given, softcap=cap)
        assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_made_once_gives_the_bits_of_one_made_in_each_layer(
    name: str, groups: int, cap: float | None, dtype: torch.dtype
) -> None:
    step = PASSES[name]
    query, key, value = states(step, groups, dtype)
    given = step.mask(None), step.added(None, groups, dtype)
    here, once = (
        attend(torch.nn.Identity(), query, key, value, mask, softcap=cap)[0] for mask in given
    )
    assert torch.equal(here, once)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_a_single_row_in_bfloat16_is_what_it_is_among_others(batch: int, masked: bool) -> None:
    """However many rows the kernel is given to make it quick."""
    keys, made = SLOW_FROM + 3, torch.Generator().manual_seed(1)
    shapes = (batch, 2, 1, 8), (batch, 2, keys, 8), (batch, 2, keys, 8)
    query, key, value = (torch.randn(shape, generator=made).bfloat16() for shape in shapes)
    seen = torch.rand(batch, 1, 1, keys, generator=made) < 0.7 if masked else None
    found, _ = attend(torch.nn.Identity(), query, key, value, seen)
    everything = torch.ones(1, dtype=torch.bool) if seen is None else seen
    wanted = written_out(query.float(), key.float(), value.float(), everything, None)
    assert found.shape == wanted.shape
    assert torch.allclose(found.float(), wanted, atol=1e-2)
