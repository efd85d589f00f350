"""Models from GGUF files against the models they were written from, and against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from torch import nn

from benchmarks.families import tiny
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.flat import choice
from ppdbench.engine.flat.products import FlatProduct
from ppdbench.engine.flat.words import FlatWords
from ppdbench.engine.gguf.file import read
from ppdbench.engine.gguf.numbers import pieces
from ppdbench.engine.loading import ModelSpec, load, load_stock, take_over
from ppdbench.engine.session import Session
from ppdbench.machine.clock import Clock
from ppdbench.machine.pages import large_pages
from tests.engine.gguf.made import loaded, logits
from tests.families import greedy_truth, stock_model
from tests.gguf_files import write

EXACT = ("llama", "llama-mha-tied", "qwen2", "qwen3", "phi3", "phi3-window", "olmo2", "gpt2")
NEOX = ("gpt_neox", "gpt_neox-serial")
# Sizes that fill the blocks of the kernels, and the products of a layer.
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
PRODUCTS = 7
HALF_TURNED = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
# Families beyond rotary attention and an MLP alone, in shapes of their own.
OTHERS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "falcon": {},
    "falcon, groups": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma4_text": {},
    "gemma4_text, experts": {
        "enable_moe_block": True,
        "top_k_experts": 2,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": 3.0,
    },
    "gpt_oss": {},
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "mamba": {},
    "minimax_m2": {"rope_parameters": HALF_TURNED},
    "nemotron": {},
    "qwen2_moe": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {"sliding_window": 160},  # files do not tell of one
}
# transformers has tables of these; of rows in blocks of 32 and heads of usual width.
KNOWN = ("llama", "llama-mha-tied", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")
WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}


@pytest.mark.parametrize("name", [*EXACT, *NEOX])
def test_a_model_is_the_one_that_its_file_was_written_from(name: str, tmp_path: Path) -> None:
    stock = stock_model(name)
    again = loaded(write(tmp_path / "m.gguf", stock))
    ours, theirs = again.state_dict(), stock.state_dict()
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert torch.equal(ours[key], tensor), key
    assert torch.equal(logits(again), logits(stock))


def drawn(model: Any) -> Any:
    """The model, with numbers of their own in the buffers that are saved with it."""
    saved = model.state_dict().keys() & dict(model.named_buffers()).keys()
    for name in sorted(saved):
        model.get_buffer(name).uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_the_ones_that_their_files_were_written_from(
    name: str, tmp_path: Path
) -> None:
    stock = drawn(tiny(name.partition(",")[0], **OTHERS[name]))
    again = loaded(write(tmp_path / "m.gguf", stock))
    ours, theirs = again.state_dict(), stock.state_dict()
    assert ours.keys() == theirs.keys()
    for key, tensor in theirs.items():
        assert torch.allclose(ours[key], tensor, rtol=1e-6, atol=1e-6), key
    assert torch.allclose(logits(again), logits(stock), atol=1e-4)


@pytest.mark.parametrize("name", ["bloom", "lfm2", "mamba", "nemotron", "stablelm"])
def test_weights_and_logits_of_others_are_those_that_transformers_makes(
    name: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    path = write(tmp_path / "m.gguf", tiny(name, **OTHERS[name]))
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file=path.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    ours = loaded(path)
    for key, tensor in theirs.state_dict().items():
        assert torch.allclose(ours.state_dict()[key], tensor, rtol=1e-6, atol=1e-6), key
    assert torch.allclose(logits(ours), logits(theirs), atol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_norms_that_were_stored_one_higher_lose_nothing_but_that(name: str, tmp_path: Path) -> None:
    stock = stock_model(name)
    again = loaded(write(tmp_path / "m.gguf", stock))
    assert torch.allclose(logits(again), logits(stock), atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", KNOWN)
def test_weights_and_logits_are_those_that_transformers_makes(
    name: str, dtype: str, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, GgufConfig

    # transformers takes widths of heads and contexts of some families for the usual ones.
    width = 128 if name == "qwen3" else 16
    usual = {"head_dim": width} if name.startswith(("gemma", "qwen3")) else {}
    more = {"max_position_embeddings": 1024, "n_inner": 256} if name == "gpt2" else {}
    path = write(tmp_path / "m.gguf", stock_model(name, **{**WIDE, **usual, **more}), "Q4_1")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path,
        gguf_file=path.name,
        dtype=getattr(torch, dtype),
        quantization_config=GgufConfig(dequantize=True),
    )
    ours = loaded(path, dtype)
    assert {p.dtype for p in ours.parameters()} == {getattr(torch, dtype)}
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], tensor), key
    if not name.startswith("gemma"):  # their scores are scaled by what transformers does not read
        assert torch.equal(logits(ours), logits(theirs))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_numbers_are_those_that_the_package_makes(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama", **WIDE), kind)
    file, theirs = read(path), gguf.GGUFReader(path).tensors
    assert list(file.tensors) == [tensor.name for tensor in theirs]
    with path.open("rb") as stream:
        for tensor in theirs:
            made = torch.cat(list(pieces(stream, file.tensors[tensor.name])))
            known = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
            assert torch.equal(made.reshape(known.shape), known), tensor.name


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("Q8_0", "float32"), ("BF16", "bfloat16"), ("F16", "float32"), ("F32", "float32")],
)
def test_auto_keeps_the_type_of_plain_numbers(kind: str, dtype: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama", **WIDE), kind)
    model = load(ModelSpec(name=str(path), device="cpu"))
    assert model.staged.dtype == getattr(torch, dtype)


def test_the_fingerprint_is_the_files_in_every_type(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama", **WIDE), "Q4_0")
    other = write(tmp_path / "other.gguf", stock_model("llama", seed=1, **WIDE), "Q4_0")
    prints = [
        load(ModelSpec(name=str(name), dtype=dtype)).fingerprint
        for name in (path, other)
        for dtype in ("float32", "bfloat16")
    ]
    assert prints[0] == prints[1] != prints[2] == prints[3]


def test_the_engine_writes_what_generate_writes(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama", **WIDE), "Q8_0")
    model, stock = load(ModelSpec(name=str(path))), loaded(path)
    limits = Limits(24, model.eos_ids)
    for prompt in ([1, 17, 42], [9, 80, 33, 5]):
        session = Session(model.staged, 64)
        ours = autoregressive(
            session, Request(prompt, limits, Clock(torch.device("cpu")))
        ).output_ids
        assert list(ours) == greedy_truth(stock, prompt, 24)


@pytest.mark.parametrize("name", ["gemma4_text", "gemma4_text, experts", "minimax_m2"])
def test_layers_of_several_kinds_are_read_as_transformers_computes_them(
    name: str, tmp_path: Path
) -> None:
    stock = drawn(tiny(name.partition(",")[0], **OTHERS[name]))
    model = load(ModelSpec(name=str(write(tmp_path / "m.gguf", stock)), dtype="float32"))
    session, prompt = Session(model.staged, 64), [1, 17, 42, 9, 80, 33, 5, 21]
    request = Request(prompt, Limits(16), Clock(torch.device("cpu")))
    found = autoregressive(session, request).output_ids
    assert list(found) == greedy_truth(stock, prompt, 16)


def test_keys_that_layers_do_not_read_are_passed_over(tmp_path: Path) -> None:
    narrow = {"use_double_wide_mlp": False}
    whole = tiny("gemma4_text", num_kv_shared_layers=0, **narrow)
    shared = tiny("gemma4_text", **narrow)
    shared.load_state_dict(whole.state_dict(), strict=False)
    path = write(tmp_path / "m.gguf", whole, **{"attention.shared_kv_layers": 2})
    assert torch.allclose(logits(loaded(path)), logits(shared), atol=1e-5)
    assert not torch.allclose(logits(whole), logits(shared), atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "llama-mha-tied"])
def test_weights_are_laid_out_where_they_were_read_to(
    name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "m.gguf", stock_model(name, **WIDE))
    spec = ModelSpec(name=str(path), dtype=dtype, device="cpu")
    stock, tokenizer = load_stock(spec)
    if not large_pages.holds_alone(stock.get_input_embeddings().weight):
        pytest.skip("no large pages here")
    places = [{p.data_ptr() for p in layer.parameters()} for layer in stock.model.layers]
    of_head = stock.lm_head.weight.data_ptr()
    words = stock.get_input_embeddings().weight.clone()
    ours = take_over(spec, stock, tokenizer, passes="flat").staged
    assert ours.flat is not None, ours.path.why
    for layer, before in zip(ours.adapter.layers, places, strict=True):
        products = [m for m in layer.modules() if isinstance(m, FlatProduct)]
        assert len(products) == PRODUCTS
        assert {m.flat.blob.data_ptr() for m in products} <= before
    head, embedding = ours.adapter.head, ours.adapter.embedding
    assert isinstance(head, FlatProduct)
    assert head.flat.blob.data_ptr() == of_head
    assert isinstance(embedding, FlatWords) == name.endswith("tied")
    assert torch.equal(embedding(torch.arange(len(words))), words)
    monkeypatch.setattr(choice.ProductChecks, "for_good", choice.ProductChecks.flat)
    copied = load(spec, passes="flat").staged
    assert type(copied.adapter.embedding) is nn.Embedding
    found = []
    for model in (ours, copied):
        session = Session(model, 40)
        session.reset([3, 17, 5, 40, 2])
        with torch.inference_mode():
            prompt = session.prefill()[0]
            behind = [session.run_and_read(tokens)[1].logits[0] for tokens in ([5], [7, 8, 9])]
        found.append(torch.cat([prompt, *behind]))
    assert torch.equal(*found)
