"""Kernels as other processors build them: wider and narrower vectors, run on this one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pytest
import torch

from ppdbench.engine.flat import library as kernels_of
from ppdbench.engine.flat import native
from ppdbench.engine.flat.check import check
from ppdbench.engine.flat.native import EMULATED_TILES, Library, built
from ppdbench.machine.environment import instruction_sets
from tests.engine.flat import test_stored as stored
from tests.engine.flat import test_weights as products
from tests.engine.flat.conftest import put_in_place

EMULATED = Path(__file__).with_name("avx512.h")
# By how many numbers their vectors have.
FLAGS = {
    16: ("-march=x86-64-v3", "-include", str(EMULATED)),
    8: ("-march=x86-64-v3",),
    4: ("-march=x86-64",),
}
NEEDED = {"avx2", "fma"}


@cache
def library(lanes: int) -> Library:
    """The kernels with vectors of so many numbers."""
    if not (instruction_sets() or frozenset()) >= NEEDED:
        pytest.skip("these builds are for processors with AVX2")
    shared = [flag for flag in native.FLAGS if not flag.startswith("-march")]
    quick = ["-O1" if flag == "-O3" else flag for flag in shared]  # to build
    version = hashlib.sha256(EMULATED.read_bytes()).hexdigest()[:16]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "FLAGS", [*quick, *FLAGS[lanes], f"-DEMULATED=0x{version}"])
        return Library(built(native.SOURCES))


@pytest.fixture(params=FLAGS, ids=kernels_of.VECTOR_NAMES.get)
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """Kernels of each width in the place of this machine's."""
    found = library(request.param)
    assert found.lanes == request.param
    put_in_place(found, monkeypatch)
    return found


def test_they_pass_their_check_however_they_multiply(other: Library) -> None:
    assert (native.DOT_PRODUCTS in other.paths) == (other.lanes == 16)
    check(torch.float32)
    for path in (*set(other.paths) - {native.TILES}, EMULATED_TILES):
        other.use(path)
        check(torch.bfloat16)


@pytest.mark.parametrize("shape", products.SHAPES, ids=str)
def test_products_and_rows_are_what_they_are_here(shape: tuple[int, int], other: Library) -> None:
    ways = [(torch.float32, native.VECTORS), (torch.bfloat16, native.VECTORS)]
    if native.DOT_PRODUCTS in other.paths:
        ways.append((torch.bfloat16, native.DOT_PRODUCTS))
    for dtype, path in ways:
        other.use(path)
        products.test_products_are_those_of_float64(shape, True, dtype)
        products.test_a_row_is_the_same_bits_among_any_others(shape, dtype, 1)
        products.test_a_blob_holds_its_weights_and_no_others(shape, dtype, 1)


@pytest.mark.parametrize("bits", [4, 8])
def test_stored_weights_give_the_same_bits_there(bits: int, other: Library) -> None:
    stored.test_a_product_is_that_of_plain_weights_bit_by_bit(bits, (100, 96), torch.float32)
    for path in (*set(other.paths) - {native.TILES}, EMULATED_TILES):
        other.use(path)
        stored.test_a_product_is_that_of_plain_weights_bit_by_bit(bits, (100, 96), torch.bfloat16)
