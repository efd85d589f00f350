"""The model families: all that is said of one stands in its entry.

An entry names parts of transformers' modules as `adapters.py` and `skipping.py` ask for them.
What it leaves out is as in Llama: rotary positions, `model.layers`, `model.norm`. Entries load no
torch, so that listing them stays instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ppdbench.errors import UnsupportedModel
from ppdbench.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """Names of the parts of a decoder layer.

    The norms are those that matter to one block only: nobody reads them before a skipped
    block, and zeros stay zeros behind one.
    """

    attention: str = "self_attn"
    mlp: tuple[str, ...] = ("mlp",)
    attention_norms: tuple[str, ...] = ("input_layernorm",)
    mlp_norms: tuple[str, ...] = ("post_attention_layernorm",)

    @property
    def apart(self) -> bool:
        """True where nothing is left of a layer without its blocks.

        That is not so where the residual stream itself is normed.
        """
        return bool(self.attention_norms or self.mlp_norms)


NORMS_AROUND = BlockNames(
    attention_norms=("input_layernorm", "post_attention_layernorm"),
    mlp_norms=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of models: what it is called, what its parts are called, what it can do."""

    name: str
    """Its `model_type` in transformers."""
    members: str
    """The models that people know it by."""
    compiled: bool = True
    """Layers can be compiled ahead of time for passes of few rows."""
    body: str = "model"
    """Path to what holds embedding, layers and final norm."""
    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    cache_argument: str = "past_key_values"
    """The name by which a layer takes its cache."""
    positions: Callable[[Any, Tensor], Tensor] | None = None
    """Gives what the body adds to words for their positions; without it these are rotary."""
    rotary_by_type: bool = False
    """Layers of different types turn at different speeds."""
    project_in: str | None = None
    """Name of what follows the embedding in the body, in models that have it."""
    project_out: str | None = None
    """Name of what stands before the head in the body, in models that have it."""
    head_width: str = "hidden_size"
    """The setting that says how wide the head's inputs are."""
    blocks: BlockNames = BlockNames()
    normed_stream: Callable[[Any], bool] = lambda config: False
    """The norms stand in the residual stream itself, so that none serves one block alone."""
    refusal: Callable[[Any], str | None] = lambda config: None
    """Says why a configuration of this family cannot be decoded, if so."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Settings beyond the usual ones that say how large a model is, and of what."""

    def blocks_of(self, config: Any) -> BlockNames:
        """The parts of layers in a model of this configuration."""
        if not self.normed_stream(config):
            return self.blocks
        own = self.blocks
        return BlockNames(attention=own.attention, mlp=own.mlp, attention_norms=(), mlp_norms=())


FAMILIES: Registry[Family] = Registry("model family")

# Settings that say how large a model is, in every family.
SIZES = {
    "num_hidden_layers": "layers",
    "num_layers": "layers",
    "hidden_size": "hidden",
    "intermediate_size": "ffn",
    "num_attention_heads": "heads",
    "num_key_value_heads": "heads",
    "vocab_size": "vocab",
    "max_position_embeddings": "context",
}


def _gpt2_positions(body: Any, positions: Tensor) -> Tensor:
    places: Tensor = body.wpe(positions)
    return places


def _opt_positions(body: Any, positions: Tensor) -> Tensor:
    places: Tensor = body.embed_positions(None, position_ids=positions)
    return places


def _both_ways(config: Any) -> str | None:
    if getattr(config, "use_bidirectional_attention", False):
        return "bidirectional Gemma 3 models do not decode left to right"
    return None


for _family in (
    Family(name="llama", members="Llama 1/2/3, Vicuna, TinyLlama, MobileLLaMA, CodeLlama, SmolLM"),
    Family(name="mistral", members="Mistral"),
    Family(name="qwen2", members="Qwen 2 and 2.5"),
    Family(name="qwen3", members="Qwen 3"),
    Family(name="phi3", members="Phi-3"),
    Family(
        name="olmo2",
        members="OLMo 2",
        blocks=BlockNames(
            attention_norms=("post_attention_layernorm",),
            mlp_norms=("post_feedforward_layernorm",),
        ),
    ),
    Family(name="gemma2", members="Gemma 2", blocks=NORMS_AROUND),
    Family(
        name="gemma3_text",
        members="Gemma 3 text",
        blocks=NORMS_AROUND,
        rotary_by_type=True,
        refusal=_both_ways,
    ),
    Family(
        name="gpt_neox",
        members="GPT-NeoX, Pythia",
        body="gpt_neox",
        embedding="embed_in",
        norm="final_layer_norm",
        cache_argument="layer_past",
        blocks=BlockNames(attention="attention"),
    ),
    Family(
        name="gpt2",
        members="GPT-2",
        compiled=False,
        body="transformer",
        embedding="wte",
        layers="h",
        norm="ln_f",
        positions=_gpt2_positions,
        blocks=BlockNames(attention="attn", attention_norms=("ln_1",), mlp_norms=("ln_2",)),
        sizes={
            "n_layer": "layers",
            "n_embd": "hidden",
            "n_inner": "ffn",
            "n_head": "heads",
            "n_positions": "context",
            "n_ctx": "context",
        },
    ),
    Family(
        name="opt",
        members="OPT",
        compiled=False,
        body="model.decoder",
        norm="final_layer_norm",
        positions=_opt_positions,
        project_in="project_in",
        project_out="project_out",
        head_width="word_embed_proj_dim",
        blocks=BlockNames(
            mlp=("fc1", "fc2"),
            attention_norms=("self_attn_layer_norm",),
            mlp_norms=("final_layer_norm",),
        ),
        normed_stream=lambda config: not config.do_layer_norm_before,
        sizes={"word_embed_proj_dim": "hidden", "ffn_dim": "ffn"},
    ),
):
    FAMILIES.add(_family.name, _family)


def family(model_type: str) -> Family:
    """The entry of a family, or an error that names those there are."""
    if model_type not in FAMILIES:
        raise UnsupportedModel(
            f"model family {model_type[:60]!r} has no adapter; "
            f"supported: {', '.join(FAMILIES.names())}"
        )
    return FAMILIES.get(model_type)


def compiled_families() -> list[str]:
    """The families whose layers can be compiled."""
    return [name for name in FAMILIES if FAMILIES.get(name).compiled]


def sizes() -> dict[str, str]:
    """Every setting that says how large a model is, and of what, whichever family calls it so."""
    found = dict(SIZES)
    for name in FAMILIES:
        found |= FAMILIES.get(name).sizes
    return found


def transposed(module: nn.Module) -> bool:
    """Tell if a product holds its weights the other way round, as those of GPT-2 do."""
    from transformers.pytorch_utils import Conv1D

    return type(module) is Conv1D
