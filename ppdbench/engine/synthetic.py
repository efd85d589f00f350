"""Models with random weights in a given shape, for ceilings and what-if studies.

A Llama whose weights come from a seed. `agree` scales down what the layers above the first
quarter add to the residual stream, so that early layers hold the final token more or less
often: 0 leaves them alone, 1 silences them and every layer from there on agrees.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ppdbench.engine.footprint import on_meta
from ppdbench.engine.shapes import SPECIALS, ModelShape
from ppdbench.machine.pages import room_for_weight


def configuration(shape: ModelShape) -> Any:
    """The transformers configuration of a Llama of this shape."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.n_ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tie,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def build(
    shape: ModelShape,
    dtype: torch.dtype,
    device: torch.device,
    places: Mapping[str, str | int] | None = None,
) -> Any:
    """The transformers model of this shape, the same weights for the same shape and seed.

    `places` names another device for each of its parts, where they do not all go to one.
    """
    config = configuration(shape)
    model = on_meta(config, dtype)
    for name, place in ({"": device} if places is None else places).items():
        model.get_submodule(name).to_empty(device=place)
    for parameter in model.parameters():
        if parameter.device.type == "cpu":
            parameter.data = room_for_weight(parameter.shape, dtype=dtype)
    _fill(model, shape)
    model.tie_weights()
    # Rotary tables are computed, not stored: to_empty left them without values.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return model.eval()


# How loud a layer's contribution is against the embedding's. Chosen so that tokens depend
# on context and the top logits stand clear of each other, instead of near-ties everywhere.
GAIN = 1.6


@torch.no_grad()
def _fill(model: Any, shape: ModelShape) -> None:
    generator = torch.Generator(device="cpu").manual_seed(shape.seed)
    quiet_from = shape.layers / 4
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
            continue
        fan_in = parameter.shape[1]
        values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if name.endswith("embed_tokens.weight"):
            # A head that shares the rows would only repeat its input if they were as loud
            # as what the layers add.
            values *= fan_in**-0.5 if shape.tie else 1.0
        else:
            values *= fan_in**-0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            layer = int(name.split("layers.")[1].split(".")[0])
            loud = 1.0 if layer < quiet_from else 1.0 - shape.agree
            values *= GAIN * loud
        parameter.copy_(values)


def tokenizer(vocab: int, context: int) -> Any:
    """Bytes as tokens; ids beyond them decode to a visible placeholder such as ⟨1234⟩."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*SPECIALS, *alphabet]
    names += [f"⟨{i}⟩" for i in range(len(names), vocab)]
    bytewise = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(names)}, merges=[]))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = decoders.ByteLevel()
    return wrapped(bytewise, context)


def wrapped(core: Any, context: int) -> Any:
    """A tokenizer as transformers knows it, with our special tokens."""
    from transformers import PreTrainedTokenizerFast

    pad, bos, eos = SPECIALS
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
