"""The draft network of EAGLE: one decoder layer that continues the target's own features.

Li et al. 2024 and 2025. Row i pairs what the target computed at token i, its feature, with the
embedding of token i+1, and gives a guess of the feature at i+1, from which token i+2 is read.
That guess stands in for the feature of the next row where the target has not been yet, so the
network drafts as far as it likes by feeding on its own outputs.

EAGLE-1 (and 2, which differs in its trees alone) reads the target's last hidden state after
the final norm and guesses the same: its layer has no norm at the input, no norm follows it,
and tokens are read through the target's own head. EAGLE-3 reads the outputs of three layers
and need not guess features, only tokens: it has a norm and a head of its own, often over a
part of the vocabulary only.

The layer is the Llama layer of transformers whatever the target is, with rotary positions of
its own, and tensors have the names of the published files.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ppdbench.engine import attention
from ppdbench.engine.adapters import LENGTH_DEPENDENT_ROPE, Adapter
from ppdbench.engine.anatomy import layer_config
from ppdbench.engine.cache import CacheShape, KVCache
from ppdbench.engine.masks import Step, StepMaker
from ppdbench.engine.taps import StateTap, Tap
from ppdbench.errors import ConfigError, UnsupportedModel

# What makes the layer, by the names of transformers' configurations; the first must be said.
NEEDED = ("hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps")
SETTINGS = (
    *NEEDED,
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rope_parameters",
    "max_position_embeddings",  # some rotary positions depend on it
)


def default_settings(target: Adapter) -> dict[str, Any]:
    """A layer of the target's own size, with its rotary positions where these will do."""
    config, hidden = layer_config(target.config, 0), target.hidden_size
    heads = int(getattr(config, "num_attention_heads", None) or 0)
    if not heads:
        raise UnsupportedModel("eagle: this model has no attention heads to make a layer with")
    rope = dict(getattr(config, "rope_parameters", None) or {})
    kind = rope.get("rope_type")
    # Learned positions, several tables, or one that changes with the length: plain ones then.
    if kind is None or kind in LENGTH_DEPENDENT_ROPE:
        rope = {"rope_type": "default", "rope_theta": 10000.0}
    rope.pop("partial_rotary_factor", None)
    return {
        "hidden_size": hidden,
        "intermediate_size": int(getattr(config, "intermediate_size", None) or 4 * hidden),
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(config, "num_key_value_heads", None) or heads),
        "head_dim": hidden // heads,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "max_position_embeddings": int(
            getattr(config, "max_position_embeddings", None) or target.max_positions
        ),
    }


def draft_layer_config(settings: Mapping[str, Any], where: str) -> Any:
    """The configuration of a layer, tried out by building it without weights."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    lacking = [name for name in NEEDED if name not in settings]
    if lacking:
        raise ConfigError(f"{where} does not say {', '.join(lacking)}")
    try:
        config = LlamaConfig(**settings)
        config._attn_implementation = attention.NAME
        with torch.device("meta"):
            LlamaDecoderLayer(config, 0)
            LlamaRotaryEmbedding(config)
    except Exception as error:  # the checks of transformers raise errors of many kinds
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{where} describes no layer that can be built: {told[:200]}") from error
    return config


def feature_layers(n_layers: int) -> tuple[int, ...]:
    """The layers run before EAGLE-3 looks: as published, spread out in a shallow model."""
    if n_layers >= 7:
        return 2, n_layers // 2, n_layers - 3
    return max(1, n_layers // 3), max(1, 2 * n_layers // 3), n_layers


class DraftNetwork(nn.Module):
    """The part that all versions share.

    `reads` names the target's layers, as numbers of layers run, whose outputs make a feature.
    The target's embedding and head are used where they are: they are no part of this module,
    unless the embedding that came with the weights is another.
    """

    version: int
    d2t: Tensor | None  # what to add to an id of the draft vocabulary for the target's

    def __init__(self, target: Adapter, config: Any, reads: tuple[int, ...], entering: int) -> None:
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer

        super().__init__()
        _check_widths(target)
        outside = [n for n in reads if not 1 <= n <= len(target.layers)]
        if outside:
            raise ConfigError(
                f"eagle: features after layer {outside[0]}, but this model has "
                f"{len(target.layers)} layers; use 1..{len(target.layers)}"
            )
        self.target, self.config, self.reads = target, config, reads
        width = config.hidden_size
        self.fc = nn.Linear(entering * width, width, bias=False)
        self.layers = nn.ModuleList([LlamaDecoderLayer(config, 0)])
        self.embed_tokens: nn.Embedding | None = None
        self.register_buffer("d2t", None)
        self._rotary: tuple[Tensor, Tensor] | None = None

    def tap(self, into: dict[int, Tensor]) -> Tap:
        """Return the call for a pass of the target, so that `features` finds what it reads."""
        return StateTap(self.reads, into)

    def features(self, taps: Mapping[int, Tensor]) -> Tensor:
        """Gather the rows' input from the target's outputs by layer: [batch, n, hidden]."""
        raise NotImplementedError

    def forward(
        self, tokens: Tensor, features: Tensor, step: Step, cache: KVCache | None = None
    ) -> Tensor:
        """Rows of tokens [batch, n] and of features one token earlier; states to feed on next."""
        raise NotImplementedError

    def logits(self, states: Tensor) -> Tensor:
        """Return logits for the token after each row's, over the draft vocabulary."""
        raise NotImplementedError

    @property
    def target_vocab(self) -> int:
        """The size of the target's vocabulary."""
        return int(self.target.config.vocab_size)

    @property
    def n_words(self) -> int:
        """The size of the draft vocabulary."""
        return self.target_vocab if self.d2t is None else self.d2t.shape[0]

    def all_words(self) -> Tensor:
        """The target's id of every entry of the draft vocabulary."""
        return self.words(torch.arange(self.n_words, device=self._like.device))

    def words(self, ids: Tensor) -> Tensor:
        """The target's ids for those of the draft vocabulary."""
        return ids if self.d2t is None else ids + self.d2t[ids]

    def spread(self, values: Tensor, elsewhere: float) -> Tensor:
        """Values [..., draft vocabulary] over the target's vocabulary."""
        if self.d2t is None:
            return values
        wide = values.new_full((*values.shape[:-1], self.target_vocab), elsewhere)
        wide[..., self.all_words()] = values
        return wide

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weights."""
        return self._like.dtype

    @property
    def _like(self) -> Tensor:
        """A weight that is never packed, for its type and its device."""
        return self.layers[0].get_parameter("post_attention_layernorm.weight")

    def prepare(self, length: int) -> None:
        """Build the table of positions for sequences of up to `length` rows."""
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        like = self._like.detach()
        with torch.inference_mode(False):
            places = torch.arange(length, device=like.device)[None]
            cos, sin = LlamaRotaryEmbedding(self.config).to(like.device)(like, places)
        self._rotary = cos[0], sin[0]

    def new_cache(self, rows: int) -> tuple[KVCache, StepMaker]:
        """A cache of so many rows for one sequence, and the maker of its steps."""
        like, config = self._like, self.config
        self.prepare(rows)
        heads = config.num_key_value_heads
        shape = CacheShape(1, heads, config.head_dim, (None,), (like.device,), like.dtype)
        return KVCache(shape, rows), StepMaker(rows, like.device)

    def turns(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines by position, [position, head_dim] each, once they are prepared."""
        assert self._rotary is not None, "prepare() was not called"
        return self._rotary

    def embedded(self, tokens: Tensor, like: Tensor) -> Tensor:
        """The embeddings of tokens, in the type of `like`."""
        own = self.embed_tokens
        found: Tensor = self.target.words(tokens) if own is None else own(tokens)
        return found.to(like.dtype)

    def _layer(self, residual: Tensor, entering: Tensor, step: Step, cache: Any) -> Tensor:
        """Attention over what enters, added to the residual stream, and the MLP."""
        layer: Any = self.layers[0]
        cos, sin = self.turns()
        attended, _ = layer.self_attn(
            hidden_states=entering,
            position_embeddings=(cos[step.positions], sin[step.positions]),
            attention_mask=step.mask(None),
            past_key_values=cache,
        )
        hidden = residual + attended
        out: Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return out


class Eagle1(DraftNetwork):
    """Guesses the hidden state that the target's head reads."""

    version = 1

    def __init__(self, target: Adapter, config: Any) -> None:
        super().__init__(target, config, (len(target.layers),), entering=2)
        del self.layers[0].input_layernorm

    def features(self, taps: Mapping[int, Tensor]) -> Tensor:
        return self.target.norm(taps[self.reads[0]]).to(self._like)

    def forward(self, tokens: Tensor, features: Tensor, step: Step, cache: Any = None) -> Tensor:
        mixed = self.fc(torch.cat([self.embedded(tokens, features), features], dim=-1))
        return self._layer(mixed, mixed, step, cache)

    def logits(self, states: Tensor) -> Tensor:
        return self.target.readout(states.to(self.target.dtype))


class Eagle3(DraftNetwork):
    """Guesses tokens from what three layers hold, free to put into its states what it likes.

    The head is a matrix of its own over the first `draft_vocab` entries of a map to the
    target's ids; or, with 0, the target's own head, which a `rank` lets it change a little. With
    both it is such a change of the rows that the target's head has for these entries: `own_rows`,
    which are no part of what is stored.
    """

    version = 3

    def __init__(
        self,
        target: Adapter,
        config: Any,
        reads: tuple[int, ...],
        draft_vocab: int = 0,
        rank: int = 0,
    ) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        super().__init__(target, config, reads, entering=len(reads))
        width, eps = config.hidden_size, config.rms_norm_eps
        layer: Any = self.layers[0]
        layer.hidden_norm = LlamaRMSNorm(width, eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(layer.self_attn, name)
            setattr(layer.self_attn, name, nn.Linear(2 * width, narrow.out_features, bias=False))
        self.norm = LlamaRMSNorm(width, eps)
        self.lm_head: nn.Module | None = None
        self.change: nn.Sequential | None = None
        self.own_rows: Tensor | None = None
        if draft_vocab:
            self.d2t = torch.zeros(draft_vocab, dtype=torch.long)
        if rank:
            down = nn.Linear(width, rank, bias=False)
            up = nn.Linear(rank, self.n_words, bias=False)
            self.change = nn.Sequential(OrderedDict(down=down, up=up))
        elif draft_vocab:
            self.lm_head = nn.Linear(width, draft_vocab, bias=False)

    def features(self, taps: Mapping[int, Tensor]) -> Tensor:
        fused: Tensor = self.fc(torch.cat([taps[n].to(self._like) for n in self.reads], dim=-1))
        return fused

    def forward(self, tokens: Tensor, features: Tensor, step: Step, cache: Any = None) -> Tensor:
        layer: Any = self.layers[0]
        words = layer.input_layernorm(self.embedded(tokens, features))
        both = torch.cat([words, layer.hidden_norm(features)], dim=-1)
        return self._layer(features, both, step, cache)

    def logits(self, states: Tensor) -> Tensor:
        normed = self.norm(states)
        if self.lm_head is not None:
            own: Tensor = self.lm_head(normed)
            return own
        shared = self._shared(normed)
        if self.change is not None:
            shared = shared + self.change(normed)
        return self.target.cap(shared)

    def _shared(self, normed: Tensor) -> Tensor:
        """Logits by the target's own head."""
        if self.own_rows is not None:
            return linear(normed, self.own_rows.to(normed))
        read: Tensor = self.target.head(normed.to(self.target.dtype))
        return read

    def rows_of_target(self) -> Tensor:
        """The rows of the target's own head for the draft vocabulary."""
        return self.target.head.get_parameter("weight").detach()[self.all_words()]

    def take_rows(self) -> None:
        """Let a change, where there is one, be of the target's rows for the draft vocabulary."""
        if self.change is not None and self.d2t is not None:
            self.own_rows = self.rows_of_target()

    @torch.no_grad()
    def settle_head(self, own_rows: Tensor) -> None:
        """Make one matrix of a change and of the rows that it changes."""
        assert self.change is not None
        down, up = (part.get_parameter("weight").float() for part in self.change)
        whole = (own_rows.float() + up @ down).to(self._like)
        self.lm_head = nn.Linear(down.shape[1], len(whole), bias=False, device="meta")
        self.lm_head.weight = nn.Parameter(whole, requires_grad=False)
        self.change = None


def _check_widths(target: Adapter) -> None:
    target.check_one_state("eagle")
    width = target.hidden_size
    if target.head_width != width:
        raise UnsupportedModel(
            f"eagle: this model's head reads {target.head_width} numbers of hidden states of "
            f"{width}; EAGLE goes on from what the head reads and needs both the same"
        )
