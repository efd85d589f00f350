"""Turns of heads are found out by asking stock functions, and kernels turn as those do."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ppdbench.engine.flat.rotation import Rotation, pair_of, rotation_of, turns_first
from ppdbench.engine.flat.understood import NotUnderstoodError
from tests.engine.flat.test_ops import DIM, HEADS, Program, cache, causal, close, run
from tests.engine.flat.test_weights import drawn

WAYS = {
    ("llama", "LlamaAttention"): Rotation(),
    ("nanochat", "NanoChatAttention"): Rotation(backward=True),
    ("cohere", "CohereAttention"): Rotation(neighbours=True, round_first=False),
    ("glm", "GlmAttention"): Rotation(neighbours=True, spread=True),
    ("ernie4_5", "Ernie4_5Attention"): Rotation(neighbours=True, spread=True, round_first=False),
}


def stock(family: str, name: str) -> Any:
    """An attention module of transformers without its weights."""
    code = import_module(f"transformers.models.{family}.modeling_{family}")
    kind = getattr(code, name)
    return kind.__new__(kind), code.apply_rotary_pos_emb


@pytest.mark.parametrize(("family", "name"), WAYS)
@pytest.mark.parametrize("width", [DIM, 12])
def test_heads_turn_as_stock_functions_turn_them(
    family: str, name: str, width: int, dtype: torch.dtype
) -> None:
    block, rotate = stock(family, name)
    way = rotation_of(block, DIM, width)
    assert way == WAYS[family, name]
    drawn_angles = drawn(5, width // 2, seed=1)
    angles = (
        drawn_angles.repeat_interleave(2, -1) if family == "cohere" else drawn_angles.repeat(1, 2)
    )
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    x = drawn(5, HEADS * DIM, dtype=dtype)
    program = Program(dtype, HEADS * DIM)
    program.rotate(
        *(program.hidden, HEADS, DIM, width),
        neighbours=way.neighbours,
        round_first=way.round_first,
    )
    tables = tuple(table.float().contiguous() for table in way.tables(cos, sin))
    found = run(program, x, program.hidden, causal(0, 5, cache(1, dtype)[0], [tables]))
    heads = x.view(5, HEADS, DIM).transpose(0, 1)[None]
    turned = rotate(heads[..., :width], heads[..., :width], cos[None], sin[None])[0]
    wanted = torch.cat([turned, heads[..., width:]], dim=-1)[0].transpose(0, 1).reshape(5, -1)
    assert close(found, wanted.double(), 0.1)
    alone = run(
        *(program, x[2:3], program.hidden),
        causal(0, 1, cache(1, dtype)[0], [(tables[0][2:3], tables[1][2:3])]),
    )
    assert torch.equal(alone, found[2:3])


def test_tables_may_say_each_angle_once() -> None:
    heads, (cos, sin) = drawn(1, 2, 5, DIM), drawn(2, 1, 5, DIM // 2, seed=1)
    block, rotate = stock("gpt_oss", "GptOssAttention")
    way = rotation_of(block, DIM, DIM // 2)
    assert way.once and not way.neighbours
    assert torch.allclose(way.turned(heads, cos, sin), rotate(heads, heads, cos, sin)[0])


@pytest.mark.parametrize("apart", [True, False])
def test_a_setting_says_of_what_pairs_heads_consist(apart: bool) -> None:
    heads, angles = drawn(1, 2, 5, DIM), drawn(2, 1, 5, DIM // 2, seed=1)
    cos, sin = angles.repeat(1, 1, 1, 2)
    block, _ = stock("youtu", "YoutuAttention")
    block.__dict__["config"] = SimpleNamespace(rope_interleave=apart)
    code = import_module("transformers.models.youtu.modeling_youtu")
    rotate = code.apply_rotary_pos_emb_interleave if apart else code.apply_rotary_pos_emb
    way = rotation_of(block, DIM, DIM)
    assert way == Rotation(parted=apart)
    assert torch.allclose(way.turned(heads, cos, sin), rotate(heads, heads, cos, sin)[0])


@pytest.mark.parametrize(
    ("family", "attention", "behind"),
    [("deepseek_v2", "DeepseekV2Attention", False), ("llama4", "Llama4TextAttention", True)],
)
def test_tables_may_be_one_of_complex_numbers_for_heads_before_rows_or_behind(
    family: str, attention: str, behind: bool
) -> None:
    heads, angles = drawn(1, 2, 5, DIM), drawn(1, 5, DIM // 2, seed=1)
    code = import_module(f"transformers.models.{family}.modeling_{family}")
    kind = getattr(code, attention)
    way = rotation_of(kind.__new__(kind), DIM, DIM // 2)
    assert way == Rotation(neighbours=True, spread=True, once=True, round_first=False)
    table = torch.polar(torch.ones_like(angles), angles)
    given = heads.transpose(1, 2) if behind else heads
    turned = code.apply_rotary_emb(given, given, table)[0]
    wanted = turned.transpose(1, 2) if behind else turned
    assert torch.allclose(way.turned(heads, *pair_of((table,))), wanted, atol=1e-6)


def test_code_says_that_heads_are_turned_before_they_are_normed() -> None:
    kind = import_module("transformers.models.llama4.modeling_llama4").Llama4TextAttention
    assert turns_first(kind.__new__(kind), "qk_norm")


@pytest.mark.parametrize(("family", "name"), [("gptj", "GPTJ"), ("codegen", "CodeGen")])
def test_functions_may_turn_queries_and_keys_apart_in_an_order_of_their_own(
    family: str, name: str
) -> None:
    heads, (cos, sin) = drawn(1, 2, 5, DIM), drawn(2, 1, 5, DIM // 2, seed=1)
    block, rotate = stock(family, f"{name}Attention")
    way = rotation_of(block, DIM, DIM)
    assert way == Rotation(neighbours=True, spread=True)
    found = way.turned(heads, cos.repeat(1, 1, 2), sin.repeat(1, 1, 2))
    assert torch.allclose(found, rotate(heads.transpose(1, 2), sin, cos).transpose(1, 2))


def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbours are turned by angles of halves, which is no turn."""
    turned = [
        x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin.flip(-1)
        for x in (q, k)
    ]
    return turned[0], turned[1]


class Attention(nn.Module):
    """Attention that turns heads by the function above."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return apply_rotary_pos_emb(x, x, cos, sin)[0]


class Unturned(nn.Module):
    """Attention that turns none."""

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("block", [Attention(), Unturned()])
def test_heads_that_are_turned_in_another_way_are_refused(block: nn.Module) -> None:
    with pytest.raises(NotUnderstoodError, match="turns heads in a way of its own, or none"):
        rotation_of(block, 8, 8)
