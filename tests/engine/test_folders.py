"""Model folders seen from outside: whole ones pass, others are told by the file that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from ppdbench.engine import synthetic
from ppdbench.engine.folders import check_config, check_model_folder, check_sizes, check_tensors
from ppdbench.errors import ConfigError, UnsupportedModel
from tests.families import stock_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model as transformers saves it, in several files."""
    stock_model("llama", vocab_size=300).save_pretrained(tmp_path, max_shard_size="20KB")
    synthetic.tokenizer(300, 96).save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_that_transformers_saved_passes(folder: Path) -> None:
    check_model_folder(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model-00002-of-*.safetensors"])
def test_what_is_not_there_is_named(name: str, folder: Path) -> None:
    (lost,) = folder.glob(name)
    lost.unlink()
    if name == "tokenizer.json":
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ConfigError) as said:
        check_model_folder(folder)
    assert lost.name in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize("kept", [0, 5, -1])
def test_weights_that_are_cut_off_are_named(kept: int, folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[1]
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=f"{file.name} is cut off or damaged; fetch it again"):
        check_model_folder(folder)


def test_types_of_tensors_are_read_without_them(folder: Path) -> None:
    file = sorted(folder.glob("*.safetensors"))[0]
    assert check_tensors("model", file) == {"F32"}
    tensors = {"half": stock_model("llama", vocab_size=300).lm_head.weight.detach().half()}
    save_file(tensors, file)
    assert check_tensors("model", file) == {"F16"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "config.json is not valid JSON"),
        ("[" * 100_000, "config.json is not valid JSON"),
        ("[]", "config.json names no model_type"),
        ('{"model_type": 3}', "config.json names no model_type"),
        ('{"model_type": "never-heard-of"}', "family 'never-heard-of' is not known"),
        ('{"model_type": "llama", "quantization_config": "fp8"}', "must be an object"),
    ],
)
def test_a_config_that_is_none_is_refused(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content, "utf-8")
    with pytest.raises((ConfigError, UnsupportedModel), match=said):
        check_config(tmp_path)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_a_file_that_is_cut_off_is_named(name: str, folder: Path) -> None:
    check_model_folder(folder)
    (folder / name).write_text('{"a": NaN}', "utf-8")  # as some are written
    check_model_folder(folder)
    (folder / name).write_text('{"a": ', "utf-8")
    with pytest.raises(ConfigError, match=f"{name} is cut off or damaged"):
        check_model_folder(folder)


def test_an_adapter_is_told_from_a_model(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}), "utf-8")
    with pytest.raises(ConfigError, match="and weights beside it: move it to a folder of its own"):
        check_model_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match="is an adapter such as LoRA"):
        check_model_folder(folder)


@pytest.mark.parametrize("value", [10**9, 0, -1, "many", 2.0, True])
def test_numbers_that_no_model_has_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"num_hidden_layers is .* from 1 to 1000"):
        check_sizes({"num_hidden_layers": value}, "config.json")


@pytest.mark.parametrize("value", [[48, 0], [48, "48"], [], [[48]], [10**9]])
def test_sizes_of_layers_are_whole_numbers_each(value: object) -> None:
    check_sizes({"intermediate_size": [48, 64]}, "config.json")
    with pytest.raises(ConfigError, match="intermediate_size is "):
        check_sizes({"intermediate_size": value}, "config.json")
    with pytest.raises(ConfigError, match="num_hidden_layers is "):
        check_sizes({"num_hidden_layers": [2, 2]}, "config.json")
