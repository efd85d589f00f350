"""The part of a checkpoint for pictures or sounds that writes text, as a model of its own.

transformers loads such a checkpoint whole, by its own names; the weights of the part that writes
then go into the text family's own class, and the rest is dropped. Both run over a few tokens of
text once, so that a part that is more than its class says is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.known import of_text_and_more
from ppdbench.engine.nearness import gap
from ppdbench.errors import UnsupportedModel

# Text parts without a class of their own, and the family that computes the same where there is
# nothing but text: all three coordinates of a place are then its number.
TWINS = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "mllama_text_model": "llama",
}
# What twins have a setting for and the text parts do without asking.
ALWAYS = {"qwen3_moe": {"norm_topk_prob": True}}
# What some whole models leave out that the text part by itself would apply.
LEFT_OUT = {name: {"logit_scale": 1.0} for name in ("aya_vision", "cohere2_vision")}
# Those whose text part transformers loads alone; the whole needs another library for its pictures.
ALONE = frozenset({"gemma3n"})
# The other parts of those.
BESIDE = ("vision_tower", "audio_tower", "embed_vision", "embed_audio")
# The setting that lists layers which look at nothing but pictures: a text passes them by.
PASSED_BY = "cross_attention_layers"
OF_PLACES = ("mrope_section", "mrope_interleaved")
TOKENS = 6
# Of the length of logits, in each type of numbers.
CLOSE = {torch.float32: 1e-4, torch.float16: 2**-5, torch.bfloat16: 2**-4}


# Where a text part keeps what its modules were called in the whole.
PLACE = "_in_whole"
# What the text part and its head were called in wholes of transformers before 4.52.
EARLIER = ("language_model.model", "language_model.lm_head")


@dataclass(frozen=True, slots=True)
class PlaceInWhole:
    """Names of modules in the model for text and more that a text part is of."""

    decoder: str
    head: str
    others: tuple[str, ...]
    """The parts that are neither."""
    layers: Mapping[str, str] | None = None
    """The numbers of layers there and here, where they differ."""

    def within(self, module: str) -> str | None:
        """The text part's own name of a module; None of one that a text passes by.

        A KeyError says that there is no such part.
        """
        for was, now in zip(EARLIER, (self.decoder, self.head), strict=True):
            if _is_within(module, was):
                module = now + module.removeprefix(was)
        for named in (module, f"model.{module}"):
            if _is_within(named, self.head):
                return f"lm_head{named.removeprefix(self.head)}"
            if _is_within(named, self.decoder):
                return self._renumbered(named.removeprefix(self.decoder))
            if any(_is_within(named, other) for other in self.others):
                return None
        raise KeyError(module)

    def _renumbered(self, rest: str) -> str | None:
        """The text part's name of a module by what follows the decoder's."""
        _, kind, *numbered = [*rest.split("."), ""]
        if self.layers is not None and kind == "layers":
            if numbered[0] not in self.layers:
                return None
            rest = ".".join(["", kind, self.layers[numbered[0]], *numbered[1:-1]])
        return f"model{rest}"


def _is_within(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def place_of(part: Any) -> PlaceInWhole | None:
    """The names that modules of a text part had in the whole; None of a model that was none."""
    found: PlaceInWhole | None = getattr(part, PLACE, None)
    return found


def _place_in(whole: Any) -> PlaceInWhole:
    """Read the names of a loaded whole."""
    names = {id(module): name for name, module in whole.named_modules()}
    decoder = names[id(whole.get_decoder())]
    head = names[id(whole.get_output_embeddings())]
    around = decoder.rpartition(".")[0]
    beside = [f"{around}.{name}" for name, _ in whole.get_submodule(around).named_children()]
    tops = [name for name, _ in whole.named_children() if name != around]
    others = tuple(name for name in (*beside, *tops) if name not in (decoder, head))
    return PlaceInWhole(decoder, head, others, _numbers(whole.get_decoder().config))


def is_mixed(config: Any) -> bool:
    """True if a configuration is of text and more."""
    own = config.get_text_config(decoder=True)
    return own is not config and config.model_type in of_text_and_more()


def configuration(config: Any) -> Any:
    """The settings of the model that runs: of a part of it where there is more than text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if not is_mixed(config):
        return config
    text = config.get_text_config(decoder=True)
    made = _as_twin(text) if text.model_type in TWINS else text
    if made.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _unlike(config, "transformers has no model of that part alone")
    for name in ("eos_token_id", "bos_token_id", "pad_token_id"):
        if getattr(made, name, None) is None:
            setattr(made, name, getattr(config, name, None))
    if getattr(config, "tie_word_embeddings", False):
        made.tie_word_embeddings = True
    if made.dtype is None:
        made.dtype = config.dtype
    for name, value in LEFT_OUT.get(config.model_type, {}).items():
        setattr(made, name, value)
    stored = getattr(config, "quantization_config", None)
    if stored is not None:
        made.quantization_config = stored
    return made


def _as_twin(text: Any) -> Any:
    from transformers import CONFIG_MAPPING

    settings = text.to_dict()
    turned = {k: v for k, v in settings.pop("rope_parameters", {}).items() if k not in OF_PLACES}
    if turned.get("rope_type") == "mrope":
        turned["rope_type"] = "default"
    for name in ("model_type", "architectures", "transformers_version"):
        settings.pop(name, None)
    settings["num_hidden_layers"] -= len(settings.pop(PASSED_BY, ()))
    twin = TWINS[text.model_type]
    return CONFIG_MAPPING[twin](**settings, rope_parameters=turned, **ALWAYS.get(twin, {}))


def load(
    path: str, config: Any, dtype: torch.dtype, *, check: bool, **how: Any
) -> tuple[Any, dict[str, Any]]:
    """The text part of a checkpoint, and what transformers said of loading the whole."""
    import transformers

    if config.model_type in ALONE:
        how |= {"config": configuration(config), "dtype": dtype, "output_loading_info": True}
        alone: tuple[Any, dict[str, Any]]
        alone = transformers.AutoModelForCausalLM.from_pretrained(path, **how)
        others = tuple(f"model.{name}" for name in BESIDE)
        setattr(alone[0], PLACE, PlaceInWhole("model.language_model", "lm_head", others))
        return alone
    whole_class = getattr(transformers, of_text_and_more()[config.model_type])
    whole, report = whole_class.from_pretrained(path, dtype=dtype, output_loading_info=True, **how)
    part = part_of(whole.eval())
    if check:
        hold(whole, part)
    return part, report


def part_of(whole: Any) -> Any:
    """The text part of a loaded model for text and more, which must compute what the whole does."""
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM

    config = configuration(whole.config)
    decoder, head = whole.get_decoder(), whole.get_output_embeddings()
    with init_empty_weights():  # what is computed, not stored, gets its values all the same
        part = AutoModelForCausalLM.from_config(config, dtype=whole.dtype)
    owner = part.get_output_embeddings()
    if head is None or decoder is None:
        raise _unlike(whole.config, "its text part has no head of its own")
    try:
        part.base_model.load_state_dict(_weights_for_text(decoder, config), assign=True)
        owner.load_state_dict(head.state_dict(), assign=True)
    except RuntimeError as error:
        raise _unlike(whole.config, "its text part has other weights than its family") from error
    if head.weight is whole.get_input_embeddings().weight:
        owner.weight = part.get_input_embeddings().weight
    part.generation_config = whole.generation_config
    part.config.name_or_path = whole.config.name_or_path
    setattr(part, PLACE, _place_in(whole))
    return part.eval()


def _weights_for_text(decoder: Any, config: Any) -> dict[str, Tensor]:
    """The weights of a decoder that text passes, its layers counted anew.

    Rows for pictures may stand behind those of the words.
    """
    weights: dict[str, Tensor] = decoder.state_dict()
    numbers = _numbers(decoder.config)
    if numbers is None:
        return weights
    found: dict[str, Tensor] = {}
    for name, weight in weights.items():
        kind, _, rest = name.partition(".")
        number, _, within = rest.partition(".")
        if kind != "layers":
            found[name] = weight
        elif number in numbers:
            found[f"layers.{numbers[number]}.{within}"] = weight
    found["embed_tokens.weight"] = found["embed_tokens.weight"][: config.vocab_size]
    return found


def _numbers(config: Any) -> dict[str, str] | None:
    """The numbers of the layers that text passes, before and now; None where none are left out."""
    passed_by = set(getattr(config, PASSED_BY, ()))
    if not passed_by:
        return None
    left = [i for i in range(config.num_hidden_layers) if i not in passed_by]
    return {str(before): str(now) for now, before in enumerate(left)}


@torch.inference_mode()
def hold(whole: Any, part: Any) -> None:
    """Refuse a text part that computes something else over text than the whole model does."""
    ids = torch.arange(1, TOKENS + 1)[None] * 7919 % int(part.config.vocab_size)
    ids = ids.to(part.get_input_embeddings().weight.device)
    mine, true = (model(input_ids=ids, use_cache=False).logits[0] for model in (part, whole))
    off = float(gap(mine.float(), true.float()).median())
    if not off <= CLOSE[part.dtype]:
        said = f"its logits over text lie {off:.2g} of their length from the whole's"
        raise _unlike(whole.config, said)


def _unlike(config: Any, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"the text part of {config.model_type} does not run on its own: {why}; "
        "`ppdbench list models` names families that run"
    )
