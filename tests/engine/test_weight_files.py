"""Weights in every kind of file: the same model, or one line that says what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.families import tiny
from ppdbench.engine import synthetic
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, UnsupportedModel
from tests.families import greedy_truth, stock_model

PROMPT = [5, 17, 33, 8, 61]
TOKENS = 12


def folder_of(model: Any, folder: Path, **settings: Any) -> Path:
    """A model folder without weights."""
    synthetic.tokenizer(300, 96).save_pretrained(folder)
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **settings}), "utf-8")
    return folder


def as_shards(model: Any, folder: Path) -> None:
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 3


def as_pickle(model: Any, folder: Path) -> None:
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def as_pickled_shards(model: Any, folder: Path) -> None:
    tensors, places = list(model.state_dict().items()), {}
    for at in range(2):
        name = f"pytorch_model-{at + 1:05d}-of-00002.bin"
        torch.save(dict(tensors[at::2]), folder / name)
        places |= {tensor: name for tensor, _ in tensors[at::2]}
    index = {"metadata": {}, "weight_map": places}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index), "utf-8")


def as_one(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)


def ours(folder: Path) -> list[int]:
    """Tokens of the model in a folder."""
    session = Session(load(ModelSpec(name=str(folder))).staged, len(PROMPT) + TOKENS)
    session.reset(PROMPT)
    last, found = session.prefill(), []
    for _ in range(TOKENS):
        found.append(int(last[0, -1].argmax()))
        last = session.advance(torch.tensor([found[-1:]]))
    return found


def truth(model: Any) -> list[int]:
    model.generation_config.eos_token_id = None
    return greedy_truth(model, PROMPT, TOKENS)


@pytest.mark.parametrize("family", ["llama", "llama-mha-tied", "gpt2"])
@pytest.mark.parametrize("save", [as_one, as_shards, as_pickle, as_pickled_shards])
def test_a_model_is_the_same_whatever_files_its_weights_are_in(
    family: str, save: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    model = stock_model(family, vocab_size=300)
    folder = folder_of(model, tmp_path)
    save(model, folder)
    assert ours(folder) == truth(model)


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


def test_pickles_that_would_run_code_are_refused_unread(tmp_path: Path) -> None:
    model, made = stock_model("llama", vocab_size=300), tmp_path / "made"
    folder = folder_of(model, tmp_path / "model")
    torch.save({**model.state_dict(), "more": Malicious(made)}, folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="pickled with more than plain tensors") as caught:
        load(ModelSpec(name=str(folder)))
    assert "\n" not in str(caught.value)
    assert not made.exists()


@pytest.mark.parametrize("save", [as_shards, as_pickled_shards])
def test_a_shard_that_is_not_there_is_named(
    save: Callable[[Any, Path], None], tmp_path: Path
) -> None:
    model = stock_model("llama", vocab_size=300)
    folder = folder_of(model, tmp_path)
    save(model, folder)
    lost = sorted(folder.glob("*-00002-of-*"))[0]
    lost.unlink()
    with pytest.raises(ConfigError, match=rf"names {lost.name}, which is not there; fetch"):
        load(ModelSpec(name=str(folder)))


@pytest.mark.parametrize("save", [as_one, as_shards])
@pytest.mark.parametrize("left", ["pytorch_model.bin", "flax_model.msgpack", "tf_model.h5"])
def test_an_index_of_another_format_may_have_stayed_behind(
    save: Callable[[Any, Path], None], left: str, tmp_path: Path
) -> None:
    model = stock_model("llama", vocab_size=300)
    folder = folder_of(model, tmp_path)
    save(model, folder)
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "pytorch_model-00001-of-00002.bin"}}
    (folder / f"{left}.index.json").write_text(json.dumps(index), "utf-8")
    assert ours(folder) == truth(model)


def test_an_index_that_is_none_is_damaged(tmp_path: Path) -> None:
    folder = folder_of(stock_model("llama", vocab_size=300), tmp_path)
    (folder / "model.safetensors.index.json").write_text("[]", "utf-8")
    with pytest.raises(ConfigError, match=r"index\.json is cut off or damaged"):
        load(ModelSpec(name=str(folder)))


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def folder_in_fp8(model: Any, folder: Path) -> Path:
    """A folder of a model whose weights become what the stored ones stand for."""
    stored, plain = {}, model.state_dict()
    for name, weight in model.state_dict().items():
        stored[name] = weight
        if ".layers." in name and weight.dim() == 2:
            scale = (weight.abs().max() / 448).reshape(1, 1)
            stored[name] = (weight / scale).to(torch.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale
            plain[name] = stored[name].float() * scale
    folder_of(model, folder, quantization_config=FP8)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    model.load_state_dict(plain)
    return folder


def test_weights_in_fp8_become_the_plain_ones_that_they_stand_for(tmp_path: Path) -> None:
    model = stock_model("llama", vocab_size=300)
    folder = folder_in_fp8(model, tmp_path)
    assert ours(folder) == truth(model)
    loaded = load(ModelSpec(name=str(folder)))
    assert (loaded.stored_as, loaded.staged.precision) == ("fp8", "float32")
    with pytest.raises(ConfigError, match=r"weights in fp8, .* leave --device-map out"):
        load(ModelSpec(name=str(folder), device_map="auto"))


# Sixteen numbers of 4 bits, and groups of 32 that share a power of two.
FOUR_BITS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
LEVELS = torch.tensor([*FOUR_BITS, *(-x for x in FOUR_BITS)])


def test_experts_in_mxfp4_become_the_plain_ones_that_they_stand_for(tmp_path: Path) -> None:
    model = tiny("gpt_oss", vocab_size=300, intermediate_size=64)
    torch.manual_seed(1)
    stored, plain = {}, model.state_dict()
    for name, weight in model.state_dict().items():
        stored[name] = weight
        if name.endswith("_proj") and "experts" in name:
            experts, width, out = weight.shape
            drawn = torch.randint(0, 16, (experts, out, width // 32, 32))
            powers = torch.randint(122, 126, (experts, out, width // 32))
            plain[name] = (
                (LEVELS[drawn] * 2.0 ** (powers - 127)[..., None]).flatten(2).transpose(1, 2)
            )
            del stored[name]
            stored[f"{name}_blocks"] = (drawn[..., ::2] | drawn[..., 1::2] << 4).to(torch.uint8)
            stored[f"{name}_scales"] = powers.to(torch.uint8)
    settings = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    folder = folder_of(model, tmp_path, quantization_config=settings)
    save_file(
        {name: tensor.contiguous() for name, tensor in stored.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    model.load_state_dict(plain)
    loaded = load(ModelSpec(name=str(folder)))
    assert loaded.stored_as == "mxfp4"
    assert ours(folder) == truth(model)


def test_fp8_whose_scales_are_not_there_is_refused(tmp_path: Path) -> None:
    folder = folder_in_fp8(stock_model("llama", vocab_size=300), tmp_path)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    lost = sorted(name for name in tensors if "scale" in name)[0]
    del tensors[lost]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match="1 tensors in fp8 lack their scales, first model"
    ) as said:
        load(ModelSpec(name=str(folder)))
    assert "\n" not in str(said.value)


def test_fp8_that_the_configuration_says_nothing_of_is_refused(tmp_path: Path) -> None:
    folder = folder_in_fp8(stock_model("llama", vocab_size=300), tmp_path)
    path = folder / "config.json"
    settings = json.loads(path.read_text("utf-8"))
    del settings["quantization_config"]
    path.write_text(json.dumps(settings), "utf-8")
    with pytest.raises(ConfigError, match=r"model\.safetensors holds weights in fp8, and config"):
        load(ModelSpec(name=str(folder)))
    path.write_text(json.dumps({**settings, "quantization_config": ["fp8"]}), "utf-8")
    with pytest.raises(ConfigError, match="quantization_config must be an object"):
        load(ModelSpec(name=str(folder)))


@pytest.mark.parametrize("save", [as_pickle, as_pickled_shards])
@pytest.mark.parametrize("left", [0, 500])
def test_pickled_files_that_are_cut_off_are_named(
    save: Callable[[Any, Path], None], left: int, tmp_path: Path
) -> None:
    model = stock_model("llama", vocab_size=300)
    folder = folder_of(model, tmp_path)
    save(model, folder)
    file = sorted(folder.glob("*.bin"))[-1]
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(ConfigError, match=f"{file.name} is cut off or damaged; fetch it again"):
        load(ModelSpec(name=str(folder)))


@pytest.mark.parametrize("method", ["aqlm", "higgs", "compressed-tensors", "fbgemm_fp8"])
def test_formats_that_do_not_run_are_named_in_one_line(method: str, tmp_path: Path) -> None:
    model = stock_model("llama", vocab_size=300)
    model.save_pretrained(tmp_path)
    folder = folder_of(model, tmp_path, quantization_config={"quant_method": method, "bits": 4})
    with pytest.raises(UnsupportedModel, match=f"is quantised by {method}, .* supported") as caught:
        load(ModelSpec(name=str(folder)))
    assert "\n" not in str(caught.value)
