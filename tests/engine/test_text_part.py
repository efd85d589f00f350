"""Checkpoints for text and more: their text part runs, and writes what the whole would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CONFIG_MAPPING

from benchmarks.families import OWN, tiny
from ppdbench.cli.main import run
from ppdbench.engine import synthetic, text_part
from ppdbench.engine.loading import ModelSpec, load, load_depth, load_stock, load_words
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, UnsupportedModel
from tests.families import greedy_truth

TEXT: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TURNED = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
SEEN: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN_SEEN = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16}
# Tokens that stand for pictures lie beyond those of texts.
BEYOND = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "gemma3_text",
        {
            "text_config": {**TEXT, "sliding_window": 7, "query_pre_attn_scalar": 8},
            "vision_config": SEEN,
            "image_token_index": 290,
        },
    ),
    "gemma4": (
        "gemma4_text",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 4,
                "vocab_size_per_layer_input": 300,
                **OWN["gemma4_text"],
                "sliding_window": 7,
            }
        },
    ),
    "llama4": (
        "llama4_text",
        {
            "text_config": {**TEXT, "intermediate_size_mlp": 48, "num_local_experts": 2},
            "vision_config": {
                **SEEN,
                "num_attention_heads": 2,
                "vision_output_dim": 16,
                "projector_input_dim": 16,
                "projector_output_dim": 16,
            },
            "image_token_index": 290,
        },
    ),
    "mistral3": (
        "mistral",
        {
            "text_config": {**TEXT, "model_type": "mistral"},
            "vision_config": {**SEEN, "model_type": "pixtral", "head_dim": 8},
            "image_token_index": 290,
        },
    ),
    "mllama": (
        "llama",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 4,
                "cross_attention_layers": [1, 2],
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_global_layers": 1,
                "attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
                "vision_output_dim": 32,
                "intermediate_layers_indices": [0],
            },
        },
    ),
    "qwen2_5_vl": (
        "qwen2",
        {
            "text_config": {**TEXT, "rope_parameters": TURNED},
            "vision_config": {**QWEN_SEEN, "out_hidden_size": 32},
            **BEYOND,
        },
    ),
    "qwen3_vl_moe": (
        "qwen3_moe",
        {
            "text_config": {**TEXT, **EXPERTS, "rope_parameters": TURNED},
            "vision_config": {**QWEN_SEEN, "out_hidden_size": 32, "deepstack_visual_indexes": []},
            **BEYOND,
        },
    ),
}


def whole(model_type: str, seed: int = 0, **settings: Any) -> Any:
    """A tiny model of transformers' own class, its weights large enough to have opinions."""
    import transformers

    config = transformers.CONFIG_MAPPING[model_type](**{**PARTS[model_type][1], **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, text_part.of_text_and_more()[model_type])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    synthetic.tokenizer(300, 128).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", PARTS)
def test_a_text_part_writes_what_the_whole_writes(model_type: str, tmp_path: Path) -> None:
    model = whole(model_type)
    folder = saved(model, tmp_path / "model")
    prompt = [5, 17, 33, 8, 61, 90, 12, 44, 70, 23, 9]
    wanted = greedy_truth(model, prompt, 24, min_new_tokens=24)
    loaded = load(ModelSpec(name=str(folder)))
    assert loaded.part_of == model_type
    assert loaded.staged.model.config.model_type == PARTS[model_type][0]
    session = Session(loaded.staged, len(prompt) + 24)
    session.reset(prompt)
    last, found = session.prefill(), []
    for _ in wanted:
        logits = last[0, -1]
        logits[list(loaded.eos_ids)] = -torch.inf  # as min_new_tokens has it
        found.append(int(logits.argmax()))
        last = session.advance(torch.tensor([[found[-1]]]))
    assert found == wanted


def test_layers_that_look_at_pictures_alone_are_left_out(tmp_path: Path) -> None:
    folder = saved(whole("mllama"), tmp_path / "model")
    spec = ModelSpec(name=str(folder))
    assert load_depth(spec) == load(spec).staged.n_layers == 2


def test_a_part_that_transformers_has_no_model_of_is_refused_in_one_line(tmp_path: Path) -> None:
    settings = {"model_type": "glm4v", "architectures": ["Glm4vForConditionalGeneration"]}
    folder = saved(whole("gemma3"), tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(UnsupportedModel, match="transformers has no model of that") as said:
        load(ModelSpec(name=str(folder)))
    assert "\n" not in str(said.value)


def test_a_part_whose_whole_needs_another_library_is_loaded_alone(tmp_path: Path) -> None:
    text = tiny("gemma3n_text", vocab_size=300, vocab_size_per_layer_input=300)
    config = CONFIG_MAPPING["gemma3n"](text_config=text.config.to_dict())
    config.save_pretrained(tmp_path)
    own = {
        name.replace("model.", "model.language_model.", 1): tensor.contiguous()
        for name, tensor in text.state_dict().items()
        if name != "lm_head.weight"  # which is the embedding
    }
    pictures = {"model.vision_tower.timm_model.conv_stem.weight": torch.zeros(2, 2)}
    save_file(own | pictures, tmp_path / "model.safetensors", metadata={"format": "pt"})
    synthetic.tokenizer(300, 128).save_pretrained(tmp_path)
    prompt = [5, 17, 33, 8, 61, 90, 12, 44, 70, 23, 9]
    wanted = greedy_truth(text, prompt, 16)
    loaded = load(ModelSpec(name=str(tmp_path)))
    assert loaded.part_of == "gemma3n"
    session = Session(loaded.staged, len(prompt) + 16)
    session.reset(prompt)
    token, found = session.prefill().argmax(-1), []
    for _ in wanted:
        found.append(int(token))
        token = session.advance(token).argmax(-1)
    assert found == wanted


def test_only_the_weights_of_the_text_are_kept_and_ties_with_them(tmp_path: Path) -> None:
    folder = saved(whole("gemma3", tie_word_embeddings=True), tmp_path / "model")
    model, _ = load_stock(ModelSpec(name=str(folder)))
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"model"}
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    _, vocabulary = load_words(ModelSpec(name=str(folder)))
    assert vocabulary == 300


def test_runs_say_that_only_the_text_part_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(whole("mistral3"), tmp_path / "model")
    words = f"decode --method prompt-lookup --model {folder} --task gsm8k --data builtin --limit 1"
    where = f"--max-new-tokens 8 --warmup 0 --offline --out {tmp_path / 'run'}"
    assert run([*words.split(), *where.split()]) == 0
    assert "of the mistral3 model, which is of text and more, only the text part ran" in (
        capsys.readouterr().err
    )
    header = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert (header["model"]["family"], header["model"]["part_of"]) == ("mistral", "mistral3")
    sample = json.loads((tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()[-1])
    assert sample["verdict"] == "identical"


def test_a_part_that_computes_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(whole("qwen3_vl_moe"), tmp_path / "model")
    monkeypatch.setattr(text_part, "ALWAYS", {"qwen3_moe": {"norm_topk_prob": False}})
    with pytest.raises(UnsupportedModel, match=r"its logits over text lie 0.* from the whole's"):
        load(ModelSpec(name=str(folder)))


def test_weights_that_are_missing_are_told(tmp_path: Path) -> None:
    folder = saved(whole("mistral3"), tmp_path / "model")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors.pop(next(name for name in tensors if "q_proj" in name and "language" in name))
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 tensors .*q_proj"):
        load(ModelSpec(name=str(folder)))


def test_a_part_is_not_spread_over_devices(tmp_path: Path) -> None:
    folder = saved(whole("mistral3"), tmp_path / "model")
    with pytest.raises(ConfigError, match="--device-map auto cannot be taken apart; use plain"):
        load(ModelSpec(name=str(folder), device_map="auto"))


def test_a_text_part_of_a_family_that_does_not_run_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = saved(whole("mistral3"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["text_config"]["model_type"] = "rwkv"
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UnsupportedModel, match="family rwkv does not run"):
        load(ModelSpec(name=str(folder)))
