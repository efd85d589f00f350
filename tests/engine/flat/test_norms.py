"""Norms are found out by asking stock modules, and kernels norm as those do."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ppdbench.engine.flat.norms import norms_of, write_norm
from ppdbench.engine.flat.understood import NotUnderstoodError
from tests.engine.flat.test_ops import DIM, HEADS, Program, close, run
from tests.engine.flat.test_weights import drawn

WIDTH = HEADS * DIM
# Of each the class in transformers, what it is made with, and the shape of what it norms.
STOCK: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...]]] = {
    "LlamaRMSNorm": ("llama", (WIDTH,), (WIDTH,)),
    "GemmaRMSNorm": ("gemma", (WIDTH,), (WIDTH,)),
    "Qwen3RMSNorm": ("qwen3", (DIM,), (HEADS, DIM)),
    "NanoChatRMSNorm": ("nanochat", (), (HEADS, DIM)),
    "OlmoLayerNorm": ("olmo", (WIDTH,), (WIDTH,)),
    "NemotronLayerNorm1P": ("nemotron", (WIDTH,), (WIDTH,)),
    "CohereLayerNorm": ("cohere", ((HEADS, DIM),), (HEADS, DIM)),
    "StableLmLayerNormPerHead": ("stablelm", (DIM, HEADS), (HEADS, 1, DIM)),
}


@torch.no_grad()
def made(name: str, dtype: torch.dtype) -> nn.Module:
    family, given, _ = STOCK[name]
    code = import_module(f"transformers.models.{family}.modeling_{family}")
    norm: nn.Module = getattr(code, name)(*given).to(dtype)
    for i, weight in enumerate(norm.parameters()):
        weight.copy_(1 + 0.3 * drawn(*weight.shape, dtype=dtype, seed=i))
    return norm


@pytest.mark.parametrize("name", STOCK)
@torch.no_grad()
def test_rows_and_heads_are_normed_as_stock_modules_norm_them(
    name: str, dtype: torch.dtype
) -> None:
    norm, shape = made(name, dtype), STOCK[name][2]
    # One row is so small that epsilon is the most part of it.
    x = drawn(5, WIDTH, dtype=dtype) * torch.tensor([1, 3, 1e-3, 1, 1], dtype=dtype)[:, None]
    program = Program(dtype, WIDTH)
    write_norm(program, norm, program.hidden, program.hidden, shape[-1])
    found = run(program, x, program.hidden)
    wanted = norm(x.view(5, *shape)).reshape(5, WIDTH)
    assert close(found, wanted.double())
    assert torch.equal(run(program, x[2:3], program.hidden), found[2:3])


@torch.no_grad()
def test_a_norm_whose_weights_hide_what_it_rounds_says_nothing_of_others() -> None:
    dtype = torch.bfloat16
    plain, weighed = made("LlamaRMSNorm", dtype), made("LlamaRMSNorm", dtype)
    torch.nn.init.ones_(plain.get_parameter("weight"))
    x = drawn(5, WIDTH, dtype=dtype)
    for norm in (plain, weighed, plain, weighed):
        program = Program(dtype, WIDTH)
        write_norm(program, norm, program.hidden, program.hidden)
        assert torch.equal(run(program, x, program.hidden), norm(x))


class Tripled(nn.LayerNorm):
    """A norm whose numbers come three times as large."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def test_what_a_norm_does_beyond_that_is_refused() -> None:
    program = Program(torch.float32, WIDTH)
    with pytest.raises(NotUnderstoodError, match="the norm Tripled is not known"):
        write_norm(program, Tripled(WIDTH), program.hidden, program.hidden)


def test_norms_in_other_places_are_refused_by_their_names() -> None:
    layer = nn.Module()
    layer.final_norm, layer.ln_1 = nn.LayerNorm(4), nn.LayerNorm(4)
    with pytest.raises(NotUnderstoodError, match="it has the norms final_norm, ln_1"):
        norms_of(layer)
