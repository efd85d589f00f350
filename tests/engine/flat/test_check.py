"""The check of kernels: what computes something else is found, and gives way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ppdbench.engine.flat import library as kernels_of
from ppdbench.engine.flat import native
from ppdbench.engine.flat.check import Wrong, check, check_stored
from ppdbench.engine.flat.native import EMULATED_TILES, Library, Unavailable
from ppdbench.engine.flat.weights import FlatLinear
from tests.engine.flat.conftest import Planted

SIGNALLING = 0x7FA00000  # bits of what is no float32, which memory may hold that nobody has written

# Bugs that somebody could make: the file, what stands there, what would, and what it spoils: passes
# in these types, of bfloat16 in the plainest way to multiply it unless another is named.
BUGS: dict[str, tuple[str, str, str, tuple[torch.dtype | int, ...]]] = {
    "a wrong tail column": (
        "kernels.cpp",
        "if (left < BLOCK) return by_vectors(left, each);",
        "if (left < BLOCK) return by_vectors(left - 1, each);",
        (torch.float32, torch.bfloat16),
    ),
    "the first of two blocks again": (
        "linear.h",
        "step_over<Of, n>(sums[1], right + k",
        "step_over<Of, n>(sums[1], left + k",
        (torch.float32, torch.bfloat16),
    ),
    "a block in the place of the next": (
        "kernels.cpp",
        "product, two, first",
        "product, one, first",
        (torch.float32, torch.bfloat16),
    ),
    "a block left out where halves are not alike": (
        "kernels.cpp",
        "half = (blocks(product.out) + 1) / 2",
        "half = blocks(product.out) / 2",
        (torch.float32, torch.bfloat16),
    ),
    "sums of two blocks in each other's place": (
        "kernels.cpp",
        "(made ? others : sums)",
        "(made ? sums : others)",
        (torch.float32, torch.bfloat16),
    ),
    "stale sums of a row": (
        "linear.h",
        "held[i][j] = afresh ? Vec{} : load(sums + i * BLOCK + j * LANES);",
        "held[i][j] = load(sums + i * BLOCK + j * LANES);",
        (torch.float32, torch.bfloat16),
    ),
    "sums that begin anew with each part": (
        "linear.h",
        "here + at, some, ahead, first == 0,",
        "here + at, some, ahead, true,",
        (torch.float32, torch.bfloat16),
    ),
    "stale numbers behind a row": (
        "rows.h",
        "for (int64_t i = 0; i < deep; i += LANES)\n        store(to",
        "for (int64_t i = 0; i < width; i += LANES)\n        store(to",
        (torch.bfloat16,),
    ),
    "stale numbers behind a row of pairs": (
        "rows.h",
        "memset(to + width, 0, (deep - width) * sizeof *to);",
        "",
        (EMULATED_TILES,),
    ),
    "what lies behind a row, too": (
        "kernels.cpp",
        "return widens() || !in_tiles ||",
        "return widens() ||",
        (EMULATED_TILES,),
    ),
    "rows of a product's parts in each other's place": (
        "kernels.cpp",
        "return row(op.source, first) + product.first;",
        "return row(op.source, first);",
        (torch.float32, EMULATED_TILES),
    ),
    "a part of a block, packed where it lies": (
        "packing.cpp",
        "memcpy(was, there, block() * sizeof(T));",
        "memcpy(was, there, (block() - 1) * sizeof(T));",
        (torch.float32, torch.bfloat16),
    ),
    "the word behind": (
        "kernels.cpp",
        "layout.at(output, k)",
        "layout.at(output + 1, k)",
        (torch.float32, torch.bfloat16),
    ),
    "a missing bias": (
        "kernels.cpp",
        "return product.bias ? sum + load(product.bias + block * BLOCK + at) : sum;",
        "return sum;",
        (torch.float32, torch.bfloat16),
    ),
    "a key too few": (
        "attention.h",
        "found.end = found.before + count;",
        "found.end = found.before + count - (count > 0);",
        (torch.float32, torch.bfloat16),
    ),
    "another head's slope": (
        "attention.h",
        "tilts.of(first_head_ + g)",
        "tilts.of(g)",
        (torch.float32, torch.bfloat16, EMULATED_TILES),
    ),
    "a distance too far": (
        "attention.h",
        "return i < before ? i : places[i - before];",
        "return i < before ? i : places[i - before] + 1;",
        (torch.float32, torch.bfloat16),
    ),
    "a slot in the place of a position": (
        "attention.h",
        "return i < before ? i : places[i - before];",
        "return slot(i);",
        (torch.float32, torch.bfloat16),
    ),
    "no rounding where there is some": (
        "attention.h",
        "return rounded_if(coarse, load(places + i) * slope);",
        "return load(places + i) * slope;",
        (torch.float32, torch.bfloat16),
    ),
    "another head's sink": (
        "kernels.cpp",
        "exp(all(op.bias[head] - all_parts.peak))",
        "exp(all(op.bias[0] - all_parts.peak))",
        (torch.float32, torch.bfloat16),
    ),
    "another part of a row": (
        "kernels.cpp",
        "return op.flags & APART ? &product - op.products : 0;",
        "return 0;",
        (torch.bfloat16,),
    ),
    "keys over other keys": (
        "attention.h",
        "put(two_, any, keys_ + one_.dim / As::EACH * TILE);",
        "put(two_, any, keys_);",
        (torch.float32, torch.bfloat16),
    ),
    "the keys of rows of another layer's width": (
        "attention.h",
        "const int64_t width = pass.widths[op.layer];",
        "const int64_t width = pass.widths[0];",
        (torch.float32, torch.bfloat16),
    ),
    "rows stored as wide as in another layer": (
        "kernels.cpp",
        "width = pass_->widths[op.layer];",
        "width = pass_->widths[0];",
        (torch.float32, torch.bfloat16),
    ),
    "values of the head of the keys": (
        "attention.h",
        "op.value_heads ? op.first_value + kv_head % op.value_heads : kv_head;",
        "kv_head;",
        (torch.float32, torch.bfloat16),
    ),
    "values that some rows have gathered already": (
        "attention.h",
        "groups_, place, from == low);",
        "groups_, place, true);",
        (torch.float32,),
    ),
    "values from where another row's window begins": (
        "attention.h",
        "seen.cache != one.cache || seen.of(begin, PART).low != low",
        "seen.cache != one.cache",
        (torch.float32,),
    ),
    "a step that is not soft below nought": (
        "simd.h",
        "return positive + log1p(exp(x < 0.0f ? x : -x));",
        "return x < 0.0f ? Vec{} : positive + log1p(exp(-x));",
        (torch.float32, torch.bfloat16),
    ),
    "numbers of another part": (
        "rows.h",
        "total = fma(load_some(x + j * width + i, n), all(number(by[j])), total);",
        "total = fma(load_some(x + j * width + i, n), all(number(by[0])), total);",
        (torch.float32, torch.bfloat16),
    ),
    "parts that are all mixed into the first": (
        "kernels.cpp",
        "part++, by += op.count, out += width)",
        "part++, by += op.count)",
        (torch.float32, torch.bfloat16),
    ),
    "a cut at the mean": (
        "rows.h",
        "const float least = held(held(found.mean) + far);",
        "const float least = held(found.mean);",
        (torch.float32, torch.bfloat16),
    ),
    "no weights where there are some": (
        "kernels.cpp",
        "if (op.weight) v = v * load_some(op.weight + i, n);",
        "",
        (torch.float32, torch.bfloat16),
    ),
    "a clip at one end": (
        "simd.h",
        "return low < -most ? all(-most) : low;",
        "return low;",
        (torch.float32, torch.bfloat16),
    ),
    "rows as far apart as they are wide": (
        "attention.h",
        "(held_[j] == NONE ? any : held_[j]) * part.stride",
        "(held_[j] == NONE ? any : held_[j]) * part.dim",
        (torch.float32, torch.bfloat16),
    ),
    "keys over other keys in tiles": (
        "tiled_attention.h",
        "room_.keys + keys.deep * TILE_DEEP",
        "room_.keys",
        (EMULATED_TILES,),
    ),
    "values that nobody has looked at": (
        "tiled_attention.h",
        "if (!shared.uneven || are_numbers(shared))",
        "if (true)",
        (EMULATED_TILES,),
    ),
    "weights of another list": (
        "tiled_attention.h",
        "memset(near, 0, PART * sizeof(Bfloat16)), memset(rest",
        "memset(rest",
        (EMULATED_TILES,),
    ),
    "slots of another row": (
        "tiled_attention.h",
        "if (slots[j] != NONE && slots[j] != seen.slot(at + j)) return false;",
        "",
        (EMULATED_TILES,),
    ),
    "pairs of values the wrong way round": (
        "tiled_attention.h",
        "in_turn(one, two)",
        "in_turn(two, one)",
        (EMULATED_TILES,),
    ),
    "queries of the first rows": (
        "tiled_attention.h",
        "first_row_ + (h + i) / groups_",
        "(h + i) / groups_",
        (EMULATED_TILES,),
    ),
    "keys that are read on into the next": (
        "tiled_attention.h",
        "shared.in_order && part.dim == deep",
        "shared.in_order",
        (EMULATED_TILES,),
    ),
    "scores of a head over those of another place": (
        "tiled_attention.h",
        "const bool is_room = h + (two ? 2 : 1) * TILE_ROWS <= room_.pitch;",
        "const bool is_room = true;",
        (EMULATED_TILES,),
    ),
    "values for rows that do not see them": (
        "tiled_attention.h",
        "end == heads_ && h + TILE_ROWS <= room_.pitch",
        "h + TILE_ROWS <= room_.pitch",
        (EMULATED_TILES,),
    ),
    "scores that nobody has laid side by side": (
        "tiled_attention.h",
        "i < end; i += TILE_ROWS)\n            put_columns",
        "i + TILE_ROWS < end; i += TILE_ROWS)\n            put_columns",
        (EMULATED_TILES,),
    ),
    "the first columns again": (
        "tiled_attention.h",
        "laid_values(d / BLOCK + 1, i)",
        "laid_values(d / BLOCK, i)",
        (EMULATED_TILES,),
    ),
    "scores that are scaled twice": (
        "attention.h",
        "return bends() ? 1 : scale;",
        "return scale;",
        (torch.float32, torch.bfloat16),
    ),
}

TILED = "stored_tiles.h"
# The same of products of stored weights.
BUGS_OF_STORED = {
    "weights that are written over": (TILED, "HELD = 4, BEHIND = 2;", "HELD = 2, BEHIND = 2;"),
    "a group that is left out": (TILED, "g < count + BEHIND; g++", "g < count + BEHIND - 1; g++"),
    "the first rows again": (TILED, "here, here + lie.tile());", "here, here);"),
    "the first outputs again": (
        "side_by_side.h",
        "put<SUM_RIGHT>(first, sums + TILE_ROWS, stride)",
        "put<SUM_LEFT>(first, sums + TILE_ROWS, stride)",
    ),
    "sums in the place of others": (
        "side_by_side.h",
        "sums + first * stride + TILE_ROWS",
        "sums + TILE_ROWS",
    ),
    "scales of half their size": (
        "products.h",
        "return form & HALVES ? BLOCK : 2 * BLOCK;",
        "return BLOCK;",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_wrong_kernels_are_found_out(bug: str, planted: Planted) -> None:
    file, right, wrong, spoiled = BUGS[bug]
    library = planted(file, right, wrong)
    for way in spoiled:
        if way != torch.float32:
            library.use(way if isinstance(way, int) else library.paths[-1])
        with pytest.raises(Wrong):
            check(way if isinstance(way, torch.dtype) else torch.bfloat16)
    if torch.float32 in spoiled:
        with pytest.raises(Unavailable, match="fail their check"):
            kernels_of.library.__wrapped__(torch.float32)


def test_what_is_no_number_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def unwritten(product: FlatLinear, x: Tensor) -> Tensor:
        shape = *x.shape[:-1], product.out_features
        return torch.full(shape, SIGNALLING, dtype=torch.int32).view(torch.float32)

    monkeypatch.setattr(FlatLinear, "__call__", unwritten)
    with pytest.raises(Wrong, match="a product of float32 is off by nan"):
        check(torch.float32)


@pytest.mark.parametrize("bug", BUGS_OF_STORED)
def test_wrong_products_of_stored_weights_are_found_out(bug: str, planted: Planted) -> None:
    library = planted(*BUGS_OF_STORED[bug])
    library.use(EMULATED_TILES)
    with pytest.raises(Wrong, match="a product of stored weights"):
        check_stored(torch.bfloat16)


def test_kernels_are_checked_for_the_type_of_the_model_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[torch.dtype] = []
    monkeypatch.setattr(kernels_of, "check", checked.append)
    for dtype in (torch.float32, torch.bfloat16):
        found = kernels_of.library.__wrapped__(dtype)
        assert checked == [dtype]
        assert found.words.startswith(str(dtype).removeprefix("torch."))
        checked.clear()


def test_a_way_to_multiply_that_fails_its_check_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen, refused = native.loaded(), native.DOT_PRODUCTS  # whether or not it is there
    used: list[int] = []

    def use(path: int) -> None:
        used.append(path)

    def checked(dtype: torch.dtype) -> None:
        if dtype == torch.bfloat16 and used[-1] == refused:
            raise Wrong("a product is off")

    monkeypatch.setattr(Library, "paths", [refused, native.VECTORS])
    monkeypatch.setattr(chosen, "use", use, raising=False)
    monkeypatch.setattr(kernels_of, "check", checked)
    found = kernels_of.library.__wrapped__(torch.bfloat16)
    assert found.path == native.VECTORS
    assert found.dropped == (f"{kernels_of.NAMES[refused]}: a product is off",)
    # As headers and `env` say it.
    assert found.words == "bfloat16 widened, without AVX-512 products: a product is off"
