"""The model families: all that is said of one stands in its entry.

An entry names parts of transformers' modules as `adapters.py` and `skipping.py` ask for them.
What it leaves out is as in Llama: rotary positions, `model.layers`, `model.norm`. Entries load no
torch, so that listing them stays instant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from ppdbench.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ppdbench.engine.carried import Carried
    from ppdbench.engine.masks import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """Paths of the parts of a decoder layer.

    The norms are those that matter to one block only: nobody reads them before a skipped
    block, and zeros stay zeros behind one.
    """

    attention: str = "self_attn"
    mixers: tuple[str, ...] = ()
    """The parts in the place of attention, or beside it, in layers with a memory."""
    mlp: tuple[str, ...] = ("mlp",)
    beside: tuple[str, ...] = ()
    """The parts that feed forward beside the MLP, and are added to what it gives."""
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


class Told(Protocol):
    """Tells layers of a pass beyond states, mask, tables and cache."""

    @property
    def slopes(self) -> Slopes | None:
        """Slopes of scores, if it tells of those."""
        ...

    def __contains__(self, name: object) -> bool:
        """True if it tells them `name`."""
        ...

    def __call__(self, step: Step, dtype: torch.dtype) -> dict[str, Any]:
        """The arguments by name, for layers of a type."""
        ...


@dataclass(frozen=True, slots=True)
class Slopes:
    """ALiBi: scores of a head grow by its slope for each position that a key lies further on.

    Slopes of a narrow type round what they are multiplied by to it.
    """

    of_heads: Tensor  # [head]
    scaled: bool = False
    """True if what they add is scaled as scores are."""


@dataclass(frozen=True, slots=True)
class LogitScale:
    """A factor as a model applies it: two operations, of which one mostly does nothing."""

    times: float = 1.0
    per: float = 1.0

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits, scaled."""
        if self.times != 1.0:
            logits = logits * self.times
        return logits if self.per == 1.0 else logits / self.per


@dataclass(frozen=True, slots=True)
class RowShape:
    """Sizes of what a layer keeps of a token: `heads` keys and values, and how wide each is."""

    heads: int
    key: int
    value: int
    latent: bool = False
    """It is what keys and values of every head are made of, anew for each pass."""


def _usual_logit_scale(config: Any) -> LogitScale:
    times, per = getattr(config, "logit_scale", None), getattr(config, "logits_scaling", None)
    return LogitScale(1.0 if times is None else times, 1.0 if per is None else per)


def _usual_rows(config: Any, layer: int) -> RowShape:
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:  # nothing in it attends
        return RowShape(1, 1, 1)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    own = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None)
    if getattr(config, "kv_lora_rank", None):  # latent attention keeps what keys are made of
        return RowShape(1, config.kv_lora_rank, config.qk_rope_head_dim, latent=True)
    return RowShape(own or heads, width, getattr(config, "v_head_dim", None) or width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of models: what it is called, and how it differs from what its modules say.

    Parts that an entry leaves out (None) are read from the loaded model.
    """

    name: str
    """Its `model_type` in transformers."""
    members: str = ""
    """The models that people know it by."""
    body: str | None = None
    """Path to what holds embedding, layers and final norm."""
    embedding: str | None = None
    """Path in the body."""
    layers: str | None = None
    norm: str | None = None
    embedding_norm: str | None = None
    """Path in the body of the norm that embedded words pass, in models that have it."""
    cache_argument: str | None = None
    """The name by which a layer takes its cache."""
    positions: Callable[[Any, Tensor], Tensor] | None = None
    """Gives what the body adds to words for their positions; without it layers place them."""
    rotary: str | None = None
    """Name of what makes rotary tables in the body, in models that have it."""
    rotary_kinds: Callable[[Any], Sequence[str]] | None = None
    """Gives the kind of each layer's rotary tables, where layers turn at different speeds."""
    rotary_of: Callable[[Any, str], Callable[[Tensor, Tensor], Any]] | None = None
    """Gives, of the body, the maker of a kind's tables, where no one part is told the kind."""
    turns: Callable[[Any], tuple[Tensor, Tensor]] | None = None
    """Gives, of the body, cosines and sines by positions, where attention keeps them itself."""
    fused: Callable[[int], Sequence[int]] | None = None
    """Gives, of the number of heads, where in one product their queries, keys and values stand."""
    scaling: float | None = None
    """The factor of scores, where attention does not say it."""
    told: Callable[[Any, Any], Told] | None = None
    """Makes, of body and configuration, what layers are told of a pass beyond the usual."""
    carried: Callable[[Any, Any], Carried | None] = lambda body, config: None
    """Makes, of body and configuration, what tokens carry through layers beside one state."""
    windows: Callable[[Any], Sequence[int | None]] | None = None
    """Gives each layer's window, where the usual settings do not say it."""
    unturned: Callable[[Any], Iterable[int]] = lambda config: ()
    """Gives the layers that turn no heads, where others do."""
    taken: Callable[[Any], None] | None = None
    """Changes layers of a body that would mask rows in ways of their own, once it is ours."""
    mask_argument: str = "attention_mask"
    """The name by which a layer takes the mask of its attention."""
    mask: Callable[[Tensor | None], Any] = lambda mask: mask
    """Turns the numbers that are added to scores into the mask that layers take."""
    project_in: str | None = None
    """Name of what follows the embedding in the body, in models that have it."""
    project_out: str | None = None
    """Name of what stands before the head in the body, in models that have it."""
    transform: str | None = None
    """Path in the model of what normed states pass before the head, in models that have it."""
    head_width: str = "hidden_size"
    """The setting that says how wide the head's inputs are."""
    word_scale: Callable[[Any], float] = lambda config: getattr(config, "embedding_multiplier", 1.0)
    """Gives the factor of embedded words that is not in the embedding itself."""
    before_head: Callable[[Any], float] = lambda config: 1.0
    """Gives the divisor of normed states before the head."""
    logit_scale: Callable[[Any], LogitScale] = _usual_logit_scale
    """Gives the scale of logits."""
    rows: Callable[[Any, int], RowShape] = _usual_rows
    """Gives, of a layer's settings and its number, the sizes of what it keeps of a token."""
    blocks: BlockNames | None = None
    normed_stream: Callable[[Any], bool] = lambda config: False
    """The norms stand in the residual stream itself, so that none serves one block alone."""
    refusal: Callable[[Any], str | None] = lambda config: None
    """Says why a configuration of this family cannot be decoded, if so."""
    longest: Callable[[Any], int | None] = lambda config: None
    """The longest sequence, where the usual settings do not say it."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Settings beyond the usual ones that say how large a model is, and of what."""

    def blocks_of(self, config: Any) -> BlockNames:
        """The parts of layers in a model of this configuration."""
        assert self.blocks is not None, "not read from a model yet"
        if not self.normed_stream(config):
            return self.blocks
        return replace(self.blocks, attention_norms=(), mlp_norms=())


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


def _wpe_positions(body: Any, positions: Tensor) -> Tensor:
    places: Tensor = body.wpe(positions)
    return places


def _opt_positions(body: Any, positions: Tensor) -> Tensor:
    places: Tensor = body.embed_positions(None, position_ids=positions)
    return places


def _xglm_positions(body: Any, positions: Tensor) -> Tensor:
    places: Tensor = body.embed_positions(positions, 0)
    return places


def _both_ways(config: Any) -> str | None:
    if getattr(config, "use_bidirectional_attention", False):
        return "bidirectional Gemma 3 models do not decode left to right"
    return None


def _in_all_directions(config: Any) -> str | None:
    if getattr(config, "use_bidirectional_attention", None) == "all":
        return "bidirectional Gemma 4 models do not decode left to right"
    return None


def _words_again(body: Any, config: Any) -> Carried:
    from ppdbench.engine.carried import WordsAgain

    return WordsAgain(body, config)


def _layer_inputs(body: Any, config: Any) -> Carried | None:
    from ppdbench.engine.carried import LayerInputs

    return LayerInputs(body, config) if config.hidden_size_per_layer_input else None


def _streams(body: Any, config: Any) -> Carried:
    from ppdbench.engine.carried import StreamsAndInputs

    return StreamsAndInputs(body, config)


def _gptj_turns(body: Any) -> tuple[Tensor, Tensor]:
    sines, cosines = body.h[0].attn.embed_positions.chunk(2, dim=-1)
    return cosines.repeat(1, 2), sines.repeat(1, 2)


def _in_four_parts(heads: int) -> list[int]:
    """Each part holds queries, values and keys of a quarter of the heads."""
    quarter = heads // 4
    first = [3 * quarter * part + head for part in range(4) for head in range(quarter)]
    return [place + kind * quarter for kind in (0, 2, 1) for place in first]


def _router_states(body: Any, config: Any) -> Carried:
    from ppdbench.engine.carried import RouterStates

    return RouterStates(body, config)


def _falcon_rows(config: Any, layer: int) -> RowShape:
    own = _usual_rows(config, layer)
    several = config.new_decoder_architecture or not config.multi_query
    return RowShape(config.num_attention_heads if several else 1, own.key, own.value)


def _one_head(config: Any, layer: int) -> RowShape:
    own = _usual_rows(config, layer)
    return RowShape(1 if config.multi_query else own.heads, own.key, own.value)


def _more_in_windows(config: Any, layer: int) -> RowShape:
    own = _usual_rows(config, layer)
    return replace(own, heads=own.heads * (1 + (config.layer_types[layer] == "sliding_attention")))


def _doubled_width(config: Any, layer: int) -> RowShape:
    width = config.attention_head_dim
    return RowShape(config.num_key_value_heads, width, width)


def _repeated_heads(config: Any, layer: int) -> RowShape:
    return replace(_usual_rows(config, layer), latent=True)


def _every_head(config: Any, layer: int) -> RowShape:
    width = config.hidden_size // config.num_attention_heads
    return RowShape(config.num_attention_heads, width, width)


class _Distances:
    """ALiBi: keys count for less the further back they lie, at a slope of each head's own."""

    def __init__(
        self, name: str, slopes: Slopes, *, from_the_end: bool = False, typed: bool = False
    ) -> None:
        self.name, self.slopes = name, slopes
        self.from_the_end, self.typed = from_the_end, typed

    def __contains__(self, name: object) -> bool:
        return name == self.name

    def __call__(self, step: Step, dtype: torch.dtype) -> dict[str, Any]:
        keys = step.key_places()  # [batch or 1, key]
        if self.from_the_end:
            keys = keys - (step.key_length - 1)
        slopes = self.slopes.of_heads.to(keys.device)
        bias = (slopes[None, :, None] * keys[:, None]).flatten(0, 1)[:, None]
        return {self.name: bias.to(dtype) if self.typed else bias}  # [batch * head, 1, key]


def _bloom_distances(body: Any, config: Any) -> Told:
    import torch

    two = torch.ones(1, 2, device=body.word_embeddings.weight.device)
    slopes = body.build_alibi_tensor(two, config.num_attention_heads, torch.float32)
    return _Distances("alibi", Slopes(slopes[:, 0, 1]), typed=True)


def _mpt_distances(body: Any, config: Any) -> Told:
    heads = config.num_attention_heads
    bias = body.build_mpt_alibi_tensor(heads, 2, device=body.wte.weight.device)
    slopes = (bias[:, 0, 1] - bias[:, 0, 0]).float()
    return _Distances("position_bias", Slopes(slopes), from_the_end=True)


class _Nothing:
    """An argument that layers insist on and this configuration has no use for."""

    slopes = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __contains__(self, name: object) -> bool:
        return name == self.name

    def __call__(self, step: Step, dtype: torch.dtype) -> dict[str, Any]:
        return {self.name: None}


def _falcon_distances(body: Any, config: Any) -> Told:
    if not config.alibi:
        return _Nothing("alibi")
    import torch
    from transformers.models.falcon.modeling_falcon import build_alibi_tensor

    two = torch.ones(1, 2, dtype=torch.long, device=body.word_embeddings.weight.device)
    slopes = build_alibi_tensor(two, config.num_attention_heads, torch.bfloat16)
    return _Distances("alibi", Slopes(slopes[:, 0, 1], scaled=True))


def _local_windows(config: Any) -> list[int | None]:
    return [config.window_size if kind == "local" else None for kind in config.attention_layers]


def _looking_at_all(config: Any) -> list[int]:
    """The layers without a window, in models where others have one."""
    kinds = config.layer_types if config.sliding_window else []
    return [i for i, kind in enumerate(kinds) if kind != "sliding_attention"]


def _looking_at_all_behind_dense(config: Any) -> list[int]:
    """The same, but for first layers without experts that turn whatever they look at."""
    turned = config.prefix_dense_sliding_window_pattern == 1
    dense = [turned and kind == "dense" for kind in config.mlp_layer_types]
    return [i for i in _looking_at_all(config) if not dense[i]]


def _without_turns(config: Any) -> list[int]:
    return [i for i, turned in enumerate(config.no_rope_layers) if not turned]


def _own_bases(config: Any) -> list[str]:
    """The base of each layer's angles as the kind of its tables."""
    return [str(float(base)) for base in config.layer_rope_theta]


def _without_base(config: Any) -> list[int]:
    return [i for i, base in enumerate(config.layer_rope_theta) if not base]


def _of_base(body: Any, kind: str) -> Callable[[Tensor, Tensor], Any]:
    """The maker of tables of one base; without a base all angles are nought."""
    base = float(kind)
    if not base:
        return partial(_by_no_angle, body)
    made: dict[float, Any] = {p.config.rope_parameters["rope_theta"]: p for p in body.rotary_embs}
    found: Callable[[Tensor, Tensor], Any] = made[base]
    return found


def _by_no_angle(body: Any, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    import torch

    cos, sin = body.rotary_emb(like, positions)
    return torch.ones_like(cos), torch.zeros_like(sin)


def _see_all(body: Any) -> None:
    """Let layers see all rows that their mask shows; they count rows, which branches share."""
    import torch

    for layer in body.h:
        attention = layer.attn.attention
        shown = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=attention.bias.device)
        attention.bias = shown.expand(1, 1, _without_end(), _without_end())


def _without_end(_: Any = None) -> int:
    """A length that no text reaches: nothing limits it but memory."""
    return 1 << 20


def _hidden(mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask < 0


SANDWICHED = BlockNames(
    attention_norms=("input_layernorm", "post_self_attn_layernorm"),
    mlp_norms=("post_attention_layernorm", "post_mlp_layernorm"),
)
NORMS_AFTER = BlockNames(
    attention_norms=("post_attention_layernorm",), mlp_norms=("post_feedforward_layernorm",)
)
FC = BlockNames(
    mlp=("fc1", "fc2"),
    attention_norms=("self_attn_layer_norm",),
    mlp_norms=("final_layer_norm",),
)

for _family in (
    Family(name="olmo2", members="OLMo 2", blocks=NORMS_AFTER),
    Family(name="gemma2", members="Gemma 2", blocks=NORMS_AROUND),
    Family(name="gemma3_text", members="Gemma 3 text", blocks=NORMS_AROUND, refusal=_both_ways),
    Family(name="gemma3n_text", members="Gemma 3n text", norm="norm", carried=_streams),
    Family(
        name="gemma4_text",
        members="Gemma 4 text",
        norm="norm",
        carried=_layer_inputs,
        refusal=_in_all_directions,
    ),
    Family(name="gemma4_unified_text", members="Gemma 4 unified, text", refusal=_in_all_directions),
    Family(
        name="gpt2",
        members="GPT-2",
        positions=_wpe_positions,
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
        norm="final_layer_norm",
        positions=_opt_positions,
        project_in="project_in",
        project_out="project_out",
        head_width="word_embed_proj_dim",
        blocks=FC,
        normed_stream=lambda config: not config.do_layer_norm_before,
        sizes={"word_embed_proj_dim": "hidden", "ffn_dim": "ffn"},
    ),
    Family(name="gpt_bigcode", members="StarCoder", positions=_wpe_positions, rows=_one_head),
    Family(name="biogpt", members="BioGPT", positions=_opt_positions, blocks=FC, rows=_every_head),
    Family(name="xglm", members="XGLM", positions=_xglm_positions, blocks=FC, rows=_every_head),
    Family(
        name="bloom",
        members="BLOOM",
        told=_bloom_distances,
        # Distances fade without an end; it was trained on so many tokens.
        longest=lambda config: getattr(config, "seq_length", 2048),
    ),
    Family(name="mpt", members="MPT", told=_mpt_distances, mask=_hidden),
    Family(
        name="falcon",
        members="Falcon",
        rows=_falcon_rows,
        told=_falcon_distances,
        mask=lambda mask: 0.0 if mask is None else mask,  # it adds whatever it is given
    ),
    Family(
        name="dbrx",
        members="DBRX",
        # Attention stands in a part with both norms.
        blocks=BlockNames(
            attention="norm_attn_norm.attn", mlp=("ffn",), attention_norms=(), mlp_norms=()
        ),
    ),
    Family(name="jetmoe", members="JetMoE", rows=_repeated_heads),
    Family(name="mimo_v2_flash", members="MiMo V2 Flash", rows=_more_in_windows),
    Family(name="gptj", members="GPT-J", rows=_every_head, turns=_gptj_turns),
    Family(
        name="codegen",
        members="CodeGen",
        rows=_every_head,
        turns=_gptj_turns,
        fused=_in_four_parts,
    ),
    Family(
        name="gpt_neo",
        members="GPT-Neo",
        positions=_wpe_positions,
        windows=_local_windows,
        taken=_see_all,
        scaling=1.0,
        sizes={"num_heads": "heads"},
    ),
    Family(
        name="doge",
        members="Doge",
        refusal=lambda config: "Doge makes a mask of its own for every head out of the values",
    ),
    Family(
        name="moshi",
        members="Moshi",
        refusal=lambda config: "Moshi speaks: its layers place audio frames, not words of a text",
    ),
    Family(
        name="ctrl",
        members="CTRL",
        refusal=lambda config: (
            "CTRL masks by counting rows from the beginning of a pass, not of a text"
        ),
    ),
    Family(
        name="minimax_m3_vl_text",
        members="MiniMax M3",
        refusal=lambda config: "MiniMax M3 looks at chosen blocks of rows, and chooses by a pass",
    ),
    *(
        Family(
            name=name,
            members=called,
            carried=_words_again,
            mask_argument="causal_mask",
            rows=_doubled_width,
            blocks=BlockNames(attention=f"{shared}.self_attn", attention_norms=(), mlp_norms=()),
        )
        for name, called, shared in (
            ("zamba", "Zamba", "shared_transf"),
            ("zamba2", "Zamba 2", "shared_transformer"),
        )
    ),
    Family(
        name="zaya",
        members="ZAYA",
        carried=_router_states,
        mask=lambda mask: {"causal": mask, "conv": None},
        # Both norms are asked for their type, whatever stands behind them.
        blocks=BlockNames(attention_norms=(), mlp_norms=()),
    ),
    Family(
        name="minimax",
        members="MiniMax 01",
        refusal=lambda config: "its linear layers remember in a cache of a kind of their own",
    ),
    *(
        Family(
            name=name,
            rotary_kinds=_own_bases,
            rotary_of=_of_base,
            unturned=_without_base,
        )
        for name in ("granite_swa", "granitemoe_swa")
    ),
    Family(
        name="nemotron_h",
        members="Nemotron-H, Nemotron 3 Nano",
        blocks=BlockNames(attention="mixer", attention_norms=(), mlp_norms=()),
    ),
    Family(name="nanochat", members="nanochat", embedding_norm="norm"),
    Family(
        name="modernbert-decoder",
        members="Ettin",
        body="model",
        layers="layers",
        embedding="embeddings.tok_embeddings",
        embedding_norm="embeddings.norm",
        transform="lm_head",
    ),
    Family(name="olmo3", members="OLMo 3", blocks=NORMS_AFTER),
    Family(
        name="exaone4",
        members="EXAONE 4",
        blocks=NORMS_AFTER,
        unturned=_looking_at_all,
    ),
    Family(name="exaone_moe", members="EXAONE with experts", unturned=_looking_at_all),
    Family(name="flint", unturned=_looking_at_all),
    Family(name="cohere2", members="Command R7B, Aya", unturned=_looking_at_all),
    Family(name="cohere2_moe", unturned=_looking_at_all_behind_dense),
    Family(name="smollm3", members="SmolLM 3", unturned=_without_turns),
    Family(name="llama4_text", members="Llama 4 text", unturned=_without_turns),
    Family(name="glm4", members="GLM-4 0414", blocks=SANDWICHED),
    Family(
        name="afmoe",
        members="Arcee Trinity",
        word_scale=lambda config: config.hidden_size**0.5 if config.mup_enabled else 1.0,
        unturned=_looking_at_all,
    ),
    Family(
        name="minicpm3",
        members="MiniCPM 3",
        before_head=lambda config: config.logits_scaling,
        logit_scale=lambda config: LogitScale(),
    ),
    Family(
        name="falcon_h1",
        members="Falcon-H1",
        logit_scale=lambda config: LogitScale(times=config.lm_head_multiplier),
    ),
    Family(name="mamba", members="Mamba", longest=_without_end),
    Family(name="mamba2", members="Mamba 2, Codestral Mamba", longest=_without_end),
    Family(name="falcon_mamba", members="Falcon Mamba", longest=_without_end),
    Family(
        name="hyperclovax",
        members="HyperCLOVA X",
        logit_scale=lambda config: LogitScale(times=config.logits_scaling),
    ),
):
    FAMILIES.add(_family.name, _family)

# Others that people know by another name than `model_type`. Nothing else need be said of them.
MEMBERS = {
    "apertus": "Apertus",
    "arcee": "Arcee AFM",
    "bamba": "Bamba",
    "bitnet": "BitNet",
    "cohere": "Command R",
    "deepseek_v2": "DeepSeek V2",
    "deepseek_v3": "DeepSeek V3 and R1",
    "dots1": "dots.llm1",
    "ernie4_5": "ERNIE 4.5",
    "ernie4_5_moe": "ERNIE 4.5 with experts",
    "gemma": "Gemma 1",
    "glm": "GLM-4",
    "glm4_moe": "GLM-4.5 and 4.6",
    "gpt_neox": "GPT-NeoX, Pythia",
    "gpt_oss": "gpt-oss",
    "granite": "Granite 3",
    "granitemoe": "Granite 3 with experts",
    "granitemoehybrid": "Granite 4",
    "helium": "Helium",
    "hunyuan_v1_dense": "HunYuan",
    "hunyuan_v1_moe": "HunYuan with experts",
    "idefics3": "Idefics 3, SmolVLM",
    "jamba": "Jamba",
    "kimi_linear": "Kimi Linear",
    "lfm2": "LFM2",
    "lfm2_moe": "LFM2 with experts",
    "llama": "Llama 1/2/3, Vicuna, TinyLlama, MobileLLaMA, CodeLlama, SmolLM",
    "minimax_m2": "MiniMax M2",
    "ministral": "Ministral",
    "ministral3": "Ministral 3",
    "mistral": "Mistral",
    "mixtral": "Mixtral",
    "mllama": "Llama 3.2 Vision",
    "nemotron": "Nemotron 3 and 4, Minitron",
    "olmo": "OLMo 1",
    "olmo_hybrid": "OLMo Hybrid",
    "olmoe": "OLMoE",
    "persimmon": "Persimmon",
    "phi": "Phi-1 and Phi-2",
    "phi3": "Phi-3",
    "phimoe": "Phi-3.5 MoE",
    "qwen2": "Qwen 2 and 2.5",
    "qwen2_moe": "Qwen 1.5 and 2 with experts",
    "qwen3": "Qwen 3",
    "qwen3_5_moe_text": "Qwen 3.5 with experts, text",
    "qwen3_5_text": "Qwen 3.5 text",
    "qwen3_moe": "Qwen 3 with experts",
    "qwen3_next": "Qwen3-Next",
    "seed_oss": "Seed-OSS",
    "stablelm": "StableLM",
    "starcoder2": "StarCoder 2",
}


def members(name: str) -> str:
    """The models that people know a family by; empty if `model_type` says it."""
    return FAMILIES.get(name).members if name in FAMILIES else MEMBERS.get(name, "")


def entry(model_type: str) -> Family:
    """The entry of a family; of most it says nothing."""
    return FAMILIES.get(model_type) if model_type in FAMILIES else Family(name=model_type)


def sizes() -> dict[str, str]:
    """Every setting that says how large a model is, and of what, whichever family calls it so."""
    found = dict(SIZES)
    for name in FAMILIES:
        found |= FAMILIES.get(name).sizes
    return found


def is_linear(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Tell if a module is a linear product; Falcon calls its own by another name."""
    from torch import nn

    if type(module) is nn.Linear:
        return True
    return isinstance(module, nn.Linear) and type(module).__name__ == "FalconLinear"


def transposed(module: nn.Module) -> bool:
    """Tell if a product holds its weights the other way round, as those of GPT-2 do."""
    from transformers.pytorch_utils import Conv1D

    return type(module) is Conv1D
