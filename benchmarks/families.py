"""Every family of decoders in transformers, tried: `make families`.

A tiny model with random weights is built from each family's own configuration. What our engine
makes of it is held against transformers: hidden states after every layer, logits, a pass over a
tree, and 64 tokens of `generate()`, of every method that needs no training, too. What came of it
goes to the table that the package carries, and to docs/families.md.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.engine import text_part
from ppdbench.engine.anatomy import Anatomy
from ppdbench.engine.families import members
from ppdbench.engine.known import TABLE, Known, of_text_and_more
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from ppdbench.files.whole import write_whole
from ppdbench.machine.clock import Clock
from ppdbench.methods import method

PAGE = Path("docs/families.md")
VOCABULARY, WINDOW, TOKENS = 96, 7, 64
PROMPT = [5, 17, 33, 8, 61, 90, 12, 44, 70, 23, 9] * 2  # longer than the window
CLOSE = 1e-4
# Methods that need no training.
TRAINING_FREE: dict[str, dict[str, str]] = {
    "greedy": {},
    "prompt-lookup": {},
    "layerskip": {"exit_layer": "2"},
    "draft-verify": {},
    "lookahead": {},
    "jacobi": {},
}
SPARE = 40  # tokens that drafts may reach beyond an output
# Not every release's fast attention knows soft caps and sinks; the plain one always does. That of
# Falcon adds its distances to scores twice: the mask has them already.
ATTENTION = {"falcon": "sdpa"}
# A model with more numbers than this is no tiny one: its configuration was not understood.
MOST = 3_000_000

SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), 48),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 160),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    "num_key_value_heads": 2,
    "moe_num_experts": 4,
    "sliding_window": WINDOW,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    # Of layers with a memory of their own.
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_headdim"), 8),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_dt_rank", "time_step_rank"), 8),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 8),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_heads"), 4),
    "linear_num_key_heads": 2,
    "mamba_chunk_size": 16,
    "mamba_d_ssm": 64,
}
ALTERNATING = {"layer_types": ["linear_attention", "full_attention"] * 2}
# Layers of two sizes, of which the last take keys and values of the first.
SHARING = {
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
}
TWO_SIZES = {
    **SHARING,
    "per_layer_config": {i: {"head_dim": 16, "num_key_value_heads": 1} for i in (1, 3)},
}
# A base of angles for each layer, or none.
BASES: dict[str, Any] = {"layer_rope_theta": [10000, 0, 500.0, 10000.0]}
LATENT = {"num_key_value_heads": 4, "head_dim": None}
TURNED = {"rope_type": "default", "rope_theta": 10000.0}
# Where the small settings alone make no model, or not one that says enough.
OWN: Mapping[str, Mapping[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {
            "hidden_size": 32,
            "ffn_hidden_size": 16,
            "moe_num_experts": 4,
            "moe_top_k": 2,
        },
    },
    "falcon": {"head_dim": None},
    "gemma3n_text": {
        **SHARING,
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0],
    },
    "gemma4_text": {**TWO_SIZES, "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True},
    "gemma4_unified_text": TWO_SIZES,
    "mimo_v2_flash": {"v_head_dim": 4},
    "modernbert-decoder": {"local_attention": 2 * WINDOW},
    "mllama_text_model": {"cross_attention_layers": [1], "num_hidden_layers": 5},
    "granite_swa": BASES,
    "granitemoe_swa": BASES,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "axk1": LATENT,
    "glm4_moe_lite": LATENT,
    "minicpm3": LATENT,
    "youtu": LATENT,
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm3": {"layer_types": ["conv", "sliding_attention", "conv", "full_attention"]},
    "bamba": {"attn_layer_indices": [1, 3]},
    "bailing_hybrid": {**ALTERNATING, **LATENT},
    "falcon_h1": {
        "embedding_multiplier": 2.0,
        "lm_head_multiplier": 0.5,
        "ssm_multipliers": [0.5, 0.75, 1.25, 1.5, 2.0],
        "ssm_out_multiplier": 0.7,
    },
    "granitemoehybrid": ALTERNATING,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {**ALTERNATING, **LATENT},
    "mamba2": {"num_heads": 8, "n_groups": 2, "chunk_size": 16},
    "nemotron_h": {"n_groups": 2, "chunk_size": 16},
    "olmo_hybrid": ALTERNATING,
    "qwen3_5_moe_text": ALTERNATING,
    "qwen3_5_text": ALTERNATING,
    "qwen3_next": ALTERNATING,
    "xlstm": {"num_heads": 4, "v_head_dim": None, "qk_head_dim": None},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "mamba_expand": 2},
    "zamba2": {
        "chunk_size": 16,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3],
        "attention_head_dim": 16,
        "num_mem_blocks": 1,
    },
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid"] * 4},
}
# Models that look for the place of their pictures' weights even where there is only text.
EYE: dict[str, int] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "image_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads"), 1),
    "patch_size": 8,
}
EYES: Mapping[str, Mapping[str, Any]] = {
    "aya_vision": {"vision_config": EYE},
    "idefics3": {"vision_config": EYE},
}
# Settings of other parts that must go with those of a small text.
FITTED: Mapping[str, Mapping[str, Any]] = {
    "fun_asr_nano": {
        "adaptor_config": {"hidden_size": 32, "intermediate_size": 8, "num_attention_heads": 1}
    },
}
# Families whose models are other things than left-to-right decoders of text, and what they are.
ENCODERS = [
    "bert",
    "bert-generation",
    "big_bird",
    "camembert",
    "data2vec-text",
    "electra",
    "ernie",
    "megatron-bert",
    "rembert",
    "roberta",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "xlm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xlnet",
    "xmod",
]
HALVES = [
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "blenderbot-small",
    "marian",
    "mbart",
    "mvp",
    "pegasus",
    "plbart",
    "prophetnet",
    "trocr",
    "whisper",
]
MIXED = [
    "cohere_compass_text",
    "emu3",
    "fuyu",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "git",
    "got_ocr2",
    "llama4",
    "moss_transcribe_diarize",
    "musicgen",
    "musicgen_melody",
    "phi4_multimodal",
]
STATES = [
    "bailing_hybrid",
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "mamba",
    "mamba2",
    "minimax",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "qwen4_exp",
    "qwen4_exp_text",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba",
    "zamba2",
    "zaya",
]
TEXT_AND_MORE = "text and more"
KINDS = {
    **dict.fromkeys(ENCODERS, "encoder"),
    **dict.fromkeys(HALVES, "half of a pair"),
    **dict.fromkeys(MIXED, TEXT_AND_MORE),
    **dict.fromkeys(STATES, "recurrent"),
}
# Kinds of which none is tried, and what is known of them.
WHY = {
    "encoder": "it reads a text from both ends, and does not write one from left to right",
    "half of a pair": "it writes about what the encoder of its pair has read, which is not here",
}
# Models for text and more that are tried: those whose text part is of a family that runs, less
# those whose pictures cannot be left out of a tiny model.
PARTS = [
    "aria",
    "aya_vision",
    "cohere2_vision",
    "cosmos3_omni",
    "deepseek_vl",
    "deepseek_vl_hybrid",
    "exaone4_5",
    "fun_asr_nano",
    "fuyu",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gemma4_unified",
    "glmasr",
    "got_ocr2",
    "granite_speech",
    "granite_speech_plus",
    "hyperclovax_vision_v2",
    "idefics2",
    "idefics3",
    "internvl",
    "janus",
    "kimi_k25",
    "lfm2_vl",
    "lfm3_vl",
    "lighton_ocr",
    "llama4",
    "llava",
    "llava_next",
    "llava_next_video",
    "llava_onevision",
    "minicpm_ocr",
    "minicpmv4_6",
    "minicpmv4_7",
    "mistral3",
    "mllama",
    "moss_transcribe_diarize",
    "nemo_speechlm",
    "nemotron_h_omni",
    "ovis2",
    "paligemma",
    "pp_chart2table",
    "qianfan_ocr",
    "qwen2_5_vl",
    "qwen2_audio",
    "qwen2_vl",
    "qwen3_asr",
    "qwen3_vl",
    "qwen3_vl_moe",
    "shieldgemma2",
    "smolvlm",
    "vibevoice_asr",
    "video_llama_3",
    "video_llava",
    "vipllava",
    "voxtral",
]
# The others, and what stands between them and text alone.
NO_PARTS = {
    **dict.fromkeys(
        ["blip-2", "instructblip", "instructblipvideo"],
        "it writes about a picture, and no pass of the whole runs without one",
    ),
    "cohere_compass_text": "it is a part of a larger model, and none of its own",
    "emu3": "its words and its pictures share one vocabulary and one model",
    "git": "words stand behind a picture, and its layers look at that",
    **dict.fromkeys(["musicgen", "musicgen_melody"], "it writes sounds and no text"),
    "phi4_multimodal": "weights for pictures and sounds are part of its text's layers",
}
# Those that load where a library for their pictures is installed, without which none is tried.
UNTRIED = {"fast_vlm", "perception_lm"}
# Those of the others that compute what passes here do not.
OTHERS = {
    "beam": "some of its layers scale attention by how far a text has come, and ask to be told",
    "blt": "it reads bytes in patches, which a model of its own cuts",
    "cpmant": "its layers weigh keys by a table that is made of all rows of a pass at once",
    **dict.fromkeys(
        ["gemma4_assistant", "gemma4_unified_assistant"],
        "it drafts for another model, whose keys and values it reads",
    ),
    **dict.fromkeys(
        [
            *("axk2", "deepseek_v32", "dots3_note", "dots3_note_text", "glm_moe_dsa", "hy_v4"),
            *("qwen4_exp", "qwen4_exp_text"),
        ],
        "its layers choose the rows that they look at by an index of their own",
    ),
    "hrm_text": "it runs through its layers in circles, and keeps keys of every round",
    "longcat_flash": "each of its layers attends twice, and keeps keys and values for both",
    "reformer": "its layers look at words of like hashes, so rows depend on each other",
}
NOT_HELD = {
    **OTHERS,
    **{name: WHY[kind] for name, kind in KINDS.items() if kind in WHY},
    **NO_PARTS,
}


def model_types() -> list[str]:
    """All families in the installed transformers that write text left to right."""
    return sorted({*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *of_text_and_more()} - UNTRIED)


def _of_one_size(config: Any) -> Any:
    """Settings that may be asked for what differs from layer to layer, too."""
    config.allow_global_per_layer_attribute_access = True
    return config


def tiny(model_type: str, *, most: int = MOST, std: float = 0.25, **settings: Any) -> Any:
    """A tiny random model of a family, its weights large enough to have opinions.

    With other `settings` one of up to `most` numbers.
    """
    base = _of_one_size(CONFIG_MAPPING[model_type]().get_text_config(decoder=True))
    known = base.to_dict()
    asked = {**SMALL, **OWN.get(model_type, {}), **settings}
    chosen = {k: v for k, v in asked.items() if v is not None and (k in known or hasattr(base, k))}
    config = type(base)(**chosen)
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > most:
        raise ValueError(f"{size} numbers, which is not tiny")
    torch.manual_seed(0)
    attention = ATTENTION.get(model_type, "eager")
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, std)
            elif any(part in name for part in ("bias", "sink", "output_scale")):
                parameter.normal_(0.0, 0.1)
            elif name.endswith(".temp"):  # nought, at first, and so would be all keys
                parameter.normal_(1.0, 0.1)
    model.generation_config.eos_token_id = None
    return model


def _states(model: Any, ours: StagedModel, ids: torch.Tensor) -> tuple[list[torch.Tensor], Any]:
    """The stock model's hidden states after each layer, and its logits."""
    family, states = ours.adapter.family, []
    layers = model.get_submodule(f"{family.body}.{family.layers}")

    def see(_: Any, __: Any, out: Any) -> None:
        states.append(out[0] if isinstance(out, tuple) else out)

    hooks = [layer.register_forward_hook(see) for layer in layers]
    logits = model(ids).logits
    for hook in hooks:
        hook.remove()
    return states, logits


@torch.inference_mode()
def differs(model: Any, tokens: int = TOKENS) -> str | None:
    """Say where our passes leave those of a stock model; None if nowhere."""
    ours = StagedModel(copy.deepcopy(model))
    ids = torch.tensor([PROMPT])
    truth, logits = _states(model, ours, ids)
    session, seen = Session(ours, len(PROMPT) + tokens + 8), []
    session.reset(PROMPT)
    last = session.prefill(tap=lambda _layer, hidden: seen.append(ours.adapter.given(hidden)))
    for layer, (mine, true) in enumerate(zip(seen, truth, strict=True), start=1):
        if _gap(mine, true) > CLOSE:
            return f"after layer {layer} states are {_gap(mine, true):.0%} off"
    if _gap(last[:, -1:], logits[:, -1:]) > CLOSE:
        return f"logits are {_gap(last[:, -1:], logits[:, -1:]):.0%} off"
    branches = _rollback_differs if ours.adapter.anatomy.remembers else _tree_differs
    return branches(session, model) or _tokens_differ(session, last, model, tokens)


def _gap(mine: torch.Tensor, true: torch.Tensor) -> float:
    return float((mine - true).norm() / true.norm())


def _tree_differs(session: Session, model: Any) -> str | None:
    """Hold two branches, of two tokens each, against a pass of the stock model over each."""
    branches, parents = [31, 77, 40, 3], [-1, -1, 0, 1]
    step = session.tree(parents)
    mine = session.logits(session.forward(session.ids(branches), step))
    session.cache.truncate(len(PROMPT))
    for first in (0, 1):
        path = [branches[first], branches[first + 2]]
        true = model(torch.tensor([[*PROMPT, *path]])).logits[:, -2:]
        if (gap := _gap(mine[:, [first, first + 2]], true)) > CLOSE:
            return f"a tree's logits are {gap:.0%} off"
    return None


def _rollback_differs(session: Session, model: Any) -> str | None:
    """Keep a part of some rows, twice, and hold what follows against a pass over what was kept."""
    text, start = list(PROMPT), len(PROMPT)
    for rows, kept in (([31, 77, 40, 3], 2), ([8, 15, 60, 2, 9], 1), ([44, 5, 71], 3)):
        mine = session.logits(session.forward(session.ids(rows)))
        true = model(torch.tensor([[*text, *rows]])).logits[:, -len(rows) :]
        if (gap := _gap(mine, true)) > CLOSE:
            return f"the logits of {len(rows)} rows behind what was kept are {gap:.0%} off"
        session.cache.keep(len(text), range(kept))
        text += rows[:kept]
    session.cache.truncate(start)
    return None


def _generated(model: Any, n: int) -> list[int]:
    """The tokens of `generate()`."""
    ids = torch.tensor([PROMPT])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n,
        min_new_tokens=n,
        do_sample=False,
        pad_token_id=0,
    )
    found: list[int] = out[0, len(PROMPT) :].tolist()
    return found


def outputs(model: Any, lengths: Mapping[str, int]) -> Iterator[tuple[str, list[int]]]:
    """Outputs of methods without training, so many tokens of each.

    Those that a model's layers do not allow are left out: single blocks of layers that are one
    block each cannot be skipped, and layers that remember read no branches.
    """
    ours = StagedModel(copy.deepcopy(model))
    assert ours.dtype == torch.float32
    target = Loaded(ModelSpec(name="tiny"), ours, None, frozenset(), 0, "")
    capacity = len(PROMPT) + max(lengths.values()) + SPARE
    for name, length in lengths.items():
        strategy = method(name).build(TRAINING_FREE[name])
        try:
            decoder = strategy.prepare(Setup(target, capacity))
        except UnsupportedModel as refused:
            assert (name, "without single blocks" in str(refused)) == ("draft-verify", True)
            continue
        if name == "lookahead" and ours.remembers:
            continue
        session = Session(ours, capacity, spare=decoder.rows)
        request = Request(list(PROMPT), Limits(max_new_tokens=length), Clock(ours.device))
        yield name, list(decoder.decode(session, request).output_ids)


def _methods_differ(model: Any, n: int) -> str | None:
    """Name a method that writes something else than `generate()` does; None if none does."""
    truth = _generated(model, n)
    found = outputs(model, dict.fromkeys(TRAINING_FREE, n))
    return next((f"{name} writes other tokens" for name, ids in found if ids != truth), None)


def _tokens_differ(session: Session, last: torch.Tensor, model: Any, n: int) -> str | None:
    token = last[:, -1:].argmax(-1)
    for place, expected in enumerate(_generated(model, n)):
        if int(token) != expected:
            return f"token {place} is another than that of generate()"
        token = session.advance(token)[:, -1:].argmax(-1)
    return None


def mixed(model_type: str) -> Any:
    """A model for text and more, whose text part is tiny and random and the rest without memory."""
    base = CONFIG_MAPPING[model_type]()
    text = base.get_text_config(decoder=True)
    family = text_part.TWINS.get(text.model_type, text.model_type)
    asked = {**SMALL, **OWN.get(family, {}), **OWN.get(text.model_type, {})}
    if text.model_type.startswith("qwen") and family != text.model_type:
        asked["rope_parameters"] = {**TURNED, "mrope_section": [2, 1, 1]}
    known = _of_one_size(text).to_dict()
    small = type(text)(**{k: v for k, v in asked.items() if v is not None and k in known})
    name = next(name for name in base.sub_configs if getattr(base, name, None) is text)
    others = {**EYES.get(model_type, {}), **FITTED.get(model_type, {})}
    config = CONFIG_MAPPING[model_type](**{name: small}, **others)
    with init_empty_weights():
        whole_class = getattr(transformers, of_text_and_more()[model_type])
        model = whole_class._from_config(config, attn_implementation="eager").eval()
    torch.manual_seed(0)
    text_alone = (model.get_decoder(), model.get_output_embeddings())
    for part in (model,) if model_type in EYES else filter(None, text_alone):
        for module in part.modules():
            for leaf, weight in module.named_parameters(recurse=False):
                scale, mean = (0.25, 0.0) if weight.dim() > 1 else (0.1, float("bias" not in leaf))
                drawn = torch.empty(weight.shape).normal_(mean, scale)
                module.register_parameter(leaf, torch.nn.Parameter(drawn, requires_grad=False))
    model.tie_weights()
    return model


def _text_of(model_type: str) -> Any:
    """A tiny model of the text part alone."""
    return tiny(CONFIG_MAPPING[model_type]().get_text_config(decoder=True).model_type)


@torch.inference_mode()
def _part_differs(model_type: str, tokens: int) -> str | None:
    """Say where our passes over a text part leave those of the whole model; None if nowhere."""
    model = mixed(model_type)
    part = text_part.part_of(model)
    text_part.hold(model, part)
    if (why := differs(part, 1)) is not None:
        return why
    session = Session(StagedModel(copy.deepcopy(part)), len(PROMPT) + tokens + 1)
    session.reset(PROMPT)
    ids, token = list(PROMPT), session.prefill()[:, -1:].argmax(-1)
    for place in range(tokens):
        true = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        if int(token) != int(true.argmax()):
            return f"token {place} is another than the whole model's"
        ids.append(int(token))
        token = session.advance(token)[:, -1:].argmax(-1)
    return None


def _tried_part(model_type: str, tokens: int) -> Known:
    alone = model_type in text_part.ALONE
    try:
        why = differs(_text_of(model_type), tokens) if alone else _part_differs(model_type, tokens)
    except UnsupportedModel as refusal:
        why = _why_no_part(refusal)
    return Known(model_type, TEXT_AND_MORE, why is None, why or "")


def _why_no_part(refusal: UnsupportedModel) -> str:
    """The reason in a refusal of a text part."""
    said = str(refusal).partition(" on its own: ")[2].partition("; `ppdbench")[0]
    return f"its text part does not run on its own: {said}"


def _why_not_tried(model_type: str) -> str:
    """Say why no text can be taken out of a model; any other model belongs to `PARTS`."""
    config = CONFIG_MAPPING[model_type]()
    if getattr(config, "is_encoder_decoder", False):
        return "it writes about what an encoder has read"
    if not text_part.is_mixed(config):
        return "its text is no part of it that could be taken out"
    try:
        family = tried(text_part.configuration(config).model_type)
    except UnsupportedModel as refusal:
        return _why_no_part(refusal)
    assert not family.runs, f"{model_type} belongs to PARTS"
    return f"its text is of {family.family}: {family.why}"


def tried(model_type: str, tokens: int = TOKENS, *, methods: bool = False) -> Known:
    """Try a family, with all methods if asked, and tell what became of it."""
    if model_type in PARTS:
        return _tried_part(model_type, tokens)
    whole = model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    kind = TEXT_AND_MORE if whole else KINDS.get(model_type, "other")
    if model_type in NOT_HELD:
        return Known(model_type, kind, False, NOT_HELD[model_type])
    if whole:
        return Known(model_type, kind, False, _why_not_tried(model_type))
    model = tiny(model_type)
    try:
        why = differs(model, tokens) or (_methods_differ(model, tokens) if methods else None)
    except UnsupportedModel as refusal:
        said = str(refusal).partition(" does not run, because ")[2]
        return Known(model_type, kind, False, said.partition("; `ppdbench")[0])
    return Known(model_type, _kind(StagedModel(model).adapter.anatomy), why is None, why or "")


def _kind(anatomy: Anatomy) -> str:
    """The kind of layers that a family which runs has."""
    if anatomy.remembers:
        return "hybrid" if anatomy.attending else "recurrent"
    return "experts" if anatomy.experts else "dense"


def page(rows: Iterable[Known]) -> str:
    """The table as a page."""
    rows = list(rows)
    running = [row for row in rows if row.runs]
    lines = [
        "# Families",
        "",
        "Which models run, by the `model_type` in their `config.json`. Most families need nothing",
        "that names them: a model is read from its modules, and what was read is held against",
        "`transformers` whenever one is loaded. This page is written by `make families`, which",
        "builds a tiny random model of every family that `transformers` has and compares hidden",
        "states after every layer, logits, a tree of drafts, and 64 tokens with `generate()`,",
        "those of every method that needs no training among them.",
        "Of models for text and more the part that writes text runs, held against the whole; that",
        "of Gemma 3n is loaded alone, because the whole needs another library for its pictures.",
        f"{' and '.join(f'`{name}`' for name in sorted(UNTRIED))} need it as well: they are not in",
        "these tables, and held against the whole where they are loaded.",
        "",
        "Families of the kind `hybrid`, and `recurrent` where nothing attends, have layers with a",
        "memory of their own: recurrent states, and what convolutions saw last. They run drafts",
        "that are chains, not trees, whose branches would need a state each. Instead of the tree",
        "passes of several rows are compared of which a part is kept: [how that",
        "works](architecture.md#layers-with-a-memory).",
        "",
        f"{len(running)} of {len(rows)} families run.",
        "",
        "## Those that run",
        "",
        "| family | kind | known as |",
        "|---|---|---|",
        *(f"| `{row.family}` | {row.kind} | {members(row.family)} |" for row in running),
        "",
        "## Those that do not, and why",
        "",
        "| family | kind | why |",
        "|---|---|---|",
        *(f"| `{row.family}` | {row.kind} | {row.why} |" for row in rows if not row.runs),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Try all families and write both files; name a few to see only what becomes of them."""
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            print(tried(name, methods=True))
        return
    rows = [tried(name, methods=True) for name in model_types()]
    wrong = [row.family for row in rows if not row.why and not row.runs]
    assert not wrong, wrong
    table = json.dumps([asdict(row) for row in rows], indent=1) + "\n"
    write_whole(TABLE, table)
    write_whole(PAGE, page(rows))


if __name__ == "__main__":
    main()
