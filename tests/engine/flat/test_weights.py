"""Products over packed weights against float64, and rows bit for bit whatever is beside them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.flat.native import Library
from ppdbench.engine.flat.weights import FlatLinear, blob_bytes, pack, pack_in_place
from ppdbench.errors import NumericalError
from ppdbench.machine import pages

# [out, in]: less than a block, no multiples of 16 or 32, a vocabulary of no multiple of anything.
SHAPES = [(1, 1), (45, 37), (33, 64), (64, 130), (96, 96), (1009, 70)]
MOST_ROWS = 33
# Several groups of rows, and sums that a thread holds at once.
WIDE = 400


def rounding(dtype: torch.dtype) -> float:
    return 2**-8 if dtype == torch.bfloat16 else 0.0


def drawn(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(shape: tuple[int, int], dtype: torch.dtype, *, biased: bool = True) -> FlatLinear:
    bias = drawn(shape[0], dtype=dtype, seed=1) if biased else None
    return pack(drawn(*shape, dtype=dtype), bias)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_float64(
    shape: tuple[int, int], biased: bool, dtype: torch.dtype
) -> None:
    weight, bias = drawn(*shape, dtype=dtype), drawn(shape[0], dtype=dtype, seed=1)
    linear = packed(shape, dtype, biased=biased)
    rows = drawn(MOST_ROWS, shape[1], dtype=dtype, seed=2)
    wanted = rows.double() @ weight.double().t() + (bias.double() if biased else 0)
    sizes = rows.double().abs() @ weight.double().abs().t()
    for n in range(1, MOST_ROWS + 1):
        off = (linear(rows[:n]).double() - wanted[:n]).abs()
        assert (off <= rounding(dtype) * wanted[:n].abs() + 1e-6 * sizes[:n] + 1e-7).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_the_same_bits_among_any_others(
    shape: tuple[int, int], dtype: torch.dtype, threads: int
) -> None:
    linear = packed(shape, dtype)
    rows = drawn(MOST_ROWS, shape[1], dtype=dtype, seed=2)
    alone = torch.cat([linear(row[None]) for row in rows])
    for n in range(1, MOST_ROWS + 1):
        assert torch.equal(linear(rows[-n:]), alone[-n:])
    beside = rows.clone()
    beside[::2] = torch.nan
    assert torch.equal(linear(beside)[1::2], alone[1::2])
    assert torch.equal(linear(rows.repeat(13, 1)), alone.repeat(13, 1))


def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    linear = packed((300, 130), dtype)
    rows = drawn(WIDE, 130, dtype=dtype, seed=2)
    found = []
    before = torch.get_num_threads()
    for n in (1, 2, 3, 5):
        torch.set_num_threads(n)
        found.append(linear(rows))
    torch.set_num_threads(before)
    assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_is_packed_comes_back(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = drawn(*shape, dtype=dtype)
    assert torch.equal(pack(weight).unpacked(), weight)


def test_weights_may_lie_the_other_way_round(dtype: torch.dtype) -> None:
    weight = drawn(37, 45, dtype=dtype)
    assert torch.equal(pack(weight.t()).unpacked(), weight.t())


def test_blobs_begin_on_a_line_and_hold_little_more_than_the_weight(dtype: torch.dtype) -> None:
    linear = packed((576, 1536), dtype)
    assert linear.blob.data_ptr() % 64 == 0
    assert linear.blob.numel() == 576 * 1536
    assert linear.nbytes == linear.blob.nbytes + 4 * 576


def on_large_pages(weight: Tensor) -> Tensor:
    """The same numbers on large pages, or where there are none: skip."""
    made = pages.large_pages.zeros(weight.numel(), weight.dtype).view(weight.shape)
    if not pages.large_pages.holds_alone(made):
        pytest.skip("no large pages here")
    return made.copy_(weight)


@pytest.mark.parametrize("shape", [(32, 32), (96, 64), (1024, 160)], ids=str)
def test_a_weight_alone_on_large_pages_is_laid_out_where_it_lies(
    shape: tuple[int, int], dtype: torch.dtype, threads: int
) -> None:
    weight, bias = drawn(*shape, dtype=dtype), drawn(shape[0], dtype=dtype, seed=1)
    moved = on_large_pages(weight)
    before, beside = moved.data_ptr(), on_large_pages(weight)
    made, wanted = pack_in_place(moved, bias), pack(weight, bias)
    assert made is not None
    assert made.blob.data_ptr() == before
    assert torch.equal(made.blob, wanted.blob)
    assert torch.equal(made.unpacked(), weight)
    assert made.holds(weight, bias)
    rows = drawn(9, shape[1], dtype=dtype, seed=2)
    assert torch.equal(made(rows), wanted(rows))
    assert torch.equal(beside, weight)


def test_weights_that_fill_no_blob_or_are_not_alone_stay_as_they_are(dtype: torch.dtype) -> None:
    part = on_large_pages(drawn(64, 64, dtype=dtype))
    odd = on_large_pages(drawn(45, 64, dtype=dtype))
    for weight in (odd, part[:32], part.t(), drawn(64, 64, dtype=dtype)):
        before = weight.clone()
        assert pack_in_place(weight) is None
        assert torch.equal(weight, before)
    narrow = on_large_pages(drawn(32, 37, dtype=dtype))
    assert (pack_in_place(narrow) is None) == (dtype == torch.bfloat16)


def test_a_weight_that_comes_out_changed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "move_in_place", lambda *_: False)
    with pytest.raises(NumericalError, match="32 x 64 came out changed"):
        pack_in_place(on_large_pages(drawn(32, 64)))


def test_rows_may_have_any_shape_and_none(dtype: torch.dtype) -> None:
    linear = packed((45, 37), dtype)
    rows = drawn(2, 3, 37, dtype=dtype)
    assert linear(rows).shape == (2, 3, 45)
    assert torch.equal(linear(rows)[1], linear(rows[1]))
    assert linear(rows[:, :0]).shape == (2, 0, 45)


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="float16"):
        pack(drawn(4, 4, dtype=torch.float16))
    with pytest.raises(TypeError, match="bfloat16"):
        packed((4, 4), torch.float32)(drawn(1, 4, dtype=torch.bfloat16))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_blob_holds_its_weights_and_no_others(
    shape: tuple[int, int], dtype: torch.dtype, threads: int
) -> None:
    weight, bias = drawn(*shape, dtype=dtype), drawn(shape[0], dtype=dtype, seed=1)
    across = weight.t().contiguous().t()  # the same numbers in another order of memory
    for linear in (pack(weight, bias), pack(across, bias)):
        assert torch.equal(linear.unpacked(), weight)
        assert linear.holds(weight, bias)
        assert linear.holds(across, bias)
        assert not linear.holds(weight, None)
        assert not linear.holds(weight, bias + 1)
    places = {(0, 0), (shape[0] - 1, shape[1] - 1), (shape[0] // 2, shape[1] // 2)}
    for place in places:
        other = weight.clone()
        other[place] += 2**-5
        assert not pack(other, bias).holds(weight, bias)
    assert not packed(shape, dtype, biased=False).holds(weight, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 32), (33, 31), (1, 70)])
def test_the_bytes_of_a_layout_are_known_before_it_is_made(
    outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    made = pack(drawn(outputs, inputs, dtype=dtype))
    assert blob_bytes(outputs, inputs, dtype) == made.nbytes


def test_some_outputs_over_the_same_memory_are_whole_blocks() -> None:
    weight = drawn(96, 5)
    some = pack(weight).outputs(32, 64)
    assert some is not None
    assert torch.equal(some.unpacked(), weight[32:])
    assert pack(weight).outputs(16, 32) is None
    assert pack(weight).outputs(32, 16) is None
    assert pack(weight, drawn(96)).outputs(32, 32) is None
