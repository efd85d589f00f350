"""Medusa heads: what the last hidden state already knows of the tokens further ahead.

Cai et al. 2024. The model's own head reads the next token out of the last hidden state, after
the final norm; head h (from 0) reads the token h + 1 places further out of the same state:
residual blocks x + SiLU(W x + b), then a matrix to the vocabulary. Ours may instead have a
low-rank change of the model's own matrix (`down`, `up`), or read through that as it is, and
they may read the state after fewer layers.

Tensors have the names of the published files in both: `{head}.{block}.linear.weight`,
`{head}.{block}.linear.bias`, and `{head}.{blocks}.weight` for the matrix. How many heads a
published file holds is counted from its names: configurations beside them are known to say
less.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from ppdbench.engine.addons import ADDON, Addon, Weights, addon_folder, open_addon
from ppdbench.engine.heads import head_rows
from ppdbench.engine.loading import Loaded
from ppdbench.errors import ConfigError
from ppdbench.methods.medusa.flat import FlatHeads, HeadStates

METHOD = "medusa"
WORDS = "words"  # the tensor of a draft vocabulary
PUBLISHED = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
MATRIX = re.compile(r"(\d+)\.(\d+)\.weight")


@dataclass(frozen=True, slots=True)
class HeadsShape:
    """The number of heads and of blocks in each; `rank` None: a whole matrix, 0: none of its own.

    They read the state `after` so many layers (0: all), and guess among `words` (0: all tokens).
    """

    heads: int
    blocks: int
    rank: int | None
    after: int = 0
    words: int = 0


@dataclass(frozen=True, slots=True)
class MedusaHeads:
    """All heads stacked, so that one product serves them all: [heads, ...] each.

    `words` are the ids that they guess among, with the rows of the model's head for these; all
    without. Where a `flat` form is there, it holds all weights, and these are empty.
    """

    loaded: Loaded
    blocks: tuple[tuple[Tensor, Tensor], ...]  # [heads, width, width] and [heads, 1, width]
    readout: tuple[Tensor, ...]  # the matrix, or down and up, or nothing
    count: int
    after: int  # layers run before the state that they read
    whole: bool  # each reads words through a matrix of its own, not the model's
    words: tuple[Tensor, Tensor] | None = None  # [words] and [words, width]
    flat: FlatHeads | None = None

    @property
    def n_words(self) -> int:
        """The number of tokens that they guess among."""
        return self.loaded.staged.vocab_size if self.words is None else len(self.words[0])

    def first(self, count: int) -> MedusaHeads:
        """Return only the heads that guess least far ahead; they share memory with these."""
        blocks = tuple((weight[:count], bias[:count]) for weight, bias in self.blocks)
        readout = tuple(tensor[:count] for tensor in self.readout)
        flat = None if self.flat is None else self.flat.first(count)
        return replace(self, blocks=blocks, readout=readout, count=count, flat=flat)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [heads, n, words] of states [n, hidden] before the final norm."""
        adapter, flat = self.loaded.staged.adapter, self.flat
        states, own, words = self._read(hidden) if flat is None else flat.read(hidden)
        if own is not None and self.whole:
            return adapter.cap(own)
        shared = adapter.head(states) if words is None else words
        return adapter.cap(shared if own is None else shared + own)

    def _read(self, hidden: Tensor) -> HeadStates:
        normed = self.loaded.staged.adapter.norm(hidden)
        x = normed.expand(self.count, *normed.shape)
        for weight, bias in self.blocks:
            x = x + silu(torch.baddbmm(bias, x, weight.mT))
        own = x
        for matrix in self.readout:
            own = own @ matrix.mT
        words = None if self.words is None else x @ self.words[1].mT
        return HeadStates(x, own if self.readout else None, words)

    def likeliest(self, hidden: Tensor, count: int) -> Tensor:
        """The ids [heads, count] that each head finds likeliest after one state [1, hidden]."""
        found = self.logits(hidden)[:, 0].topk(count).indices
        return found if self.words is None else self.words[0][found]

    def everywhere(self, hidden: Tensor) -> Tensor:
        """The same logits over the whole vocabulary: what no head guesses is as the least."""
        ids = None if self.words is None else self.words[0]
        return spread_over_vocabulary(self.logits(hidden), ids, self.loaded.staged.vocab_size)


def spread_over_vocabulary(logits: Tensor, words: Tensor | None, vocab: int) -> Tensor:
    """Logits [..., words] over a whole vocabulary; what is no such word is as the least."""
    if words is None:
        return logits
    least = float(logits.min()) if logits.numel() else 0.0
    wide = logits.new_full((*logits.shape[:-1], vocab), least)
    wide[..., words] = logits
    return wide


@dataclass(frozen=True, slots=True)
class MedusaAddon:
    """Heads and where they came from."""

    heads: MedusaHeads
    folder: Path
    fingerprint: str
    facts: dict[str, Any]


def load_medusa(asked: str, loaded: Loaded) -> MedusaAddon:
    """The heads of an add-on, or of a published file or its folder, checked against the model."""
    where = addon_folder(asked, METHOD, loaded)
    published = None if (where / ADDON.header).is_file() else _published(where)
    if published is None:
        addon = open_addon(where, METHOD, loaded)
        weights: Weights = addon
        shape = _declared(addon)
    else:
        weights = Weights(published, loaded)
        shape = _counted(weights)
    heads = _stacked(weights, shape, loaded)
    weights.close()
    folder = where if published is None else published.parent
    return MedusaAddon(heads, folder, weights.fingerprint, weights.facts())


def _published(where: Path) -> Path | None:
    """The published file that is asked for, or lies in the folder that is."""
    if where.is_file():
        return where
    return next((where / name for name in PUBLISHED if (where / name).is_file()), None)


def _declared(addon: Addon) -> HeadsShape:
    """Read the shape from the header of an add-on."""
    rank = None if addon.options.get("rank") is None else addon.number("rank", 0)
    after = addon.number("after", 0) if "after" in addon.options else 0
    words = addon.number("draft_vocab", 0) if "draft_vocab" in addon.options else 0
    return HeadsShape(addon.number("heads", 1), addon.number("layers", 0), rank, after, words)


def _counted(weights: Weights) -> HeadsShape:
    """Read the shape from the names of tensors in a published file."""
    found = [match for name in weights.names() if (match := MATRIX.fullmatch(name))]
    if not found:
        raise ConfigError(
            f"{weights.file} holds no Medusa heads: no tensor has a name like 0.1.weight"
        )
    return HeadsShape(1 + max(int(m[1]) for m in found), max(int(m[2]) for m in found), None)


def _stacked(weights: Weights, shape: HeadsShape, loaded: Loaded) -> MedusaHeads:
    staged = loaded.staged
    vocab, width = shape.words or staged.vocab_size, staged.adapter.head_width

    def each(part: str, size: tuple[int, ...]) -> Tensor:
        return torch.stack([weights.take(f"{h}.{part}", size) for h in range(shape.heads)])

    blocks = tuple(
        (
            each(f"{b}.linear.weight", (width, width)),
            each(f"{b}.linear.bias", (width,))[:, None],
        )
        for b in range(shape.blocks)
    )
    if shape.rank is None:
        readout: tuple[Tensor, ...] = (each(f"{shape.blocks}.weight", (vocab, width)),)
    elif shape.rank:
        down = each(f"{shape.blocks}.down", (shape.rank, width))
        readout = (down, each(f"{shape.blocks}.up", (vocab, shape.rank)))
    else:
        readout = ()
    after = reading_layer(shape.after, staged.n_layers)
    words = None
    if shape.words:
        ids = weights.take(WORDS, (shape.words,))
        words = (ids, head_rows(loaded, ids))
    whole = shape.rank is None
    return MedusaHeads(loaded, blocks, readout, shape.heads, after, whole, words)


def reading_layer(after: int, n_layers: int) -> int:
    """Return the number of layers after which heads read; 0 stands for all of them."""
    if after > n_layers:
        raise ConfigError(
            f"heads after {after} layers, but this model has {n_layers}; use 1..{n_layers}, or 0 "
            "for all"
        )
    return after or n_layers
