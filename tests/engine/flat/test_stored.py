"""Weights as files store them: every product is that of the plain weights, bit by bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.flat import check, stored
from ppdbench.engine.flat.ops import Program
from ppdbench.engine.flat.stored import StoredLinear, store
from ppdbench.engine.flat.weights import FlatLinear, pack
from ppdbench.engine.levels import GROUP, Levels

# [out, in]: less than a block, no whole blocks, several groups, a vocabulary.
SHAPES = [(5, 32), (45, 64), (64, 160), (96, 576), (1009, 96)]
# Rows that are multiplied where weights are unpacked, and more than that; several groups of them.
ROWS = (1, 2, 3, 9, 10, 11, 13, 16, 17, 24, 32, 33, 100)


def levels(shape: tuple[int, int], bits: int, *, halves: bool = True) -> Levels:
    """Levels of all kinds, scales of both signs and of widely different size.

    `halves` have 11 bits of their own; others are halves times a number of six bits, as files have
    them that hold levels of five bits at most.
    """
    draw = torch.Generator().manual_seed(0)
    out, inputs = shape
    groups = out, inputs // GROUP
    scales = torch.randn(groups, generator=draw) * 10 ** torch.randn(groups, generator=draw)
    times = 1 if halves else torch.randint(1, 64, groups, generator=draw)
    return Levels(
        bits,
        torch.randint(1 << bits if halves else 16, shape, generator=draw, dtype=torch.uint8),
        scales.half().float() * times,
        torch.randn(groups, generator=draw).half().float() * times,
    )


def both(
    bits: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
    bias: Tensor | None = None,
    *,
    halves: bool = True,
) -> tuple[StoredLinear, FlatLinear]:
    held = levels(shape, bits, halves=halves)
    return store(held, bias, dtype), pack(held.numbers(dtype), bias)


def rows(n: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(n, inputs, generator=torch.Generator().manual_seed(n)).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_product_is_that_of_plain_weights_bit_by_bit(
    bits: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    bias = torch.randn(shape[0], generator=torch.Generator().manual_seed(1)).to(dtype)
    for halves, given in ((True, None), (True, bias), (False, None)):
        ours, plain = both(bits, shape, dtype, given, halves=halves)
        for n in ROWS:
            x = rows(n, shape[1], dtype)
            assert torch.equal(ours(x), plain(x)), n


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_are_scales_times_levels_and_shifts(bits: int, dtype: torch.dtype) -> None:
    """Number by number in Python's own floats, which hold products and sums exactly."""
    held = levels((3, 64), bits)
    found = held.numbers(torch.float32)
    for out in range(3):
        for k in range(64):
            scale, shift = (float(part[out, k // GROUP]) for part in (held.scales, held.shifts))
            exact = scale * int(held.levels[out, k]) + shift
            assert float(found[out, k]) == float(torch.tensor(exact, dtype=torch.float64).float())
    assert torch.equal(held.numbers(dtype), found.to(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_blob_gives_its_weights_back_and_knows_others(
    bits: int, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    whole = -(-shape[0] // 32) * 32 * shape[1]
    for halves, scale_bytes in ((True, 2), (False, 4)):
        held = levels(shape, bits, halves=halves)
        ours, weight = store(held, None, dtype), held.numbers(dtype)
        assert torch.equal(ours.unpacked(), weight)
        assert ours.holds(weight, None)
        assert not ours.holds(weight, torch.zeros(shape[0]))
        other = weight.clone()
        other[-1, -1] = 2 * other[-1, -1] + 1
        assert not ours.holds(other, None)
        assert ours.nbytes == whole * bits // 8 + whole // GROUP * 2 * scale_bytes
        assert ours.dtype == dtype


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_blob_is_compared_to_the_last_row_some_blocks_at_a_time(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "AT_ONCE", 3 * 32 * shape[1])
    held = levels(shape, 4)
    ours, weight = store(held, None, torch.float32), held.numbers(torch.float32)
    assert ours.holds(weight, None)
    for row in (0, shape[0] // 2, shape[0] - 1):
        other = weight.clone()
        other[row, -1] += 1
        assert not ours.holds(other, None), row


@pytest.mark.parametrize("n", [1, 13, 33])
def test_one_job_has_products_of_stored_and_of_plain_weights(n: int, dtype: torch.dtype) -> None:
    """Of one source, of parts of it, and gated."""
    stored_weight, plain = both(4, (45, 64), dtype)
    pairs = (
        (stored_weight, plain),
        (plain, stored_weight),
        (stored_weight, both(8, (45, 64), dtype)[0]),
    )
    x = rows(n, 2 * 64, dtype)
    for one, other in pairs:
        program = Program(dtype, 2 * 64)
        parts = [program.hidden.part(at, 64) for at in (0, 64)]
        out = program.buffer(4 * 64 + 45)
        targets = [out.part(at, 45) for at in range(0, 5 * 64, 64)]
        program.linear(parts[1], (targets[0], one), (targets[1], other))
        program.linear_apart((parts[0], targets[2], one), (parts[1], targets[3], other))
        program.gated(parts[0], targets[4], one, other, "silu")
        found = torch.empty(n, out.width, dtype=dtype)
        program.run(0, program.mark(), x, found, out, None)
        left, right = x[:, :64].contiguous(), x[:, 64:].contiguous()
        wanted = [one(right), other(right), one(left), other(right)]
        for i, product in enumerate(wanted):
            assert torch.equal(found[:, i * 64 : i * 64 + 45], product), i
        gated = torch.nn.functional.silu(one(left)) * other(left)
        torch.testing.assert_close(found[:, -45:], gated, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_some_outputs_are_products_of_their_own(bits: int, dtype: torch.dtype) -> None:
    ours, _ = both(bits, (96, 64), dtype)
    x = rows(5, 64, dtype)
    part = ours.outputs(32, 64)
    assert part is not None
    assert part.lies_in(ours)
    assert torch.equal(part(x), ours(x)[:, 32:96])
    assert ours.outputs(16, 32) is None
    biased = ours.biased(torch.ones(96))
    assert torch.equal(biased(x), (ours(x).float() + 1).to(dtype)) or dtype == torch.bfloat16
    assert biased.outputs(32, 32) is None


def test_inputs_of_no_whole_groups_are_refused() -> None:
    made = Levels(4, torch.zeros(4, 48, dtype=torch.uint8), torch.ones(4, 1), torch.ones(4, 1))
    with pytest.raises(ValueError, match="48 inputs are no whole groups of 32"):
        store(made, None, torch.float32)


def test_kernels_are_checked_before_they_are_trusted(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    check.check_stored(dtype)
    honest = Levels.numbers
    monkeypatch.setattr(Levels, "numbers", lambda self, kind: honest(self, kind) * 2)
    with pytest.raises(check.Wrong, match="stored weights"):
        check.check_stored(dtype)
