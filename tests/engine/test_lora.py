"""LoRA adapters: merged weights do what the adapter does unmerged, and the rest is refused."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ppdbench.cli.main import run
from ppdbench.engine import lora
from ppdbench.engine.loading import ModelSpec, load, load_stock
from ppdbench.errors import ConfigError
from tests.adapters import ALPHA, RANK, ROOT, adapter, factors, for_module
from tests.engine.test_packed_levels import packed_folder
from tests.engine.test_text_part import saved, whole
from tests.engine.test_weight_files import folder_in_fp8, folder_of
from tests.families import stock_model
from tests.helpers import save_synthetic

IDS = torch.arange(1, 20)[None]
Q, DOWN = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
ATTN = "transformer.h.2.attn.c_attn"


@contextmanager
def added(module: nn.Module, more: Callable[[Tensor, Tensor], Tensor]) -> Iterator[None]:
    """The module with something made of its inputs and outputs in the place of its outputs."""
    hook = module.register_forward_hook(lambda _, given, out: more(given[0], out))
    try:
        yield
    finally:
        hook.remove()


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model(input_ids=IDS).logits
    return found


def assert_same(found: Tensor, wanted: Tensor, unlike: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(wanted, unlike, atol=1e-2), "the adapter changed nothing"


# What merged weights compute


@pytest.mark.parametrize(
    ("family", "path", "settings", "rank", "scale"),
    [
        ("llama", Q, {}, RANK, ALPHA / RANK),
        ("llama", DOWN, {"use_rslora": True}, RANK, ALPHA / math.sqrt(RANK)),
        ("llama", Q, {"rank_pattern": {"q_proj": 2}}, 2, ALPHA / 2),
        ("llama", Q, {"alpha_pattern": {r"layers\.[1-3]\.self_attn\.q_proj": 6}}, RANK, 6 / RANK),
        ("llama", Q, {"alpha_pattern": {"layers.0.self_attn.q_proj": 6}}, RANK, ALPHA / RANK),
        ("gpt2", ATTN, {"fan_in_fan_out": True}, RANK, ALPHA / RANK),
    ],
)
def test_a_merged_matrix_does_what_both_do_side_by_side(
    family: str, path: str, settings: dict[str, Any], rank: int, scale: float, tmp_path: Path
) -> None:
    model = stock_model(family)
    module, before = model.get_submodule(path), logits(model)
    inputs, outputs = tuple(module.weight.shape)[:: 1 if family == "gpt2" else -1]
    a, b = factors(inputs, outputs, rank)
    with added(module, lambda given, out: out + scale * (given @ a.T @ b.T)):
        wanted = logits(model)
    lora.merge(model, lora.read(adapter(tmp_path / "a", for_module(path, a, b), **settings)))
    assert_same(logits(model), wanted, before)


@pytest.mark.parametrize(("family", "path"), [("llama", Q), ("gpt2", ATTN)])
def test_rows_get_the_lengths_that_dora_trained(family: str, path: str, tmp_path: Path) -> None:
    model = stock_model(family)
    module, before = model.get_submodule(path), logits(model)
    weight = module.weight.detach().T if family == "gpt2" else module.weight.detach()
    a, b = factors(weight.shape[1], weight.shape[0])
    lengths = torch.rand(weight.shape[0]) + 0.5
    directions = weight + ALPHA / RANK * (b @ a)
    rows = lengths[:, None] * directions / (directions**2).sum(1, keepdim=True).sqrt()
    bias = 0 if getattr(module, "bias", None) is None else module.bias.detach()
    with added(module, lambda given, out: given @ rows.T + bias):
        wanted = logits(model)
    tensors = {**for_module(path, a, b), f"{path}.lora_magnitude_vector": lengths}
    lora.merge(model, lora.read(adapter(tmp_path / "a", tensors, use_dora=True)))
    assert_same(logits(model), wanted, before)


def test_an_adapted_embedding_leaves_the_head_that_shared_its_weights_alone(tmp_path: Path) -> None:
    model = stock_model("llama-mha-tied")
    words, before = model.get_input_embeddings(), logits(model)
    a, b = factors(*words.weight.shape)
    with added(words, lambda ids, out: out + ALPHA / RANK * (a.T[ids] @ b.T)):
        wanted = logits(model)
    path = "model.embed_tokens"
    tensors = {f"{path}.lora_embedding_A": a, f"{path}.lora_embedding_B": b}
    lora.merge(model, lora.read(adapter(tmp_path / "a", tensors)))
    assert_same(logits(model), wanted, before)
    assert not model.config.tie_word_embeddings  # saved and loaded it would be tied again


def test_what_was_trained_whole_takes_the_place_of_the_models(tmp_path: Path) -> None:
    model, twin = stock_model("llama"), stock_model("llama")
    before, head = logits(model), torch.randn_like(model.lm_head.weight)
    twin.lm_head.weight = nn.Parameter(head)
    lora.merge(
        model,
        lora.read(adapter(tmp_path / "a", {"lm_head.weight": head}, modules_to_save=["lm_head"])),
    )
    assert_same(logits(model), logits(twin), before)


def test_sums_are_made_in_float32_whatever_the_weights_are(tmp_path: Path) -> None:
    model = stock_model("llama").bfloat16()
    module = model.get_submodule(Q)
    a, b = factors(module.in_features, module.out_features)
    wanted = (module.weight.detach().float() + ALPHA / RANK * (b @ a)).bfloat16()
    lora.merge(model, lora.read(adapter(tmp_path / "a", for_module(Q, a, b))))
    assert torch.equal(module.weight, wanted)


@pytest.mark.parametrize("stored", ["fp8", "gptq", "awq"])
def test_weights_that_become_plain_ones_take_an_adapter(stored: str, tmp_path: Path) -> None:
    model = stock_model("llama", vocab_size=300)
    make = folder_in_fp8 if stored == "fp8" else partial(packed_folder, method=stored)
    folder, before = make(model, folder=tmp_path / "model"), logits(model)
    a, b = factors(32, 32)
    path = adapter(tmp_path / "adapter", for_module(Q, a, b))
    with torch.no_grad():
        model.get_submodule(Q).weight += ALPHA / RANK * (b @ a)
    found, _ = load_stock(ModelSpec(name=str(folder), adapter=str(path), dtype="float32"))
    assert_same(logits(found), logits(model), before)


# Adapters of models for text and more

PICTURES = "model.vision_tower.encoder.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("kind", "module", "named"),
    [
        ("gemma3", "model.language_model.layers.1.self_attn.q_proj", None),
        (
            "gemma3",
            "model.language_model.layers.0.mlp.down_proj",
            "language_model.model.layers.0.mlp.down_proj",
        ),
        ("gemma3", "lm_head", "language_model.lm_head"),
        ("qwen2_5_vl", "model.language_model.layers.1.self_attn.k_proj", None),
        ("qwen2_5_vl", "model.language_model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj"),
        ("mllama", "model.language_model.layers.3.self_attn.q_proj", None),
    ],
)
def test_an_adapter_of_a_whole_changes_its_text_part(
    kind: str, module: str, named: str | None, tmp_path: Path
) -> None:
    model = whole(kind, tie_word_embeddings=False)
    folder, before = saved(model, tmp_path / "model"), logits(model)
    changed = model.get_submodule(module)
    a, b = factors(changed.in_features, changed.out_features, 2)
    name = named or module
    path = adapter(tmp_path / "adapter", for_module(name, a, b), rank_pattern={name: 2})
    with torch.no_grad():
        changed.weight += ALPHA / 2 * (b @ a)
    spec = ModelSpec(name=str(folder), adapter=str(path))
    found, _ = load_stock(spec)
    assert_same(logits(found), logits(model), before)
    assert load(spec).adapter_left_out == 0


def test_what_an_adapter_of_a_whole_changes_of_other_parts_is_left_out_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = whole("gemma3")
    folder, text = saved(model, tmp_path / "model"), "model.language_model.layers.1.mlp.up_proj"
    tensors = {
        **for_module(text, *factors(32, 48)),
        **for_module(PICTURES, *factors(16, 16)),
        **for_module("multi_modal_projector.some", *factors(16, 16)),
    }
    path = adapter(tmp_path / "adapter", tensors)
    assert decode(folder, tmp_path / "run", "--adapter", str(path)) == 0
    said = "note: 2 modules of the adapter are of other parts, which do not run"
    assert said in capsys.readouterr().err
    assert header(tmp_path / "run")["model"]["adapter_left_out"] == 2


def test_layers_that_look_at_pictures_alone_are_left_out_of_an_adapter(tmp_path: Path) -> None:
    folder = saved(whole("mllama"), tmp_path / "model")
    root = "model.language_model.layers"
    tensors = {
        **for_module(f"{root}.3.self_attn.q_proj", *factors(32, 32)),
        **for_module(f"{root}.1.cross_attn.q_proj", *factors(32, 32)),
    }
    path = adapter(tmp_path / "adapter", tensors)
    assert load(ModelSpec(name=str(folder), adapter=str(path))).adapter_left_out == 1


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (PICTURES, "it changes nothing of the part that writes text, which alone runs here"),
        ("model.language_model.layers.9.mlp.up_proj", "fits no part of this model"),
        ("model.sound_tower.layers.0.q_proj", "fits no part of this model"),
    ],
)
def test_an_adapter_of_a_whole_that_changes_no_text_is_refused(
    module: str, words: str, tmp_path: Path
) -> None:
    folder = saved(whole("gemma3"), tmp_path / "model")
    path = adapter(tmp_path / "adapter", for_module(module, *factors(16, 16)))
    with pytest.raises(ConfigError, match=words) as caught:
        load_stock(ModelSpec(name=str(folder), adapter=str(path)))
    assert "\n" not in str(caught.value)


# What is refused, in one line


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("bitsandbytes", {"load_in_4bit": True}),
        ("torchao", {"quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}),
    ],
)
def test_weights_that_stay_in_fewer_bits_take_none_and_are_not_read(
    method: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stock_model("llama", vocab_size=300)
    model.save_pretrained(tmp_path / "model")
    stored = {"quant_method": method, **settings}
    folder = folder_of(model, tmp_path / "model", quantization_config=stored)
    monkeypatch.delattr("transformers.AutoModelForCausalLM.from_pretrained")
    path = adapter(tmp_path / "adapter", sound())
    words = f"is quantised by {method}, and nothing is added to weights that stay in fewer bits"
    with pytest.raises(ConfigError, match=words) as caught:
        load(ModelSpec(name=str(folder), adapter=str(path)))
    assert "\n" not in str(caught.value)


def sound() -> dict[str, Tensor]:
    return for_module(Q, *factors(32, 32))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"peft_type": "IA3"},
            "peft_type is IA3, and only LORA is merged here; merge it with peft",
        ),
        ({"peft_type": None}, "peft_type must be text"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is pissa_niter_4, so it was"),
        (
            {"target_parameters": ["experts.down_proj"]},
            "target_parameters makes it more than a sum",
        ),
        ({"trainable_token_indices": [1]}, "trainable_token_indices makes it more than a sum"),
        ({"of_tomorrow": 1}, "of_tomorrow makes it more than a sum that is known here"),
        ({"r": 0}, "a rank is below 1; use whole numbers from 1"),
        ({"rank_pattern": {"q_proj": 0}}, "a rank is below 1"),
        ({"r": "8"}, "r must be a whole number"),
        ({"lora_alpha": None}, "lora_alpha must be a number"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern holds what is no pattern"),
        ({"use_dora": "yes"}, "use_dora must be true or false"),
    ],
)
def test_settings_that_are_not_understood_are_refused(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        lora.read(adapter(tmp_path / "a", sound(), **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tensors", "settings", "words"),
    [
        (for_module("model.layers.9.q", *factors(32, 32)), {}, "fits no part of this model"),
        ({"score.weight": torch.ones(2, 32)}, {}, r"score.weight fits no part of this model"),
        ({"model.layers.0.mlp.weight": torch.ones(2)}, {}, "is no weight of this model"),
        ({f"{Q}.lora_B.bias": torch.ones(32)}, {}, "fits no part of this model"),
        (for_module(Q, *factors(16, 32)), {}, r"\[32, 3\] and \[3, 16\] and rank 3 do not fit"),
        (for_module(Q, *factors(32, 32, 4)), {}, "and rank 3 do not fit weights"),
        ({f"{Q}.lora_A.weight": torch.ones(3, 32)}, {}, "has one of its two factors only"),
        (sound(), {"use_dora": True}, "use_dora is True, which its tensors"),
        ({"lm_head.weight": torch.ones(97, 32)}, {}, r"shape \[97, 32\] there and \[96, 32\]"),
    ],
)
def test_tensors_that_are_for_another_model_are_refused(
    tensors: dict[str, Tensor], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    found = lora.read(adapter(tmp_path / "a", tensors, **settings))
    with pytest.raises(ConfigError, match=words) as caught:
        lora.merge(stock_model("llama"), found)
    assert "\n" not in str(caught.value)


def test_names_that_peft_does_not_give_are_refused(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", {})
    save_file({f"{Q}.lora_A.weight": torch.ones(3, 32)}, folder / lora.TENSORS)
    with pytest.raises(ConfigError, match="fits no part of this model"):
        lora.merge(stock_model("llama"), lora.read(folder))


def cut_off(folder: Path) -> None:
    file = folder / lora.TENSORS
    file.write_bytes(file.read_bytes()[:-8])


def pickled(folder: Path) -> None:
    (folder / lora.TENSORS).rename(folder / "adapter_model.bin")


def no_json(folder: Path) -> None:
    (folder / lora.ADAPTER).write_text("{", "utf-8")


def a_list(folder: Path) -> None:
    (folder / lora.ADAPTER).write_text("[]", "utf-8")


def without_settings(folder: Path) -> None:
    (folder / lora.ADAPTER).unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut_off, "adapter_model.safetensors is cut off or damaged; fetch it again"),
        (pickled, "holds no adapter_model.safetensors; write one with peft's save_pretrained"),
        (no_json, "is not JSON that can be used"),
        (a_list, "must be an object, not an empty list"),
        (without_settings, "adapter_config.json does not exist; give --adapter a folder with"),
    ],
)
def test_damaged_adapters_are_refused(
    spoil: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "a", sound())
    spoil(folder)
    with pytest.raises(ConfigError, match=words):
        lora.read(folder)


# Models with an adapter, from the command line


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model folder."""
    spec = "layers=2,hidden=32,vocab=300,context=128"
    return save_synthetic(tmp_path_factory.mktemp("model"), spec)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    torch.manual_seed(3)
    return adapter(tmp_path / "adapter", sound())


def decode(base: Path, out: Path, *more: str) -> int:
    words = f"decode --method prompt-lookup --model {base} --task gsm8k --data builtin --limit 1"
    where = f"--max-new-tokens 8 --warmup 0 --chat off --offline --out {out}"
    return run([*words.split(), *where.split(), *more])


def header(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "run.json").read_text("utf-8"))
    return found


def test_runs_name_the_adapter_and_do_not_mix_with_others(
    base: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, adapted, baseline = tmp_path / "plain", tmp_path / "adapted", tmp_path / "base.json"
    assert decode(base, plain) == 0
    assert decode(base, adapted, "--adapter", str(trained)) == 0
    assert "with an adapter" in capsys.readouterr().out
    model = header(adapted)["model"]
    assert model["adapter"] == header(adapted)["config"]["model"]["adapter"] == str(trained)
    assert re.fullmatch("[0-9a-f]{16}", model["adapter_hash"])
    assert model["weight_hash"] != header(plain)["model"]["weight_hash"]
    sample = json.loads((adapted / "samples.jsonl").read_text("utf-8").splitlines()[-1])
    assert sample["verdict"] == "identical"

    assert decode(base, adapted, "--resume") == 2
    assert "model.adapter" in capsys.readouterr().err
    tensors = load_file(trained / lora.TENSORS)
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, trained / lora.TENSORS)
    assert decode(base, adapted, "--resume", "--adapter", str(trained)) == 2
    assert "model.adapter_hash" in capsys.readouterr().err
    assert run(["check", str(plain), "--baseline", str(baseline), "--update"]) == 0
    assert run(["check", str(adapted), "--baseline", str(baseline)]) == 2
    assert "not comparable with the baseline: model weights" in capsys.readouterr().err


def test_a_hash_tells_adapters_apart_by_weights_and_by_scale(trained: Path, tmp_path: Path) -> None:
    found = lora.read(trained)
    tensors = {n.removeprefix(ROOT): t for n, t in load_file(trained / lora.TENSORS).items()}
    same = lora.read(adapter(tmp_path / "same", tensors, peft_version="0.1"))
    other = lora.read(adapter(tmp_path / "other", tensors, lora_alpha=13))
    assert found.fingerprint() == same.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("synthetic:layers=2,hidden=32", "none was trained for random weights"),
        ("tiny.gguf", "beside weights that a GGUF file holds rounded"),
    ],
)
def test_models_without_weights_of_their_own_take_no_adapter(model: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ModelSpec(name=model, adapter="somewhere")


def test_an_adapter_that_is_not_there_is_told_before_weights_are_read(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "--model", str(base), "--adapter", str(tmp_path / "no")]) == 2
    assert "is no folder; give one that holds adapter_config.json" in capsys.readouterr().err


def test_an_adapter_in_the_place_of_a_model_is_told_apart(trained: Path) -> None:
    with pytest.raises(ConfigError, match="and no model; give --model what it was trained for"):
        load(ModelSpec(name=str(trained)))
