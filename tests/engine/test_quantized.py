"""Weights in 8 and 4 bits: exact decoding, honest bytes, and what is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from benchmarks.families import tiny
from ppdbench.cli import main
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.stock import StockModel
from ppdbench.engine import quantized, weights
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.loading import ModelSpec, laid_out, load, load_stock
from ppdbench.engine.packing import exchangeable
from ppdbench.engine.quantized import (
    SCHEMES,
    Scheme,
    check_scheme,
    check_stored,
    keep_types,
    quantize,
)
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError, UnsupportedModel
from ppdbench.testing import CLOCK, free
from tests.adapters import ALPHA, RANK, adapter, factors, for_module
from tests.families import FAMILIES, stock_model

CPU = torch.device("cpu")
TINY = "synthetic:layers=4,hidden=64,heads=4,vocab=300,context=256,agree=0.9"
BENCH = ("bench", "--offline", "--data", "builtin", "--task", "gsm8k", "--warmup", "0")
# All that need nothing trained.
METHODS = (
    *("greedy", "early-exit", "layerskip", "draft-verify", "prompt-lookup"),
    *("lookahead", "jacobi", "ppd"),
)
# Families whose layers are more than attention and an MLP.
OTHERS = ("phimoe", "zamba")
MODEL = ("--model", "synthetic:layers=3,hidden=64,heads=4,context=512,agree=0.9")


def needs(scheme: str) -> None:
    pytest.importorskip(SCHEMES[scheme].library, reason="an extra: ppdbench[quantized]")


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    needs(request.param)
    return str(request.param)


def run(*arguments: str) -> int:
    return main.run([*BENCH, *MODEL, *arguments])


def stored(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines()
    return json.loads((folder / "run.json").read_text("utf-8")), [json.loads(x) for x in lines]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_of_a_product_does_not_depend_on_the_others(scheme: str, dtype: str) -> None:
    model = load(ModelSpec(name=TINY, quantize=scheme, dtype=dtype, device="cpu")).staged.model
    product = model.model.layers[0].mlp.up_proj
    rows = torch.randn(1, 5, 64, dtype=getattr(torch, dtype))
    others = rows.clone()
    others[:, 1:] *= 100
    with torch.inference_mode():
        assert torch.equal(product(rows)[:, :1], product(others)[:, :1])


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_every_method_gives_what_greedy_gives(
    scheme: str, strict: tuple[str, ...], tmp_path: Path
) -> None:
    methods = [word for name in METHODS for word in ("--method", name)]
    asked = ("--quantize", scheme, *methods, "--limit", "1", "--max-new-tokens", "10")
    assert run(*asked, *strict, "--out", str(tmp_path / "run")) == 0
    header, samples = stored(tmp_path / "run")
    assert header["model"]["dtype"] == f"float32, {scheme} weights"
    assert len(samples) == len(METHODS)
    right = {"identical"} if strict else {"identical", "tie"}
    exact = [s for s in samples if header["methods"][s["method"]]["exact"]]
    assert {s["verdict"] for s in exact} <= right


@pytest.mark.parametrize("family", [*FAMILIES, *OTHERS])
@pytest.mark.parametrize("kind", ["int8", "nf4"])
def test_the_engine_gives_what_generate_gives_on_the_same_quantised_weights(
    family: str, kind: str
) -> None:
    needs(kind)
    model = tiny(family) if family in OTHERS else copy.deepcopy(stock_model(family))
    quantize(model, kind, CPU)
    keep_types(model)
    prompt = [5, 6, 7, 8, 9]
    handed = StockModel(copy.deepcopy(model)).generate(Request(prompt, Limits(16), CLOCK))
    theirs = tuple(token for part in handed for token in part.tokens)
    assert free(StagedModel(model), prompt, 16) == theirs


class Fewer(nn.Module):
    """A stand-in for a product in fewer bits."""

    def __init__(self, product: nn.Linear) -> None:
        super().__init__()
        self.product = (product,)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.product[0](x)
        return out


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> str:
    """A scheme that needs no library."""
    monkeypatch.setitem(SCHEMES, "fewer", Scheme("torch", 8.0, Fewer))  # type: ignore[arg-type]
    return "fewer"


@pytest.mark.parametrize(
    ("name", "block"), [("zamba", "shared_transf"), ("zamba2", "shared_transformer")]
)
def test_blocks_that_layers_share_are_quantised_once(fewer: str, name: str, block: str) -> None:
    model = tiny(name)
    layers = Adapter(model).layers
    weights_before = {id(p.weight) for layer in layers for p in exchangeable(layer)}
    quantize(model, fewer, CPU)
    made = [part for layer in layers for part in layer.modules() if isinstance(part, Fewer)]
    assert len(set(made)) == len(weights_before) < len(made)
    first, second = (layers[i].get_submodule(block).modules() for i in (1, 3))
    pairs = [pair for pair in zip(first, second, strict=True) if isinstance(pair[0], Fewer)]
    assert len(pairs) > 4 and all(one is other for one, other in pairs)


@pytest.mark.parametrize(
    ("name", "kind"), [("phimoe", "PhimoeTopKRouter"), ("llama4_text", "Llama4Router")]
)
def test_routers_stay_as_they_are(fewer: str, name: str, kind: str) -> None:
    model = tiny(name)
    before = [part for part in model.modules() if type(part).__name__ == kind]
    quantize(model, fewer, CPU)
    assert before and all(part in set(model.modules()) for part in before)


ADAPTED = "model.layers.1.self_attn.q_proj"


def test_an_adapter_is_merged_before_weights_are_quantised(fewer: str, tmp_path: Path) -> None:
    plain = load(ModelSpec(name=TINY, device="cpu"))
    plain.tokenizer.save_pretrained(tmp_path / "plain")
    stock = AutoModelForCausalLM.from_config(plain.staged.model.config)
    stock.save_pretrained(tmp_path / "plain")
    a, b = factors(64, 64)
    path = adapter(tmp_path / "adapter", for_module(ADAPTED, a, b))
    named = {"name": str(tmp_path / "plain"), "quantize": fewer, "adapter": str(path)}
    spec = ModelSpec(device="cpu", **named)
    made = laid_out(spec, load_stock(spec)[0]).get_submodule(ADAPTED)
    wanted = stock.get_submodule(ADAPTED).weight + ALPHA / RANK * (b @ a)
    assert isinstance(made, Fewer)
    torch.testing.assert_close(made.product[0].weight, wanted)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_nothing_is_added_to_weights_that_stay_in_fewer_bits(kind: str, tmp_path: Path) -> None:
    needs(kind)
    folder = quantised_folder(kind, tmp_path)
    path = adapter(tmp_path / "adapter", for_module(ADAPTED, *factors(64, 64)))
    spec = ModelSpec(name=str(folder), adapter=str(path), dtype="float32", device="cpu")
    said = "quantised by .*, and nothing is added to weights that stay in fewer bits; give --model"
    with pytest.raises(ConfigError, match=said) as caught:
        load(spec)
    assert "\n" not in str(caught.value)


def test_bytes_are_those_that_are_held(scheme: str) -> None:
    plain = load(ModelSpec(name=TINY, device="cpu")).staged
    small = load(ModelSpec(name=TINY, quantize=scheme, device="cpu")).staged
    assert small.parameters == plain.parameters
    assert small.readout_bytes() == plain.readout_bytes()
    share = small.layer_bytes(0) / plain.layer_bytes(0)
    assert SCHEMES[scheme].bits / 32 <= share < 1.25 * SCHEMES[scheme].bits / 32


def test_what_was_trained_beside_the_plain_model_serves_the_quantised_one(scheme: str) -> None:
    plain = load(ModelSpec(name=TINY, device="cpu"))
    assert load(ModelSpec(name=TINY, quantize=scheme, device="cpu")).fingerprint == (
        plain.fingerprint
    )


def test_a_process_that_runs_some_layers_holds_only_those(scheme: str) -> None:
    spec = ModelSpec(name=TINY, quantize=scheme, device="cpu")
    whole, half = load(spec).staged, load(spec, keep=range(2, 4)).staged
    assert half.layer_bytes(0) == 0
    assert half.layer_bytes(3) == whole.layer_bytes(3)
    assert half.dtype == whole.dtype


def test_transformers_runs_the_same_quantised_weights_beside_us(scheme: str) -> None:
    ours = load(ModelSpec(name=TINY, quantize=scheme, device="cpu"))
    stock = Setup(ours, 64).stock()
    assert weights.kind_of(stock.model) == scheme
    prompt = list(range(20, 32))
    handed = stock.generate(Request(prompt, Limits(12), CLOCK))
    assert free(ours.staged, prompt, 12) == tuple(t for part in handed for t in part.tokens)


def test_a_run_goes_on_with_the_same_scheme_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("int8")
    needs("nf4")
    asked = ("--limit", "1", "--max-new-tokens", "4", "--method", "greedy")
    out = ("--out", str(tmp_path / "run"))
    assert run("--quantize", "int8", *asked, *out) == 0
    assert run("--quantize", "int8", *asked, *out, "--resume") == 0
    for other in ((), ("--quantize", "nf4")):
        assert run(*other, *asked, *out, "--resume") == 2
        assert "config.model.quantize" in capsys.readouterr().err


def test_passes_of_quantised_weights_are_not_captured(scheme: str) -> None:
    why = load(ModelSpec(name=TINY, quantize=scheme, device="cpu")).staged.graphs.why_not()
    assert why is not None
    assert "quantised" in why


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_model_stored_quantised_runs_as_it_is(kind: str, tmp_path: Path) -> None:
    needs(kind)
    folder = quantised_folder(kind, tmp_path)
    loaded = load(ModelSpec(name=str(folder), dtype="float32", device="cpu"))
    assert loaded.staged.precision == f"float32, {kind} weights"
    made = load(ModelSpec(name=str(tmp_path / "plain"), quantize=kind, device="cpu"))
    prompt = list(range(20, 32))
    assert free(loaded.staged, prompt, 12) == free(made.staged, prompt, 12)
    with pytest.raises(ConfigError, match="holds quantised weights already"):
        load(ModelSpec(name=str(folder), quantize=kind, device="cpu"))


def quantised_folder(kind: str, tmp_path: Path) -> Path:
    """A folder as transformers writes it, made from the plain model in `plain`."""
    from transformers import BitsAndBytesConfig, TorchAoConfig

    plain = load(ModelSpec(name=TINY, device="cpu"))
    for folder in (tmp_path / "plain", tmp_path / "quantised"):
        plain.tokenizer.save_pretrained(folder)
    AutoModelForCausalLM.from_config(plain.staged.model.config).save_pretrained(tmp_path / "plain")
    if kind == "nf4":
        how: Any = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
        )
    else:
        from torchao.quantization import Int8WeightOnlyConfig

        how = TorchAoConfig(Int8WeightOnlyConfig())
    model = AutoModelForCausalLM.from_pretrained(
        tmp_path / "plain", quantization_config=how, device_map={"": CPU}, dtype=torch.float32
    )
    model.save_pretrained(tmp_path / "quantised")
    return tmp_path / "quantised"


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes in 8 bits"),
        ({"quant_method": "gptq"}, "gptq"),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Int8DynamicActivationInt8WeightConfig"}},
            },
            "torchao",
        ),
    ],
)
def test_stored_schemes_in_which_rows_may_meet_are_refused(
    facts: dict[str, Any], said: str
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        check_stored(SimpleNamespace(quantization_config=facts), "a-model", None, None)


def test_an_unknown_scheme_is_told_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--quantize", "int3") == 2
    assert "--quantize int3: use int8, nf4, fp4" in capsys.readouterr().err


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantized, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ppdbench\[quantized\]'"):
        check_scheme("nf4")


def test_training_wants_plain_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("int8")
    (tmp_path / "text.txt").write_text("A word or two. " * 200, "utf-8")
    asked = ("train", "heads", "--text", str(tmp_path / "text.txt"), "--quantize", "int8")
    assert main.run([*asked, *MODEL, "--out", str(tmp_path / "heads")]) == 2
    assert "training runs on plain weights" in capsys.readouterr().err


def test_no_product_rounds_to_a_smaller_type_than_the_models() -> None:
    """4-bit products on some CPUs do, unless they are told not to."""
    layers = {
        dtype: SimpleNamespace(
            support_avx512bf16_for_cpu=True, out_features=64, in_features=64, compute_dtype=dtype
        )
        for dtype in (torch.float32, torch.bfloat16)
    }
    odd = SimpleNamespace(**{**vars(layers[torch.bfloat16]), "in_features": 48})
    keep_types(SimpleNamespace(modules=lambda: [*layers.values(), odd]))  # type: ignore[arg-type]
    kept = [layer.support_avx512bf16_for_cpu for layer in (*layers.values(), odd)]
    assert kept == [False, True, False]
