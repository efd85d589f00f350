"""Programs against float64 and stock modules; attention by the place of a key, not its slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

from ppdbench.engine.flat.ops import (
    ACTIVATIONS,
    UNTURNED,
    Buffer,
    CacheBlocks,
    Pass,
    Program,
    Turns,
)
from ppdbench.engine.flat.weights import pack
from ppdbench.engine.reading import Peaks
from tests.engine.flat.test_weights import drawn, packed, rounding

WIDTH = 45
HEADS, KV_HEADS, DIM = 6, 2, 20


def close(found: Tensor, wanted: Tensor, times: float = 1.0) -> bool:
    """True if what was rounded `times` over is near."""
    allowed = times * rounding(found.dtype) * (wanted.abs() + 1) + 1e-5 * (wanted.abs() + 1)
    return bool(((found.double() - wanted).abs() <= allowed).all())


def run(program: Program, x: Tensor, out: Buffer, given: Pass | None = None) -> Tensor:
    found = torch.empty(len(x), out.width, dtype=x.dtype)
    program.run(0, program.mark(), x, found, out, given)
    return found


def of_row(
    x: Tensor, operation: Callable[[Program, Buffer], None], width: int | None = None
) -> Tensor:
    program = Program(x.dtype, x.shape[1])
    out = program.buffer(width or x.shape[1])
    operation(program, out)
    return run(program, x, out)


def relu(x: Tensor) -> Tensor:
    return x.clamp(min=0)


WANTED: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "gelu": gelu,
    "relu": relu,
    "relu2": lambda x: relu(x) ** 2,
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_those_of_float64(name: str, dtype: torch.dtype) -> None:
    x = drawn(3, WIDTH, dtype=dtype) * 5
    times = of_row(x, lambda p, out: p.act(p.hidden, out, name, times=p.hidden))
    assert close(of_row(x, lambda p, out: p.act(p.hidden, out, name)), WANTED[name](x.double()))
    assert close(times, WANTED[name](x.double()) * x.double(), 3)


@pytest.mark.parametrize("factors", [(0.8, 0.8, 0.5), (1.7, 0.3, 0.25)])
def test_an_activation_with_factors_is_that_of_float64(
    factors: tuple[float, float, float], dtype: torch.dtype
) -> None:
    above, below, slope = factors
    spread = torch.cat([drawn(2, 1024, dtype=dtype) * 5, drawn(2, 1024, dtype=dtype) / 16])
    x, wide = spread, spread.double()
    bent = torch.where(wide > 0, above * wide**2, below * (torch.expm1(wide.clamp(max=0)) - wide))
    assert close(of_row(x, lambda p, out: p.xielu(p.hidden, out, factors)), bent + slope * wide)
    far = torch.tensor([[-100.0, -1e-30, 0.0, torch.nan]])
    found = of_row(far, lambda p, out: p.xielu(p.hidden, out, factors))[0]
    assert float(found[0]) == pytest.approx(below * 99 - 100 * slope)
    assert found[1:3].abs().max() < 1e-29 and found[3].isnan()


def test_numbers_without_end_are_clipped_and_those_that_are_none_stay() -> None:
    x = torch.tensor([[-torch.inf, -3.0, -0.5, 0.5, 3.0, torch.inf, torch.nan]])
    found = of_row(x, lambda p, out: p.clip(p.hidden, out, 2.0))
    assert found[0, :-1].tolist() == [-2.0, -2.0, -0.5, 0.5, 2.0, 2.0] and found[0, -1].isnan()


def test_extreme_numbers_pass_through_activations() -> None:
    x = torch.tensor([[-1e30, -100.0, 0.0, 100.0, 1e30, torch.inf, -torch.inf, torch.nan]])
    found = of_row(x, lambda p, out: p.act(p.hidden, out, "silu"))
    assert torch.equal(found[0, 2:6], x[0, 2:6])
    assert found[0, :2].abs().max() < 1e-6 and found[0, -1].isnan()


@pytest.mark.parametrize("width", [1, 16, 45, 64])
def test_norms_are_those_of_float64(width: int, dtype: torch.dtype) -> None:
    x, weight, bias = (drawn(4, width, dtype=dtype, seed=seed) for seed in range(3))
    w, b, wide = weight[0].double(), bias[0].double(), x.double()
    root = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    found = of_row(x, lambda p, out: p.rms_norm(p.hidden, out, weight[0], 1e-5))
    assert close(found, root * w, 2)
    found = of_row(x, lambda p, out: p.rms_norm(p.hidden, out, weight[0], 1e-5, plus_one=True))
    assert close(found, root * (w + 1), 2)
    found = of_row(x, lambda p, out: p.layer_norm(p.hidden, out, weight[0], bias[0], 1e-5))
    assert close(found, layer_norm(wide, (width,), w, b, 1e-5))


def test_heads_are_normed_for_themselves(dtype: torch.dtype) -> None:
    x, weight = drawn(4, 60, dtype=dtype), drawn(20, dtype=dtype, seed=1)
    found = of_row(x, lambda p, out: p.rms_norm(p.hidden, out, weight, 1e-5, each=20))
    heads = x.double().view(4, 3, 20)
    wanted = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + 1e-5) * weight.double()
    assert close(found, wanted.view(4, 60), 2)


def test_products_go_onto_buffers_and_several_are_one_operation(dtype: torch.dtype) -> None:
    x, one, two = drawn(5, 37, dtype=dtype), packed((33, 37), dtype), packed((70, 37), dtype)
    program = Program(dtype, 37)
    both = program.buffer(103)
    program.linear(program.hidden, (both.part(0, 33), one), (both.part(33, 70), two))
    assert torch.equal(run(program, x, both), torch.cat([one(x), two(x)], dim=1))
    assert program.mark() == 1
    square = packed((37, 37), dtype)
    program = Program(dtype, 37)
    held = program.buffer(37)
    program.copy(program.hidden, held)
    program.linear(program.hidden, (held, square), add=held)
    assert torch.equal(run(program, x, held), square(x) + x)


def test_products_of_parts_of_a_buffer_are_those_of_each_part_alone(
    dtype: torch.dtype, threads: int
) -> None:
    x, one, two = drawn(9, 80, dtype=dtype), packed((33, 37), dtype), packed((70, 37), dtype)
    program = Program(dtype, 80)
    both, of = program.buffer(103), program.hidden.part
    program.linear_apart((of(43, 37), both.part(0, 33), one), (of(2, 37), both.part(33, 70), two))
    found = run(program, x, both)
    assert torch.equal(found, torch.cat([one(x[:, 43:]), two(x[:, 2:39])], dim=1))
    assert torch.equal(run(program, x[4:5], both), found[4:5])
    assert program.mark() == 1


def test_gated_products_are_an_activation_times_a_product(dtype: torch.dtype) -> None:
    x, gate, up = drawn(9, 37, dtype=dtype), packed((70, 37), dtype), packed((70, 37), dtype)
    found = of_row(x, lambda p, out: p.gated(p.hidden, out, gate, up, "silu"), 70)
    g = gate(x)
    acted = of_row(g, lambda p, out: p.act(p.hidden, out, "silu"))
    assert torch.equal(found, acted * up(x))


def test_simple_operations(dtype: torch.dtype) -> None:
    x = drawn(3, WIDTH, dtype=dtype)
    order = torch.randperm(WIDTH, generator=torch.Generator().manual_seed(0))
    assert torch.equal(of_row(x, lambda p, out: p.add(p.hidden, p.hidden, out)), x + x)
    assert torch.equal(of_row(x, lambda p, out: p.scale(p.hidden, out, 0.3)), x * 0.3)
    assert torch.equal(of_row(x, lambda p, out: p.pick(p.hidden, out, order)), x[:, order])
    for most in (0.75, 0.3):  # the latter is rounded
        clipped = of_row(x, lambda p, out, most=most: p.clip(p.hidden, out, most))  # type: ignore[misc]
        assert torch.equal(clipped, x.clamp(-most, most))
    capped = of_row(x * 9, lambda p, out: p.cap(p.hidden, out, 5.0))
    assert close(capped, torch.tanh((x * 9).double() / 5) * 5, 5)


def test_columns_go_to_the_front_of_each_head_and_leave_the_rest(dtype: torch.dtype) -> None:
    x, order = drawn(3, 12, dtype=dtype), torch.tensor([[11, 2], [5, 5], [0, 7]])
    program = Program(dtype, 12)
    out = program.buffer(12)
    program.copy(program.hidden, out)
    program.pick_heads(program.hidden, out, order)
    wanted = x.clone().view(3, 3, 4)
    wanted[..., :2] = x[:, order]
    assert torch.equal(run(program, x, out), wanted.view(3, 12))


def test_the_likeliest_is_the_first_of_the_largest(dtype: torch.dtype) -> None:
    x = drawn(6, 9001, dtype=dtype)
    x[0, [17, 5000, 8000]] = 99
    x[1, 9000], x[2, 0], x[3, 4321] = 99, 99, torch.nan
    x[4] = -torch.inf
    program = Program(dtype, 9001)
    noted = Peaks(6)
    program.run(0, 0, x, torch.empty_like(x), program.hidden, peaks=noted)
    (likeliest,), (peaks,) = noted.tensors()
    assert likeliest.tolist() == np.argmax(x.float().numpy(), axis=-1).tolist()
    assert torch.equal(peaks.nan_to_num(7), x.float().amax(-1).nan_to_num(7))
    assert likeliest[:5].tolist() == [17, 9000, 0, 4321, 0]


@pytest.mark.parametrize("read_again", [False, True])
def test_the_likeliest_of_a_product_is_that_of_what_comes_out(
    read_again: bool, dtype: torch.dtype, threads: int
) -> None:
    weight = drawn(4500, 8, dtype=dtype)
    weight[[40, 41, 3000, 4499]] = 9  # the same number in several blocks, above all others
    x = drawn(7, 8, dtype=dtype)
    x[0], x[1], x[2], x[3, 0] = 1, -1, 0, torch.nan
    program = Program(dtype, 8)
    out = program.buffer(4500)
    program.linear(program.hidden, (out, pack(weight)))
    if read_again:  # the product goes through a buffer then
        program.add(program.hidden, program.hidden, program.hidden)
        program.copy(out, out)
    noted, found = Peaks(7), torch.empty(7, 4500, dtype=dtype)
    program.run(0, program.mark(), x, found, out, peaks=noted)
    (likeliest,), (peaks,) = noted.tensors()
    assert close(found[:3], x[:3].double() @ weight.double().T, 8)
    assert likeliest.tolist() == np.argmax(found.float().numpy(), axis=-1).tolist()
    assert torch.equal(peaks.nan_to_num(7), found.float().amax(-1).nan_to_num(7))
    assert likeliest[0] == 40
    assert likeliest[2:4].tolist() == [0, 0]


def test_parts_of_a_program_give_what_the_whole_does(dtype: torch.dtype) -> None:
    x, square = drawn(3, 37, dtype=dtype), packed((37, 37), dtype)
    program = Program(dtype, 37)
    held = program.buffer(37)
    program.linear(program.hidden, (held, square))
    program.copy(held, program.hidden)
    middle = program.mark()
    program.linear(program.hidden, (held, square))
    program.copy(held, program.hidden)
    whole, half, rest = (torch.empty_like(x) for _ in range(3))
    program.run(0, program.mark(), x, whole, program.hidden)
    program.run(0, middle, x, half, program.hidden)
    program.run(middle, program.mark(), half, rest, program.hidden)
    assert torch.equal(rest, whole) and not torch.equal(half, whole)


@pytest.mark.parametrize("rotary_dim", [20, 12])
def test_rotation_is_that_of_stock_modules(rotary_dim: int, dtype: torch.dtype) -> None:
    x = drawn(4, HEADS * DIM, dtype=dtype)
    angles = drawn(4, rotary_dim, seed=1)
    cos, sin = angles.cos().to(dtype).float(), angles.sin().to(dtype).float()
    program = Program(dtype, HEADS * DIM)
    program.rotate(program.hidden, HEADS, DIM, rotary_dim)
    blocks = cache(1, dtype)[0]
    found = run(program, x, program.hidden, causal(0, 4, blocks, [(cos, sin)]))
    heads = x.view(4, HEADS, DIM)
    turned, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
    left, right = turned.chunk(2, dim=-1)
    half = torch.cat([-right, left], dim=-1)
    c, s = cos.to(dtype)[:, None], sin.to(dtype)[:, None]
    wanted = torch.cat([turned * c + half * s, rest], dim=-1).view(4, -1)
    assert close(found, wanted.double(), 0.5)


def test_tables_of_all_positions_turn_rows_by_where_they_stand(dtype: torch.dtype) -> None:
    x, places = drawn(4, HEADS * DIM, dtype=dtype), [5, 0, 11, 5]
    cos, sin = drawn(12, DIM, seed=1).cos(), drawn(12, DIM, seed=1).sin()
    blocks = cache(9, dtype)[0]
    program = Program(dtype, HEADS * DIM)
    program.rotate(program.hidden, HEADS, DIM, DIM)

    def turned(tables: tuple[Tensor, Tensor], whole: bool) -> Tensor:
        rows = [0, 1, 2, 3], places, [0, 1, 2, 3], [0, 1, 2, 3, 4]
        given = Pass(0, *rows, Turns([tables], whole=whole), blocks)
        return run(program, x, program.hidden, given)

    assert torch.equal(turned((cos, sin), True), turned((cos[places], sin[places]), False))
    with pytest.raises(ValueError, match="turns"):
        turned((cos[:11].contiguous(), sin[:11].contiguous()), True)
    places[1] = -1
    with pytest.raises(ValueError, match="first position"):
        turned((cos, sin), True)


def test_tokens_bring_in_their_words_and_none_that_there_are_not(dtype: torch.dtype) -> None:
    words, program = drawn(7, WIDTH, dtype=dtype), Program(dtype, WIDTH)

    def looked_up(*tokens: int) -> Tensor:
        found = torch.empty(1, len(tokens), WIDTH, dtype=dtype)
        program.run(0, 0, torch.tensor([tokens]), found, program.hidden, words=words)
        return found[0]

    assert torch.equal(looked_up(6, 0, 3, 3), words[[6, 0, 3, 3]])
    for beyond in (7, -1, 2**40):
        with pytest.raises(IndexError, match="no word"):
            looked_up(2, beyond)
    with pytest.raises(ValueError):
        program.run(0, 0, words, words.clone(), program.hidden, words=words)


# Attention


def cache(capacity: int, dtype: torch.dtype) -> tuple[CacheBlocks, Tensor, Tensor]:
    keys, values = (drawn(1, KV_HEADS, capacity + 9, DIM, dtype=dtype, seed=s) for s in (7, 8))
    return CacheBlocks([(keys, values)]), keys, values


def causal(
    start: int, n: int, blocks: CacheBlocks, turns: Sequence[tuple[Tensor, Tensor]] = ()
) -> Pass:
    places = list(range(start, start + n))
    turned = Turns(turns, whole=False)
    return Pass(start, places, places, None, None, turned, blocks, causal=True)


def tree(start: int, lines: Sequence[Sequence[int]], blocks: CacheBlocks) -> Pass:
    """Rows that see the text and the rows of their line, themselves the last."""
    ends = np.cumsum([0, *map(len, lines)])
    seen = [start + row for line in lines for row in line]
    positions = [start + len(line) - 1 for line in lines]
    return Pass(start, range(start, start + len(lines)), positions, seen, ends, UNTURNED, blocks)


def attending(
    dtype: torch.dtype,
    softcap: float | None = None,
    window: int | None = None,
    *,
    layer: int = 0,
    **more: Any,
) -> tuple[Program, Buffer]:
    program = Program(dtype, (HEADS + 2 * KV_HEADS) * DIM)
    queries = program.hidden.part(0, HEADS * DIM)
    keys = program.hidden.part(HEADS * DIM, KV_HEADS * DIM)
    values = program.hidden.part((HEADS + KV_HEADS) * DIM, KV_HEADS * DIM)
    out = program.buffer(HEADS * DIM)
    program.store(keys, values, layer, KV_HEADS, DIM)
    program.attend(queries, out, layer, HEADS, KV_HEADS, DIM, DIM**-0.5, softcap, window, **more)
    return program, out


def attended(
    x: Tensor,
    keys: Tensor,
    values: Tensor,
    sights: Sequence[Sequence[int]],
    softcap: float | None = None,
    tilt: Tensor | None = None,  # [head, slot]
    sinks: Tensor | None = None,  # [head]
) -> Tensor:
    """Attention in float64 over the slots that each row sees, in a cache that holds them."""
    rows = []
    for row, seen in zip(x.double(), sights, strict=True):
        queries = row[: HEADS * DIM].view(HEADS, 1, DIM)
        some_keys, some_values = (
            held[0, :, list(seen)].double().repeat_interleave(HEADS // KV_HEADS, 0)
            for held in (keys, values)
        )
        scores = queries @ some_keys.transpose(1, 2)
        if tilt is not None:
            scores = scores + tilt[:, None, list(seen)]
        scores = scores * DIM**-0.5
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if sinks is not None:
            scores = torch.cat([scores, sinks.double()[:, None, None]], -1)
        weights = scores.softmax(-1)[..., : len(seen)]
        rows.append((weights @ some_values).flatten())
    return torch.stack(rows)


STARTS = [0, 1, 15, 128, 300]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_attention_is_that_of_float64(
    start: int, softcap: float | None, dtype: torch.dtype
) -> None:
    n = 17
    blocks, keys, values = cache(start + n, dtype)
    program, out = attending(dtype, softcap)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    sights = [range(start + i + 1) for i in range(n)]
    assert close(found, attended(x, keys, values, sights, softcap))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("coarse", [False, True])
def test_scores_grow_with_positions(start: int, coarse: bool, dtype: torch.dtype) -> None:
    n, slopes = 17, drawn(HEADS, seed=3).bfloat16().float() / 4
    blocks, keys, values = cache(start + n, dtype)
    program, out = attending(dtype, slopes=slopes, coarse=coarse)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    grown = slopes[:, None] * torch.arange(start + n)
    tilt = (grown.bfloat16() if coarse else grown).double()
    sights = [range(start + i + 1) for i in range(n)]
    assert close(found, attended(x, keys, values, sights, tilt=tilt))
    lines = [range(i + 1) for i in range(n)]
    assert torch.equal(run(program, x, out, tree(start, lines, blocks)), found)


@pytest.mark.parametrize("start", STARTS)
def test_a_part_of_attention_goes_to_sinks(start: int, dtype: torch.dtype) -> None:
    n, sinks = 17, drawn(HEADS, seed=4) * 3
    blocks, keys, values = cache(start + n, dtype)
    program, out = attending(dtype, sinks=sinks)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    sights = [range(start + i + 1) for i in range(n)]
    assert close(found, attended(x, keys, values, sights, sinks=sinks))
    alone = run(program, x[-1:].contiguous(), out, causal(start + n - 1, 1, blocks))
    assert torch.equal(alone, found[-1:])


@pytest.mark.parametrize("start", STARTS)
def test_keys_may_take_the_values_of_other_heads(start: int, dtype: torch.dtype) -> None:
    n, others = 17, range(1, KV_HEADS)
    blocks, keys, values = cache(start + n, dtype)
    program, out = attending(dtype, value_heads=others)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    sights = [range(start + i + 1) for i in range(n)]
    assert close(found, attended(x, keys, values[:, np.resize(others, KV_HEADS)], sights))


def test_values_may_be_narrower_than_keys(dtype: torch.dtype) -> None:
    start, n, narrow = 128, 17, DIM - 7
    blocks, keys, values = cache(start + n, dtype)
    values[..., narrow:] = torch.nan  # there is room for more
    program = Program(dtype, (HEADS + KV_HEADS) * DIM + KV_HEADS * narrow)
    parts = [(0, HEADS * DIM), (HEADS * DIM, KV_HEADS * DIM)]
    queries, new_keys = (program.hidden.part(*part) for part in parts)
    new_values = program.hidden.part((HEADS + KV_HEADS) * DIM, KV_HEADS * narrow)
    out = program.buffer(HEADS * narrow)
    program.store(new_keys, new_values, 0, KV_HEADS, DIM, narrow)
    program.attend(queries, out, 0, HEADS, KV_HEADS, DIM, DIM**-0.5, value_dim=narrow)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    wanted = attended(x, keys, values, [range(start + i + 1) for i in range(n)])
    assert close(found, wanted.view(n, HEADS, DIM)[..., :narrow].flatten(1))


def test_layers_keep_rows_of_sizes_of_their_own(dtype: torch.dtype) -> None:
    start, n = 128, 17
    blocks, keys, values = cache(start + n, dtype)
    wider = tuple(drawn(1, 2, blocks.capacity, 2 * DIM, dtype=dtype, seed=s) for s in (5, 6))
    before = [rows.clone() for rows in wider]
    program, out = attending(dtype, layer=1)
    x = drawn(n, program.hidden.width, dtype=dtype)
    both = CacheBlocks([wider, blocks.layers[0]])
    found = run(program, x, out, causal(start, n, both))
    sights = [range(start + i + 1) for i in range(n)]
    assert close(found, attended(x, keys, values, sights))
    assert all(map(torch.equal, wider, before))
    with pytest.raises(ValueError, match="of one capacity"):
        CacheBlocks([wider, tuple(rows[:, :, 1:].contiguous() for rows in blocks.layers[0])])


def test_positions_of_a_branch_count_and_not_its_slots(dtype: torch.dtype) -> None:
    slopes = torch.linspace(0.5, -0.5, HEADS)
    program, out = attending(dtype, slopes=slopes)
    x = drawn(len(BRANCHES), program.hidden.width, dtype=dtype)
    blocks, _, _ = cache(15 + 8, dtype)
    found = run(program, x, out, tree(15, BRANCHES, blocks))
    for line in BRANCHES:
        chain = run(program, x[line].contiguous(), out, causal(15, len(line), blocks))
        assert torch.equal(chain, found[line])


def test_positions_may_be_other_than_one_after_another(dtype: torch.dtype) -> None:
    slopes = torch.linspace(0.5, -0.5, HEADS)
    program, out = attending(dtype, slopes=slopes)
    x = drawn(2, program.hidden.width, dtype=dtype)
    blocks, keys, values = cache(14, dtype)
    rows = [12, 13], [12, 12], [12, 12, 13], [0, 1, 3]  # the second no further on than the first
    found = run(program, x, out, Pass(12, *rows, UNTURNED, blocks, places=[12, 12, 12]))
    places = torch.tensor([*range(13), 12])
    wanted = attended(
        x, keys, values, [range(13), range(14)], tilt=(slopes[:, None] * places).double()
    )
    assert close(found, wanted)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("window", [1, 16, 140])
def test_windows_hide_what_is_further_back(start: int, window: int, dtype: torch.dtype) -> None:
    n = 9
    blocks, keys, values = cache(start + n, dtype)
    program, out = attending(dtype, window=window)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    sights = [range(max(0, start + i + 1 - window), start + i + 1) for i in range(n)]
    assert close(found, attended(x, keys, values, sights))
    lines = [range(i + 1) for i in range(n)]
    assert torch.equal(run(program, x, out, tree(start, lines, blocks)), found)


# Rows that see, of the rows of their pass, themselves and those before them in the list.
BRANCHES = [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4], [5], [5, 6], [0, 1, 2, 7]]


@pytest.mark.parametrize(("start", "window"), [(0, None), (15, 20), (127, None), (127, 2)])
def test_a_branch_is_bit_for_bit_the_chain_of_its_tokens(
    start: int, window: int | None, dtype: torch.dtype, threads: int
) -> None:
    program, out = attending(dtype, window=window)
    x = drawn(len(BRANCHES), program.hidden.width, dtype=dtype)
    blocks, keys, values = cache(start + 8, dtype)
    found = run(program, x, out, tree(start, BRANCHES, blocks))
    sights = [[*range(start), *(start + row for row in line)] for line in BRANCHES]
    assert close(found, attended(x, keys, values, [s[-(window or 0) :] for s in sights]))
    for line in BRANCHES:
        chain = run(program, x[line].contiguous(), out, causal(start, len(line), blocks))
        assert torch.equal(chain, found[line])


def test_rows_beside_each_other_may_see_places_far_apart(dtype: torch.dtype) -> None:
    start, n, window = 1, 10, 3
    lines = [*([*range(i + 1)] for i in range(n - 1)), [0, n - 1]]
    blocks, keys, values = cache(start + n, dtype)
    program, out = attending(dtype, window=window)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, tree(start, lines, blocks))
    sights = [[*range(start), *(start + row for row in line)][-window:] for line in lines]
    assert close(found, attended(x, keys, values, sights))


def assert_alone_as_together(
    program: Program, out: Buffer, x: Tensor, start: int, blocks: CacheBlocks
) -> None:
    found = run(program, x, out, causal(start, len(x), blocks))
    for i in range(len(x)):
        alone = run(program, x[i : i + 1].contiguous(), out, causal(start + i, 1, blocks))
        assert torch.equal(alone[0], found[i])


@pytest.mark.parametrize("start", [0, 130])
def test_one_row_at_a_time_gives_the_bits_of_all_at_once(
    start: int, dtype: torch.dtype, threads: int
) -> None:
    n = 70  # more than share out parts
    blocks, _, _ = cache(start + n, dtype)
    program, out = attending(dtype)
    assert_alone_as_together(
        program, out, drawn(n, program.hidden.width, dtype=dtype), start, blocks
    )


def test_rows_may_see_less_than_the_text(dtype: torch.dtype) -> None:
    blocks, keys, values = cache(12, dtype)
    program, out = attending(dtype)
    x = drawn(2, program.hidden.width, dtype=dtype)
    own, ends, slots = [10, 11], [0, 1, 2], [10, 11]
    given = Pass(10, slots, [4, 10], own, ends, UNTURNED, blocks, reach=[4, 10])
    found = run(program, x, out, given)
    assert close(found, attended(x, keys, values, [[0, 1, 2, 3, 10], [*range(10), 11]]))


def test_rows_behind_the_pass_are_not_read(dtype: torch.dtype) -> None:
    blocks, keys, values = cache(20, dtype)
    keys[:, :, 13:], values[:, :, 13:] = torch.nan, torch.nan
    program, out = attending(dtype)
    x = drawn(3, program.hidden.width, dtype=dtype)
    assert not run(program, x, out, causal(10, 3, blocks)).isnan().any()


@pytest.mark.parametrize("start", [0, 5, 127, 140])
@pytest.mark.parametrize("wrong", [torch.inf, torch.nan])
def test_values_that_are_no_numbers_reach_only_rows_that_see_them(
    start: int, wrong: float, dtype: torch.dtype
) -> None:
    n, at = 9, 4
    blocks, _, _ = cache(start + n, dtype)
    program, out = attending(dtype)
    x = drawn(n, program.hidden.width, dtype=dtype)
    wanted = run(program, x, out, causal(start, n, blocks))
    x[at, -1] = wrong  # of its values
    found = run(program, x, out, causal(start, n, blocks))
    assert torch.equal(found[:at], wanted[:at])
    assert not found[at:, -1].isfinite().any()
    branches = tree(start, [[0], [0, 1], [0, 2], [0, 2, 3], [4], [0, 1, 5]], blocks)
    found = run(program, x[:6].contiguous(), out, branches)
    assert found.isfinite().all(-1).tolist() == [row != at for row in range(6)]


# Attention to latents, which serve all heads

LATENT, TURNED, ROOM = 37, 12, 40
ASKED, KEPT = HEADS * (TURNED + LATENT), LATENT + TURNED


def latents(capacity: int, dtype: torch.dtype) -> tuple[CacheBlocks, Tensor, Tensor]:
    keys, values = (drawn(1, 1, capacity + 9, ROOM, dtype=dtype, seed=s) for s in (7, 8))
    keys[..., LATENT:], values[..., TURNED:] = torch.nan, torch.nan
    return CacheBlocks([(keys, values)]), keys, values


def attending_to_latents(dtype: torch.dtype, window: int | None = None) -> tuple[Program, Buffer]:
    program = Program(dtype, ASKED + KEPT)
    queries, kept = program.hidden.part(0, ASKED), program.hidden.part(ASKED, KEPT)
    out = program.buffer(HEADS * LATENT)
    program.store(kept.part(0, LATENT), kept.part(LATENT, TURNED), 0, 1, LATENT, TURNED)
    program.attend(queries, out, 0, HEADS, 1, KEPT, DIM**-0.5, window=window, latents=LATENT)
    return program, out


def attended_latents(
    x: Tensor, keys: Tensor, values: Tensor, sights: Sequence[Sequence[int]]
) -> Tensor:
    """The same in float64 over the slots that each row sees, in a cache that holds them."""
    held = keys[0, 0, :, :LATENT].double()
    rows = torch.cat([values[0, 0, :, :TURNED].double(), held], dim=-1)
    found = []
    for row, seen in zip(x.double(), sights, strict=True):
        scores = row[:ASKED].view(HEADS, KEPT) @ rows[list(seen)].t() * DIM**-0.5
        found.append((scores.softmax(-1) @ held[list(seen)]).flatten())
    return torch.stack(found)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("window", [None, 16])
def test_attention_to_latents_is_that_of_float64(
    start: int, window: int | None, dtype: torch.dtype
) -> None:
    n = 17
    blocks, keys, values = latents(start + n, dtype)
    program, out = attending_to_latents(dtype, window)
    x = drawn(n, program.hidden.width, dtype=dtype)
    found = run(program, x, out, causal(start, n, blocks))
    sights = [range(max(0, end - (window or end)), end) for end in range(start + 1, start + n + 1)]
    assert close(found, attended_latents(x, keys, values, sights))
    lines = [range(i + 1) for i in range(n)]
    assert torch.equal(run(program, x, out, tree(start, lines, blocks)), found)


@pytest.mark.parametrize("start", [0, 130])
def test_to_latents_one_row_at_a_time_gives_the_bits_of_all_at_once(
    start: int, dtype: torch.dtype, threads: int
) -> None:
    n = 70  # more than share out parts
    blocks, _, _ = latents(start + n, dtype)
    program, out = attending_to_latents(dtype)
    assert_alone_as_together(
        program, out, drawn(n, program.hidden.width, dtype=dtype), start, blocks
    )


def test_branches_see_latents_as_the_chains_of_their_tokens_do(
    dtype: torch.dtype, threads: int
) -> None:
    program, out = attending_to_latents(dtype)
    x = drawn(len(BRANCHES), program.hidden.width, dtype=dtype)
    blocks, _, _ = latents(127 + 8, dtype)
    found = run(program, x, out, tree(127, BRANCHES, blocks))
    for line in BRANCHES:
        chain = run(program, x[line].contiguous(), out, causal(127, len(line), blocks))
        assert torch.equal(chain, found[line])


# Refused rather than read from where there is nothing


def test_what_does_not_fit_is_refused(dtype: torch.dtype) -> None:
    program = Program(dtype, 8)
    other, more = program.buffer(9), program.buffer(4)
    parts = [(program.hidden.part(0, 4), more, packed((4, 4), dtype))]
    for wrong in (
        lambda: program.copy(program.hidden, other),
        lambda: program.hidden.part(4, 5),
        lambda: program.linear(program.hidden, (other, packed((9, 9), dtype))),
        lambda: program.linear(program.hidden, (program.hidden, packed((8, 8), dtype))),
        lambda: program.act(program.hidden, program.hidden, "tanhish"),
        lambda: program.rotate(program.hidden, 2, 4, 3),
        lambda: program.linear_apart(*parts, (other.part(0, 4), more, packed((4, 4), dtype))),
        lambda: program.pick_heads(program.hidden, other, torch.zeros(2, 4, dtype=torch.int64)),
        lambda: program.pick_heads(program.hidden, other, torch.full((3, 2), 8)),
        lambda: program.store(program.hidden, other, 0, 2, 4),
        lambda: program.attend(program.hidden, other, 0, 2, 1, 4, 1.0),
        lambda: program.attend(program.hidden, other.part(0, 6), 0, 2, 2, 4, 1.0, latents=3),
        lambda: run(program, drawn(2, 9, dtype=dtype), other),
        lambda: program.run(0, 1, drawn(2, 8, dtype=dtype), drawn(2, 8, dtype=dtype), other),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_slots_beyond_the_cache_are_refused() -> None:
    blocks, _, _ = cache(3, torch.float32)  # 12 slots
    with pytest.raises(ValueError, match="12"):
        causal(10, 3, blocks)
    with pytest.raises(ValueError, match="12"):
        Pass(0, [12], [0], [0], [0, 1], UNTURNED, blocks)
    with pytest.raises(ValueError, match="gap"):
        Pass(0, [0, 1], [0, 1], [0], [0, 1, 2], UNTURNED, blocks)
