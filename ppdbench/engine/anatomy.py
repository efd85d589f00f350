"""A loaded decoder read from its modules: where its parts are, and what its layers take.

An entry in `families.py` says what a family does otherwise; all else is looked up here, in the
modules themselves and in the signature of the layers' forward. Reading may go wrong in silence
(something may stand between two parts), so what was read is held against the stock model when
it is loaded: `held_family.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ppdbench.engine.families import BlockNames, Family, entry
from ppdbench.errors import UnsupportedModel

CACHES = ("past_key_values", "layer_past", "cache_params")
TABLES = "position_embeddings"
POSITIONS = "position_ids"
SHARED = "shared_kv_states"
# What layers may ask for and get; of the rest only what may be left out is left out.
GIVEN = {"hidden_states", "x", "attention_mask", *CACHES, TABLES, POSITIONS, SHARED, "use_cache"}
LONGEST = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
# Kinds of layers that a mask alone tells apart.
ATTENDING = {"full_attention", "sliding_attention", "chunked_attention", "global", "attention"}
# Kinds of layers beside those: with a memory of their own, or with nothing to remember.
OTHERS = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mlp", "moe"}
# Those that see a window.
SLIDING = {"sliding_attention", "hybrid_sliding"}
# Names under which a part of a layer asks a cache for what it remembers, or tells it.
RECURRENT = {"get_recurrent_state", "update_recurrent_state"}
STATES = {"get_conv_state", "update_conv_state", *RECURRENT}
# The two blocks of a layer, by their usual names.
ATTENTIONS = ("self_attn", "attention", "attn", "self_attention")
MLPS = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
# Parts that some layers have beside the MLP, or in its place.
BESIDE = ("shared_mlp", "experts")
# Norms before each block, by their usual names, in layers that have both.
NORM_PAIRS = (
    ("input_layernorm", "post_attention_layernorm"),
    ("ln_1", "ln_2"),
    ("norm_1", "norm_2"),
    ("attention_layernorm", "feedforward_layernorm"),
    ("input_layernorm", "pre_ff_layernorm"),
    ("operator_norm", "ffn_norm"),
    ("attn_norm", "mlp_norm"),
)


@dataclass(frozen=True, slots=True)
class Anatomy:
    """Facts read of one model, beyond the names of its parts."""

    tables: bool
    """Layers are handed rotary tables."""
    told_positions: bool
    """Attention asks for the positions themselves."""
    own_attention: bool
    """Layers compute attention in code of their own: it needs every mask written out."""
    alike: bool
    """All layers compute the same but for their weights."""
    experts: bool
    """Layers choose between experts, token by token."""
    memories: tuple[str | None, ...]
    """Of each layer the path in it of the mixer that remembers, in layers that have one."""
    attending: frozenset[int]
    """The layers that look at keys and values."""
    kinds: tuple[str, ...]
    """The kind of each layer: how it looks back at rows before its own."""
    sources: tuple[int, ...]
    """The layer whose keys and values each layer looks at, where some look at those of another."""

    @property
    def remembers(self) -> bool:
        """True if some layers have a memory of their own."""
        return any(self.memories)


def text_config(model: Any) -> Any:
    """The settings of the part of a model that writes text."""
    return model.config.get_text_config(decoder=True)


def layer_config(config: Any, layer: int) -> Any:
    """The settings of one layer, where layers have some of their own."""
    return config.per_layer_config[layer] if getattr(config, "is_heterogeneous", False) else config


def query_heads(config: Any, layer: int) -> int:
    """The heads of a layer's queries."""
    each = getattr(config, "num_attention_heads_per_layer", None)
    return int(layer_config(config, layer).num_attention_heads if each is None else each[layer])


def read(model: Any) -> tuple[Family, Anatomy]:
    """The family of a model with all names filled in, and what its layers take."""
    config = text_config(model)
    found = entry(config.model_type)
    if (refusal := found.refusal(config)) is not None:
        raise _unread(config, refusal)
    if model.config.is_encoder_decoder or getattr(config, "is_encoder_decoder", False):
        raise _unread(config, "its layers look at what an encoder has read")
    path, name = _layers(model, config, found)
    body = model.get_submodule(path)
    layers = list(getattr(body, name))
    if any("encoder_attn" in dict(layer.named_children()) for layer in layers):
        raise _unread(config, "its layers look at what an encoder has read")
    memories = _memories(model, config, layers)
    taken = {name: p for layer in layers for name, p in _parameters(layer).items()}
    cache = found.cache_argument or next((c for c in CACHES if c in taken), None)
    if cache is None:
        raise _unread(
            config,
            "its layers take no cache of keys and values, so a token reads the whole text again",
        )
    arguments = () if found.told is None else found.told(body, config)
    unknown = [
        p.name
        for p in taken.values()
        if p.default is p.empty and p.name not in GIVEN and p.name not in arguments
    ]
    if unknown:
        raise _unread(config, f"its layers take {', '.join(unknown)}, which is not known here")
    family = replace(
        found,
        body=path,
        layers=name,
        embedding=found.embedding or _name_of(body, model.get_input_embeddings()),
        norm=found.norm or _final_norm(body, config),
        embedding_norm=found.embedding_norm or _embedding_norm(body),
        cache_argument=cache,
        rotary=(rotary := _rotary(body)),
        rotary_kinds=found.rotary_kinds or _rotary_kinds(body, rotary),
        blocks=replace(found.blocks or blocks_of(layers), mixers=_tops(memories)),
    )
    attending = {i for i, layer in enumerate(layers) if not any(memories) or _attends(layer)}
    attentions = [part for i in sorted(attending) if (part := _attention(layers[i])) is not None]
    return family, Anatomy(
        tables=rotary is not None
        and (TABLES in taken or any(TABLES in _parameters(a) for a in attentions)),
        told_positions=any(POSITIONS in _parameters(a) for a in attentions),
        own_attention=not all(_asks_for_attention(layers[i]) for i in attending),
        alike=_alike(layers) and not _differ_by_number(config),
        experts=any(map(_chooses, (p for layer in layers for p in layer.modules()))),
        memories=memories,
        attending=frozenset(attending),
        kinds=tuple(
            _kind(layer, memory, attends=i in attending)
            for i, (layer, memory) in enumerate(zip(layers, memories, strict=True))
        ),
        sources=_sources(config) if SHARED in taken else (),
    )


def _unread(config: Any, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"family {config.model_type[:60]} does not run, because {why}; "
        "`ppdbench list models` names those that do"
    )


def _memories(model: Any, config: Any, layers: Sequence[nn.Module]) -> tuple[str | None, ...]:
    """Find the mixer in each layer that remembers; refuse a memory that our cache cannot hold."""
    found = [mixers(layer) for layer in layers]
    kinds = set(getattr(config, "layer_types", None) or ()) - ATTENDING
    which = f" ({', '.join(sorted(map(str, kinds)))})" if kinds else ""
    if getattr(model, "_is_stateful", False) and not any(found):
        raise _unread(
            config,
            f"layers with a memory of their own{which} keep it where what a rejected draft left "
            "cannot be taken back",
        )
    if kinds - (OTHERS if any(found) else set()):
        raise _unread(config, f"its layers are of a kind that is not known here{which}")
    if any(len(each) > 1 for each in found):
        raise _unread(config, "its layers have several memories each")
    return tuple(each[0] if each else None for each in found)


def mixers(layer: nn.Module) -> list[str]:
    """The paths of what remembers in a layer."""
    return [path for path, part in layer.named_modules() if STATES & set(_names_in_class(part))]


def _sources(config: Any) -> tuple[int, ...]:
    """Each layer's own number, or that of the layer of its type whose keys and values it takes."""
    keeper: dict[str, int] = {}
    found: list[int] = []
    for i, (mode, kind) in enumerate(zip(config.kv_sharing_modes, config.layer_types, strict=True)):
        if mode == "store":
            keeper[kind] = i
        found.append(keeper[kind] if mode == "reuse" else i)
    return tuple(found) if found != list(range(len(found))) else ()


def _tops(paths: Iterable[str | None]) -> tuple[str, ...]:
    """The first names of paths."""
    return tuple(sorted({path.partition(".")[0] for path in paths if path is not None}))


def _kind(layer: nn.Module, memory: str | None, *, attends: bool) -> str:
    """Name how a layer looks back, by its own code."""
    looks = ["attention"] if attends else []
    if memory is not None:
        keeps = set(_names_in_class(layer.get_submodule(memory)))
        looks.append("recurrent" if keeps & RECURRENT else "convolution")
    return " and ".join(looks) or "feed-forward"


def _attends(layer: nn.Module) -> bool:
    """True if somewhere in the layer rows of keys and values are kept."""
    return any("update" in _names_in_class(part) for part in layer.modules())


def _names_in_class(module: nn.Module) -> Iterator[str]:
    """The names that the methods of a module's own class mention."""
    for method in vars(type(module)).values():
        if inspect.isfunction(method):
            yield from names_in(method)


def _layers(model: nn.Module, config: Any, family: Family) -> tuple[str, str]:
    """The path to what holds embedding and layers, and the name of the list of layers."""
    if family.body is not None and family.layers is not None:
        return family.body, family.layers
    words = model.get_input_embeddings()  # type: ignore[operator]
    for path, part in model.named_modules():
        if words in part.children():
            for name, child in part.named_children():
                if isinstance(child, nn.ModuleList) and len(child) == config.num_hidden_layers:
                    return path, name
    raise _unread(config, "its embedding and the list of its layers do not stand side by side")


def _name_of(body: nn.Module, part: nn.Module) -> str:
    return next(name for name, child in body.named_children() if child is part)


def _norms(body: nn.Module) -> Iterator[str]:
    for name, child in body.named_children():
        if "norm" in type(child).__name__.lower():
            yield name


def _is_of_words(name: str) -> bool:
    return "embedding" in name and name != "embedding_norm"


def _final_norm(body: nn.Module, config: Any) -> str:
    found = [name for name in _norms(body) if not _is_of_words(name)]
    if len(found) != 1:
        raise _unread(config, f"{len(found)} norms stand beside its layers, one was expected")
    return found[0]


def _embedding_norm(body: nn.Module) -> str | None:
    return next((name for name in _norms(body) if _is_of_words(name)), None)


def _rotary(body: nn.Module) -> str | None:
    """The name of what makes rotary tables in the body."""
    parts = dict(body.named_children())
    by_class = (n for n, part in parts.items() if "rotaryembedding" in type(part).__name__.lower())
    return "rotary_emb" if "rotary_emb" in parts else next(by_class, None)


def _rotary_kinds(body: nn.Module, rotary: str | None) -> Callable[[Any], Sequence[str]] | None:
    """Give layers' types, where what makes rotary tables asks for one."""
    if rotary is None or "layer_type" not in _parameters(body.get_submodule(rotary)):
        return None
    return lambda config: config.layer_types


def _parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    """List what a module's forward takes by name; what merely passes through is not among it."""
    signature = inspect.signature(inspect.unwrap(type(module).forward))
    named = (p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD)
    return {p.name: p for p in named if p.name != "self"}


def _attention(layer: nn.Module) -> nn.Module | None:
    """The module in a layer that attends."""
    return next(
        (m for m in layer.modules() if m is not layer and _is_attention(m)),
        None,
    )


def _is_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower() and hasattr(module, "forward")


def _asks_for_attention(layer: nn.Module) -> bool:
    """True if somewhere in the layer the attention function of the configuration is called."""
    return any(reads(m, "ALL_ATTENTION_FUNCTIONS") for m in layer.modules())


def reads(module: nn.Module, name: str) -> bool:
    """True if a module's forward mentions a name."""
    return name in names_in(type(module).forward)


def names_in(function: Callable[..., Any]) -> tuple[str, ...]:
    """The attributes and globals that a function's code mentions."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return () if code is None else code.co_names


def blocks_of(layers: Sequence[nn.Module]) -> BlockNames:
    """The two blocks of the layers, as far as their names are the usual ones."""
    names = set(dict(layers[0].named_children()))
    attention = next((name for name in ATTENTIONS if name in names), ATTENTIONS[0])
    mlp, beside = (tuple(n for n in known if n in names) for known in (MLPS, BESIDE))
    if not mlp:
        mlp, beside = beside[:1] or MLPS[:1], beside[1:]
    found = BlockNames(attention=attention, mlp=mlp, beside=beside)
    norms = {name for name in names if "norm" in name or name.startswith("ln")}
    pair = next((pair for pair in NORM_PAIRS if norms == set(pair)), None)
    before = ((), ()) if pair is None else (pair[:1], pair[1:])
    return replace(found, attention_norms=before[0], mlp_norms=before[1])


def adds_itself(block: nn.Module) -> bool:
    """True if a block is handed the residual stream and adds its output to it."""
    return "residual" in _parameters(block)


def _alike(layers: Sequence[nn.Module]) -> bool:
    """True if nothing but weights and their number in the list tells the layers apart."""
    first = _settings(layers[0])
    return all(_settings(layer) == first for layer in layers[1:])


def _chooses(part: nn.Module) -> bool:
    name = type(part).__name__.lower()
    return "expert" in name or "moe" in name or "router" in name


def _differ_by_number(config: Any) -> bool:
    """True if a setting says for each layer on its own what it is."""
    lists = [v for v in config.to_dict().values() if isinstance(v, list)]
    return any(len(v) == config.num_hidden_layers and v != v[:1] * len(v) for v in lists)


def _settings(layer: nn.Module) -> list[tuple[object, ...]]:
    return [
        (path, type(part), *sorted((k, v) for k, v in vars(part).items() if _tells(k, v)))
        for path, part in layer.named_modules()
    ]


def _tells(name: str, value: object) -> bool:
    return not name.startswith("layer_i") and isinstance(value, bool | int | float | str)
