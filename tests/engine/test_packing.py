"""Packed linear layers compute what plain ones do, and replace them for good."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from transformers.pytorch_utils import Conv1D

from benchmarks.families import tiny
from ppdbench.engine import packing
from ppdbench.engine.packing import (
    PackedLinear,
    can_pack,
    exchangeable,
    pack,
    packed_bytes,
    taken,
)
from ppdbench.engine.staged import StagedModel
from tests.families import stock_model
from tests.helpers import assert_near, staged

BFLOAT16_THERE = pytest.mark.skipif(
    not packing.BFLOAT16_PRODUCTS, reason="torch has no products of bfloat16 for this processor"
)
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=BFLOAT16_THERE)]
# Rounding of the type itself, over sums of a few dozen products.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7}

pytestmark = pytest.mark.skipif(
    not can_pack(torch.ones(2, 2)), reason="this build of torch has no packed CPU kernels"
)


def linear(n_in: int, n_out: int, dtype: torch.dtype, bias: bool = True) -> nn.Linear:
    torch.manual_seed(n_in + n_out)
    return nn.Linear(n_in, n_out, bias=bias).to(dtype).requires_grad_(False)


def rows(n: int, n_in: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(1, n, n_in, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n_in", "n_out"), [(32, 48), (64, 96), (33, 17), (172, 64), (128, 1)])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@torch.inference_mode()
def test_packed_equals_plain(dtype: torch.dtype, n_in: int, n_out: int, bias: bool) -> None:
    plain = linear(n_in, n_out, dtype, bias)
    truth = nn.Linear(n_in, n_out, bias=bias)
    truth.load_state_dict(plain.state_dict())
    packed = pack(plain)
    assert isinstance(packed, PackedLinear)
    assert (packed.in_features, packed.out_features) == (n_in, n_out)
    for n in (1, 2, 3, 5, 8, 9, 16, 31, 64):
        x = rows(n, n_in, dtype)
        out = packed(x)
        assert out.dtype == dtype
        assert_near(out.float(), truth(x.float()), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_tell_what_they_take_by_their_largest_weight(dtype: torch.dtype) -> None:
    plain = linear(64, 96, dtype)
    assert plain.bias is not None
    plain.bias.data = plain.bias.double()
    assert taken(plain) == dtype
    block = nn.Sequential(pack(linear(64, 96, dtype)), nn.LayerNorm(64, dtype=torch.float64))
    assert isinstance(block[0], PackedLinear)
    assert taken(block) == dtype


def test_what_is_not_computed_in_tells_of_no_type() -> None:
    held = nn.Module()
    held.levels = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    held.few = nn.Parameter(torch.zeros(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
    assert taken(held) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@torch.inference_mode()
def test_conv1d_is_packed_the_right_way_round(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = Conv1D(48, 32).to(dtype).requires_grad_(False)
    plain.weight.normal_()
    plain.bias.normal_()
    x = rows(5, 32, dtype)
    truth = x.float() @ plain.weight.float() + plain.bias.float()
    packed = pack(plain)
    assert isinstance(packed, PackedLinear)
    assert (packed.in_features, packed.out_features) == (32, 48)
    assert_near(packed(x).float(), truth, TOLERANCE[dtype])


def test_bfloat16_stays_as_it_is_where_the_library_has_no_products_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packing, "BFLOAT16_PRODUCTS", False)
    narrow, wide = linear(32, 48, torch.bfloat16), linear(32, 48, torch.float32)
    assert pack(narrow) is narrow
    assert isinstance(pack(wide), PackedLinear)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_come_back_as_they_were(dtype: torch.dtype) -> None:
    plain = linear(33, 17, dtype)
    packed = pack(plain)
    assert isinstance(packed, PackedLinear)
    assert torch.equal(packed.rows(), plain.weight)


@torch.inference_mode()
def test_leading_dimensions_are_kept() -> None:
    packed = pack(linear(32, 48, torch.float32))
    x = torch.randn(2, 3, 32)
    assert packed(x).shape == (2, 3, 48)
    assert packed(x[0, 0]).shape == (48,)


# With a fixed number of rows, what the other rows hold must not reach into a row.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [1, 2, 5, 8, 13, 16, 64])
@torch.inference_mode()
def test_a_row_is_the_same_bits_whatever_the_other_rows_hold(dtype: torch.dtype, n: int) -> None:
    packed = pack(linear(384, 160, dtype))
    ours = rows(1, 384, dtype, seed=99)[0, 0]
    seen = []
    for place in sorted({0, 1 % n, n // 2, n - 2 if n > 1 else 0, n - 1}):
        x = rows(n, 384, dtype, seed=place)
        x[0, place] = ours
        seen.append(packed(x)[0, place])
    assert all(torch.equal(row, seen[0]) for row in seen)


# Whole models


def test_every_linear_layer_of_the_layers_and_the_head_is_packed() -> None:
    for name in ("llama", "gpt2", "opt-350m-like"):
        model = staged(name)
        inside = [m for layer in model.adapter.layers for m in layer.modules()]
        assert not [m for m in inside if type(m) in (nn.Linear, Conv1D)]
        assert sum(isinstance(m, PackedLinear) for m in inside) >= 4 * model.n_layers
        assert isinstance(model.adapter.head, PackedLinear)
        assert model.model.get_output_embeddings() is model.adapter.head


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_bytes_are_those_of_the_plain_weights(dtype: torch.dtype) -> None:
    block = nn.Sequential(linear(32, 48, dtype), nn.ReLU(), linear(48, 8, dtype, bias=False))
    expected = (32 * 48 + 48 * 8) * dtype.itemsize
    assert packed_bytes(block) == 0
    assert pack(block) is block
    assert packed_bytes(block) == expected


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_the_plain_weights_are_freed(name: str) -> None:
    stock = stock_model(name)
    embedding = stock.get_input_embeddings().weight
    linears = [m for m in stock.modules() if type(m) in (nn.Linear, Conv1D)]
    weights = [m.weight for m in linears if m.weight is not embedding]
    parameters = [weakref.ref(w) for w in weights]
    storages = [StorageWeakRef(w.untyped_storage()) for w in weights]
    tied = StorageWeakRef(embedding.untyped_storage())
    assert len(parameters) >= 16
    del linears, weights, embedding
    model = StagedModel(stock)
    gc.collect()
    assert [ref() for ref in parameters] == [None] * len(parameters)
    assert all(storage.expired() for storage in storages)
    assert not tied.expired()
    assert packed_bytes(model.model) > 0


@torch.inference_mode()
def test_a_tied_head_is_packed_while_its_embedding_still_embeds() -> None:
    stock = stock_model("llama-mha-tied")
    assert stock.lm_head.weight is stock.model.embed_tokens.weight
    rows_before = stock.model.embed_tokens.weight.clone()
    model = StagedModel(stock)
    cache, steps = model.new_cache(96)
    embedded = model.embed(torch.arange(96)[None], steps.chain(0, 96))
    assert torch.equal(embedded[0], rows_before)
    hidden = torch.randn(1, 3, 32)
    assert isinstance(model.adapter.head, PackedLinear)
    assert_near(model.adapter.head(hidden), hidden @ rows_before.T)
    assert set(cache.lengths.values()) == {0}


@pytest.mark.parametrize(
    ("name", "block"), [("zamba", "shared_transf"), ("zamba2", "shared_transformer")]
)
def test_blocks_that_layers_share_are_laid_out_once(
    name: str, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PAYS_FROM", {torch.float32: 64})
    stock = tiny(name)
    before = StagedModel(copy.deepcopy(stock), packed=False)
    model = StagedModel(stock)
    first, second = (model.adapter.layers[i].get_submodule(block) for i in (1, 3))
    for path in ("self_attn.q_proj", "self_attn.o_proj"):
        product = first.get_submodule(path)
        assert isinstance(product, PackedLinear)
        assert product is second.get_submodule(path)
    own = [layer.get_submodule("linear") for layer in model.adapter.layers[1::2]]
    assert own[0] is not own[1]
    assert isinstance(own[0], PackedLinear)
    head = before.adapter.head.weight.nbytes  # packed beside the embedding
    assert model.weight_bytes() == before.weight_bytes() + head


# What is left alone


def test_float16_and_weights_elsewhere_are_left_alone() -> None:
    for layer in (linear(8, 8, torch.float16), nn.Linear(8, 8, device="meta")):
        assert not can_pack(layer.weight)
        assert pack(layer) is layer
        block = nn.Sequential(layer)
        pack(block)
        assert block[0] is layer
        assert packed_bytes(block) == 0


def test_subclasses_of_linear_are_left_alone() -> None:
    """They may compute something else."""

    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    layer = Doubled(8, 8)
    assert pack(layer) is layer


def test_products_whose_weights_are_looked_at_from_outside_are_left_alone() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear(64, 64, torch.float32)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.inner(x.to(self.inner.weight.dtype))
            return scores

    router = nn.Sequential(Router(), linear(64, 64, torch.float32))
    before, x = router[0].inner, torch.randn(3, 64)
    expected = router(x)
    pack(router)
    assert router[0].inner is before
    assert isinstance(router[1], PackedLinear)
    assert_near(router(x), expected)
    plain = nn.Sequential(Router(), linear(64, 64, torch.float32))
    assert list(exchangeable(plain)) == [plain[1]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_matrices_stay_as_they_are(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packing.PAYS_FROM, dtype, 64 * 64)
    small, large = linear(63, 64, dtype), linear(64, 64, dtype)
    assert pack(small) is small
    assert isinstance(pack(large), PackedLinear)
