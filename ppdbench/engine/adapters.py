"""A loaded model in parts, whichever family it is of; `families.py` says how families differ.

An adapter embeds tokens, calls one decoder layer, applies the final norm and the head.
Decoder layers are the loaded model's own modules.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from ppdbench.engine.anatomy import (
    LONGEST,
    SHARED,
    SLIDING,
    TABLES,
    layer_config,
    query_heads,
    read,
    text_config,
)
from ppdbench.engine.cache import CacheShape, HeldRows, Rows, SharedRows
from ppdbench.engine.families import RowShape, Slopes
from ppdbench.engine.masks import Step
from ppdbench.engine.offload import NOTHING, FromDisk, OnOtherDevice, StoredWeights, at_home
from ppdbench.engine.packing import (
    Exchange,
    SharedWords,
    exchange,
    for_all_owners,
    has_copies,
    is_lookup,
    packed,
    spans,
    taken,
)
from ppdbench.engine.weights import parts
from ppdbench.engine.windows import windows_of
from ppdbench.errors import UnsupportedModel
from ppdbench.machine.pages import Files, enlarge, trim

# These rope types change their frequencies when a sequence outgrows a limit, which would
# leave keys of two kinds in one cache.
LENGTH_DEPENDENT_ROPE = {"longrope", "dynamic"}

# cos and sin, or one table of complex numbers.
Rotary = tuple[Tensor, ...] | None


class Adapter:
    """Parts of a loaded model as passes ask for them, found by the entry of its family."""

    def __init__(self, model: Any, stored: StoredWeights = NOTHING) -> None:
        self.model = model
        self.config = text_config(model)
        self.family, self.anatomy = read(model)
        self.stored = stored
        self.body = model.get_submodule(self._named(self.family.body))
        if self.family.taken is not None:
            self.family.taken(self.body)
        self.layers: list[nn.Module] = list(getattr(self.body, self._named(self.family.layers)))
        words = self._named(self.family.embedding)
        self.embedding: nn.Module = self.body.get_submodule(words)
        self._passes = [self._pass(i, layer) for i, layer in enumerate(self.layers)]
        for name, part in self.body.named_children():
            if name not in (self.family.layers, words.partition(".")[0]):
                setattr(self.body, name, at_home(part, self._path(name), stored, self.device))
        self.final_norm: nn.Module | None = getattr(self.body, self._named(self.family.norm))
        self.head = at_home(model.get_output_embeddings(), self.head_path(), stored, self.device)
        self.transform: nn.Module | None = None
        if (path := self.family.transform) is not None:
            self.transform = at_home(model.get_submodule(path), path, stored, self.device)
        self.blocks = self.family.blocks_of(self.config)
        self.softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self._word_scale = self.family.word_scale(self.config)
        self.before_head = self.family.before_head(self.config)
        self.logit_scale = self.family.logit_scale(self.config)
        self._tells = None if self.family.told is None else self.family.told(self.body, self.config)
        self._told: tuple[Step, dict[str, Any]] | None = None
        self.carried = self.family.carried(self.body, self.config)
        self._shared: tuple[Step | None, dict[str, Any]] = None, {}
        self.windows = self._windows()
        self._rotary: dict[tuple[str | None, torch.device], tuple[Tensor, ...]] = {}

    # Where the parts are

    @staticmethod
    def _named(name: str | None) -> str:
        assert name is not None, "reading a model fills in all names"
        return name

    def _path(self, name: str | None) -> str:
        return f"{self.family.body}.{name}"

    def layer_path(self, index: int) -> str:
        """The full name of a layer."""
        return f"{self._path(self.family.layers)}.{index}"

    def embedding_path(self) -> str:
        """The full name of the embedding."""
        return self._path(self.family.embedding)

    def head_path(self) -> str:
        """The full name of the head."""
        head = self.model.get_output_embeddings()
        return next(str(name) for name, part in self.model.named_modules() if part is head)

    def is_tied(self) -> bool:
        """True if the head reads the embedding's weights."""
        own: nn.Module = self.model.get_output_embeddings()
        return own.get_parameter("weight") is self.embedding.get_parameter("weight")

    def _pass(self, index: int, layer: nn.Module) -> Callable[..., Any]:
        """Return the function to call for layer `index` when `layer` runs in its place."""
        if not self.on_disk(index):
            return layer.forward
        return FromDisk(layer, self.layer_path(index), self.stored, self.device).forward

    @property
    def in_one_place(self) -> bool:
        """True if all layers and the readout lie in memory where tokens enter."""
        around = (isinstance(part, OnOtherDevice | FromDisk) for part in self._behind)
        return not any(around) and not any(
            self.on_disk(i) or self.device_of(i) != self.device for i in range(len(self.layers))
        )

    def on_disk(self, index: int) -> bool:
        """True if the weights of a layer are read from their files for each pass."""
        return self.stored.holds(self.layers[index], self.layer_path(index))

    def device_of(self, index: int) -> torch.device:
        """Return the device a layer computes on; from disk it computes where tokens enter."""
        if self.on_disk(index):
            return self.device
        return next(self.layers[index].parameters()).device

    # What a pass is made of

    def embed(self, tokens: Tensor, step: Step) -> Tensor:
        """Tokens [batch, query] to what layers take of them [batch, query, width]."""
        words = self.place(self.words(tokens), step.positions)
        return words if self.carried is None else self.carried.begin(words, tokens)

    @property
    def embeds_by_row(self) -> bool:
        """True if a token is embedded by itself, with no product that others may round."""
        projection = self.family.project_in
        return self.carried is None and (
            projection is None or getattr(self.body, projection) is None
        )

    @property
    def held_words(self) -> Any:
        """The words of all tokens: plain rows [token, width], or the packed weight of the head."""
        embedding: Any = self.embedding
        return embedding.held if isinstance(embedding, SharedWords) else embedding.weight

    def look_up(self, words: nn.Module) -> None:
        """Look words up in something else than before."""
        path = self._named(self.family.embedding)
        self.body.set_submodule(path, words)
        self.embedding = words

    def enters_by_row(self) -> bool:
        """True if what layers take of a token is its row of the words, as it is, on a CPU."""
        family, words = self.family, self.embedding
        if not self.embeds_by_row or self._word_scale != 1.0:
            return False
        if family.embedding_norm is not None or family.positions is not None:
            return False
        if self.device.type != "cpu":
            return False
        return isinstance(words, SharedWords) or (is_lookup(words) and words.weight.is_contiguous())

    def words(self, tokens: Tensor) -> Tensor:
        """Embed tokens [batch, query] without their positions."""
        words = self._projected(self.family.project_in, self.embedding(tokens))
        if self._word_scale != 1.0:
            words = words * self._word_scale
        return self._projected(self.family.embedding_norm, words)

    def place(self, words: Tensor, positions: Tensor, first: int = 0) -> Tensor:
        """Words, or what is trained to stand for one, at their positions.

        Those of a pass [1, query], of which the words have some, from `first` on.
        """
        if self.family.positions is None:
            return words
        own = positions[:, first : first + words.shape[1]]
        return words + self.family.positions(self.body, own)

    def _projected(self, name: str | None, hidden: Tensor) -> Tensor:
        """Hidden states in another width, where the family and this model have that."""
        projection = None if name is None else attrgetter(name)(self.body)
        out: Tensor = hidden if projection is None else projection(hidden)
        return out

    def call_layer(
        self,
        index: int,
        hidden: Tensor,
        mask: Tensor | None,
        rotary: Rotary,
        cache: Rows | None,
        step: Step | None = None,
    ) -> Tensor:
        """One decoder layer; those that place rows themselves need the `step`."""
        arguments = self.arguments(mask, rotary, cache)
        if self.told:
            arguments |= self._said(step)
        if self.anatomy.sources:
            arguments[SHARED] = self._rows_of_others(index, cache, step)
        if self.carried is None:
            return self._called(index, hidden, arguments)[0]
        states, own = self.carried.handed(index, hidden)
        given, others = self._called(index, states, arguments | own)
        return self.carried.behind(hidden, given, others)

    def _called(
        self, index: int, states: Tensor, arguments: Mapping[str, Any]
    ) -> tuple[Tensor, Sequence[Any]]:
        """The states that a layer gives, and what else."""
        out: Any = self._passes[index](states, **arguments)
        given, *others = out if isinstance(out, tuple) else (out,)
        return given, others

    def _rows_of_others(
        self, index: int, cache: Rows | None, step: Step | None
    ) -> SharedRows | dict[str, Any]:
        """Rows as layer `index` asks for those of another, and puts what others ask for.

        Without a cache that holds them they are those of the same pass over all layers.
        """
        if isinstance(cache, HeldRows):
            return SharedRows(cache, index)
        if step is None or self._shared[0] is not step:
            self._shared = step, {}
        return self._shared[1]

    def _said(self, step: Step | None) -> dict[str, Any]:
        """Tell layers of a pass beyond the usual: made once for all of them."""
        if self._told is None or self._told[0] is not step or step is None:
            assert step is not None, "layers of this family are told where rows stand"
            said = {} if self._tells is None else self._tells(step, self.dtype)
            if self.anatomy.told_positions:
                said["position_ids"] = step.positions
            self._told = step, said
        return self._told[1]

    def arguments(self, mask: Tensor | None, rotary: Rotary, cache: Rows | None) -> dict[str, Any]:
        """Return the arguments that the family's layers take beside hidden states."""
        arguments: dict[str, Any] = {
            self.family.mask_argument: self.family.mask(mask),
            self._named(self.family.cache_argument): cache,
        }
        if self.anatomy.tables:  # none for layers whose attention is left out
            arguments[TABLES] = rotary if rotary is None or len(rotary) > 1 else rotary[0]
        return arguments

    def norm(self, hidden: Tensor) -> Tensor:
        """Apply all that stands between the last layer and the head."""
        state = self.state(hidden)
        normed: Tensor = state if self.final_norm is None else self.final_norm(state)
        if self.before_head != 1.0:
            normed = normed / self.before_head
        if self.transform is not None:
            normed = self.transform(normed)
        normed = self._projected(self.family.project_out, normed)
        # Layers may hand on states of a wider type than the head's weights.
        return normed if normed.dtype == self.dtype else normed.to(taken(self.head) or self.dtype)

    def readout(self, normed: Tensor) -> Tensor:
        """Logits of normed hidden states, scale and soft cap included."""
        return self.cap(self.head(normed))

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head, after whichever layer `hidden` comes from."""
        return self.readout(self.norm(hidden))

    def cap(self, logits: Tensor) -> Tensor:
        """The family's scale and soft cap of logits, for its own head and for trained ones."""
        logits = self.logit_scale(logits)
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap

    def rope_kind(self, index: int) -> str | None:
        """Name the rotary table of layer `index`, where a family has several.

        One that does not attend may be handed any.
        """
        if self.family.rotary_kinds is None:
            return None
        attending, kinds = self.anatomy.attending, self.family.rotary_kinds(self.config)
        return kinds[index if index in attending else min(attending)]

    @cached_property
    def rope_kinds(self) -> list[str | None]:
        """The rotary tables of the layers, each once, in the order in which layers take them."""
        return list(dict.fromkeys(map(self.rope_kind, range(len(self.layers)))))

    def rotary(self, step: Step, kind: str | None) -> Rotary:
        """cos and sin of the step's positions: [1, query, rotary_dim]."""
        tables = self.whole_rotary(kind, step.positions.device)
        if tables is None:
            return None
        if step.contiguous:
            return tuple(table[None, step.start : step.end] for table in tables)
        return tuple(table[step.positions] for table in tables)

    def whole_rotary(self, kind: str | None, device: torch.device) -> Rotary | None:
        """cos and sin of every position: [position, rotary_dim]; the same until there are more."""
        return self._rotary[kind, device] if self._has_tables else None

    @property
    def told(self) -> bool:
        """True if layers are told more of a pass than states, mask, tables and cache."""
        return self._tells is not None or self.anatomy.told_positions

    @property
    def slopes(self) -> Slopes | None:
        """Slopes of scores by distance, in models that have them."""
        return None if self._tells is None else self._tells.slopes

    @property
    def rotary_tables(self) -> int:
        """The number of tables that `rotary` gives for each kind of layer."""
        if not self._has_tables:
            return 0
        self._fill_rotary(1)
        return len(self._rotary[self.rope_kind(0), self.device])

    def why_not_repeated(self) -> str | None:
        """Say why passes cannot be captured and repeated; None if they can."""
        if self.anatomy.remembers:
            return "its layers have a memory of their own, which a pass changes"
        if self.anatomy.experts:
            return "which experts a pass reads depends on its tokens"
        if self.told or self.anatomy.own_attention:
            return "its layers place rows or mask them in code of their own"
        if self.carried is not None:
            return "its layers take more of a token than one state"
        if self.anatomy.sources:
            return "some of its layers look at keys and values of others"
        return None

    def why_not_joined(self) -> str | None:
        """Say why rows of several sequences cannot run as one pass; None if they can."""
        if self._tells is not None:
            return "its layers are told how far rows are apart"
        if self.anatomy.own_attention:
            return "its layers compute attention in code of their own"
        if self.keeps_latents:
            return "its layers expand what the cache holds"
        return None

    def with_layers(self, others: Mapping[int, nn.Module]) -> Adapter:
        """The same, but with other modules in the place of some layers."""
        twin = copy.copy(self)
        twin.layers = [others.get(i, layer) for i, layer in enumerate(self.layers)]
        twin._passes = [
            self._pass(i, others[i]) if i in others else call for i, call in enumerate(self._passes)
        ]
        return twin

    def compile(self) -> None:
        """Compile the layers, with one artefact for all of them and for any batch."""
        self._passes = [torch.compile(layer.forward, dynamic=True) for layer in self.layers]

    def pack(
        self,
        make: Exchange = packed,
        before: Callable[[int], None] | None = None,
        behind: Callable[[int], None] | None = None,
    ) -> None:
        """Lay the weights out for this machine's matrix kernels, no two layers at once.

        `make` gives a product in its new layout; `before` is told of each layer that comes next,
        and `behind` of each that is done.
        """
        make = for_all_owners(make, self.layers)
        files = Files.behind(t for p in self.model.parameters() for t in parts(p))
        for index, layer in enumerate(self.layers):
            if before is not None:
                before(index)
            exchange(layer, make)
            files.release()
            if has_copies(layer):
                trim()
            if behind is not None:
                behind(index)
        self.head = exchange(self.head, make)
        self.model.set_output_embeddings(self.head)
        if self.transform is not None:
            exchange(self.transform, make)
        for name in self.around:
            setattr(self.body, name, exchange(getattr(self.body, name), make))
        files.release()
        trim()

    def enlarge(self) -> None:
        """Put what passes read on large pages."""
        enlarge(spans(nn.ModuleList((*self.layers, *self._behind))))

    def _head_is_tied(self) -> bool:
        """True if the head reads the memory that the embedding does."""
        shared = {p.data_ptr() for p in self.head.parameters()}
        return any(p.data_ptr() in shared for p in self.embedding.parameters())

    def drop(self, layers: Iterable[int]) -> None:
        """Free the weights of layers that this process never runs; their types stay known."""
        for index in layers:
            _free(self.layers[index])

    def drop_embedding(self) -> None:
        """Free the embedding, unless the head reads the same memory."""
        if not self._head_is_tied():
            _free(self.embedding)

    def parts(self, layers: range) -> list[nn.Module]:
        """List the modules that run these layers and read out after the last of them."""
        own = [self.layers[i] for i in layers]
        first = [self.embedding] if 0 in layers else []
        return [*first, *own, *self._behind]

    @property
    def around(self) -> list[str]:
        """Names of the modules of the body that make what layers take, or read what they give.

        Beside the embedding and the norms.
        """
        carrying = () if self.carried is None else self.carried.parts
        named = (self.family.project_in, self.family.project_out, *carrying)
        return [n for n in named if n is not None and getattr(self.body, n) is not None]

    def readout_parts(self) -> nn.Sequential:
        """Return all that stands between the last layer and the logits, as one module."""
        return nn.Sequential(*self._behind)

    @property
    def _behind(self) -> list[nn.Module]:
        """The modules between the last layer and the logits."""
        parts = self.final_norm, self.transform, self.head
        return [part for part in parts if part is not None]

    # Facts read once

    def check_one_state(self, method: str) -> None:
        """Refuse a method that makes states of its own where tokens carry more than one."""
        if self.carried is not None:
            raise UnsupportedModel(
                f"{method}: tokens of {self.family.name} carry more from layer to layer than a "
                f"state, and {method} guesses a state alone; use a method that guesses tokens, "
                "as `ppdbench list methods` tells"
            )

    def prepare(self, capacity: int) -> None:
        """Build position tables for sequences of up to `capacity` tokens."""
        limit = self.max_positions
        if capacity > limit:
            raise UnsupportedModel(
                f"sequences of {capacity} tokens, but {self.config.model_type} with this "
                f"configuration runs {limit} at most; lower --max-new-tokens or shorten the prompt"
            )
        self._fill_rotary(capacity)

    def rotary_width(self, kind: str | None) -> int:
        """The last size of what `rotary` gives for a kind of layers."""
        self._fill_rotary(1)
        return self._rotary[kind, self.device][0].shape[-1]

    @property
    def _has_tables(self) -> bool:
        """True if layers are handed rotary tables, or keep their own."""
        return self.anatomy.tables or self.family.turns is not None

    def _fill_rotary(self, capacity: int) -> None:
        if not self._has_tables:
            return
        for kind in self.rope_kinds:
            held = self._rotary.get((kind, self.device))
            if held is None or held[0].shape[0] < capacity:
                tables = self._rotary_table(capacity, kind)
                for device in {self.device, *map(self.device_of, range(len(self.layers)))}:
                    self._rotary[kind, device] = tuple(table.to(device) for table in tables)

    def _rotary_table(self, capacity: int, kind: str | None) -> tuple[Tensor, ...]:
        # Ordinary tensors even if made while decoding, so that training can use them too.
        with torch.inference_mode(False):
            positions = torch.arange(capacity, device=self.device)[None]
            if self.family.turns is not None:
                return tuple(t.to(self.device, self.dtype) for t in self.family.turns(self.body))
            like = torch.empty(1, dtype=self.dtype, device=self.device)
            made = self._rotary_of(kind)(like, positions)
            return tuple(table[0] for table in (made if isinstance(made, tuple) else (made,)))

    def _rotary_of(self, kind: str | None) -> Callable[[Tensor, Tensor], Any]:
        """The maker of tables of a kind: for positions, of the type of another tensor."""
        make: Callable[..., Any] = getattr(self.body, self._named(self.family.rotary))
        if kind is None:
            return make
        if self.family.rotary_of is not None:
            return self.family.rotary_of(self.body, kind)
        return lambda like, positions: make(like, positions, kind)

    def _windows(self) -> tuple[int | None, ...]:
        if self.family.windows is not None:
            return tuple(self.family.windows(self.config))
        found = windows_of(self.body, getattr(self.body, self._named(self.family.layers)))
        if found is not None:
            return found
        window = self.named_window
        if getattr(self.config, "use_sliding_window", True) is False:
            window = None
        kinds = getattr(self.config, "layer_types", None)
        if kinds is None:
            return (window,) * len(self.layers)
        return tuple(window if kind in SLIDING else None for kind in kinds)

    @property
    def named_window(self) -> int | None:
        """The window that the config names, whether or not layers have it."""
        named: int | None = getattr(self.config, "sliding_window", None)
        return named

    @property
    def narrowest_window(self) -> int | None:
        """The narrowest of the sliding windows, if there are any."""
        # Masks are written out for every pass of several rows as if a window began at once.
        own = [1] if self.anatomy.own_attention else []
        return min((*own, *(w for w in self.windows if w is not None)), default=None)

    @property
    def max_positions(self) -> int:
        """The longest sequence this model handles correctly."""
        limit = self._longest()
        rope = getattr(self.config, "rope_parameters", None) or {}
        for parameters in [rope, *(v for v in rope.values() if isinstance(v, dict))]:
            if parameters.get("rope_type") in LENGTH_DEPENDENT_ROPE:
                limit = min(limit, parameters.get("original_max_position_embeddings") or limit)
        return limit

    def _longest(self) -> int:
        config = self.config
        said = [self.family.longest(config), *(getattr(config, name, None) for name in LONGEST)]
        limit = next((int(n) for n in said if n), None)
        if limit is None:
            raise UnsupportedModel(
                f"{config.model_type} models do not say how long a sequence may be; "
                "add max_position_embeddings to config.json"
            )
        # Layers that look at chunks alone see all before them only in the first one.
        chunked = "chunked_attention" in (getattr(config, "layer_types", None) or ())
        return min(limit, config.attention_chunk_size) if chunked else limit

    @property
    def dtype(self) -> torch.dtype:
        """The type the model computes in."""
        return next(self.embedding.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device on which tokens enter the model."""
        return next(self.embedding.parameters()).device

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states between layers."""
        return int(self.config.hidden_size)

    @property
    def width(self) -> int:
        """Numbers of a token that go from layer to layer: its state, and what else it carries."""
        return self.hidden_size if self.carried is None else self.carried.width

    def state(self, hidden: Tensor) -> Tensor:
        """The one state [..., hidden] in what goes from layer to layer."""
        return hidden if self.carried is None else self.carried.state(hidden)

    def given(self, hidden: Tensor) -> Tensor:
        """The states that a layer gives, as it gives them, out of what goes on to the next."""
        return hidden if self.carried is None else self.carried.handed(0, hidden)[0]

    @property
    def head_width(self) -> int:
        """Width of what the head reads: that of the hidden states, unless a projection follows."""
        return int(getattr(self.config, self.family.head_width))

    @property
    def heads_per_kv(self) -> tuple[int, ...]:
        """The number of query heads of each layer that share a KV head, as rows of one product."""
        whole = self.anatomy.own_attention or self.keeps_latents
        return tuple(
            1
            if whole or i not in self.anatomy.attending
            else query_heads(self.config, i) // row.heads
            for i, row in enumerate(self.row_shapes)
        )

    @property
    def keeps_latents(self) -> bool:
        """True if layers keep what keys and values of every head are made of."""
        return self._row_shape(0).latent

    @cached_property
    def row_shapes(self) -> list[RowShape]:
        """The sizes of what each layer keeps of a token."""
        return list(map(self._row_shape, range(len(self.layers))))

    def _row_shape(self, layer: int) -> RowShape:
        return self.family.rows(layer_config(self.config, layer), layer)

    @cached_property
    def cache_shape(self) -> CacheShape:
        """The shape of a KV cache for this model."""
        rows = self.row_shapes
        row, sources = rows[0], self.anatomy.sources
        sizes = tuple((each.heads, max(each.key, each.value)) for each in rows)
        widest = sizes[0][1]
        holding = {i for i in self.anatomy.attending if not sources or sources[i] == i}
        return CacheShape(
            n_layers=len(self.layers),
            n_heads=row.heads,
            head_dim=widest,
            key_dim=None if row.key == widest else row.key,
            value_dim=None if row.value == widest else row.value,
            windows=self.windows,
            devices=tuple(map(self.device_of, range(len(self.layers)))),
            dtype=self.dtype,
            rowless=frozenset(range(len(self.layers))) - holding,
            remembering=frozenset(i for i, path in enumerate(self.anatomy.memories) if path),
            hidden=self.hidden_size,
            sizes=sizes if len(set(sizes)) > 1 else (),
            sources=sources,
        )


def _free(module: nn.Module) -> None:
    for part in module.modules():
        for name, held in part._parameters.items():
            if held is not None:  # a new one: quantised weights hold more than their numbers
                empty = torch.empty(0, dtype=held.dtype, device=held.device)
                part._parameters[name] = nn.Parameter(empty, requires_grad=False)
