"""Trained heads for exit layers, as `train heads` writes and `--head` reads them.

A folder with `heads.json` ({format, version, method, model, vocab_size, hidden_size,
layers, rank, of_state}) and `heads.safetensors`. Per layer either `layer.N.weight` [vocab, hidden],
or, with a rank, `layer.N.down` [rank, hidden] and `layer.N.up` [vocab, rank], which are
added to the model's own head; or, if they change the state before that head, `layer.N.up`
[hidden, rank]. The model's frozen final norm comes before either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.addons import Addon, AddonLayout, open_addon, read_header
from ppdbench.engine.loading import Loaded
from ppdbench.errors import ConfigError
from ppdbench.files.resources import SHIPPED, trained_part

METHOD = "heads"
LAYOUT = AddonLayout(header="heads.json", tensors="heads.safetensors", flat=True)


@dataclass(frozen=True, slots=True)
class ExitHead:
    """One trained head: a full matrix, or a low-rank change of the model's own.

    `of_state`: the change is of the state that the model's own head reads.
    """

    weight: Tensor | None = None
    down: Tensor | None = None
    up: Tensor | None = None
    of_state: bool = False

    def logits(self, adapter: Adapter, normed: Tensor) -> Tensor:
        """Logits of hidden states that went through the final norm."""
        if self.weight is not None:
            return adapter.cap(linear(normed, self.weight))
        assert self.down is not None
        assert self.up is not None
        change = self.down, self.up
        return adapter.cap(with_change(adapter.head, normed, change, of_state=self.of_state))


def with_change(
    own: Callable[[Tensor], Tensor],
    normed: Tensor,
    change: tuple[Tensor, Tensor],
    *,
    of_state: bool = False,
) -> Tensor:
    """Logits of a head with a low-rank change (down, up), or of a state so changed."""
    moved = linear(linear(normed, change[0]), change[1])
    return own(normed + moved) if of_state else own(normed) + moved


def check_heads(folder: str) -> None:
    """Refuse a folder that holds no heads, before any model loads."""
    own = folder in SHIPPED
    home = trained_part(folder, METHOD) if own else Path(folder).expanduser()
    read_header(home, METHOD, LAYOUT)


def load_heads(folder: str | Path, loaded: Loaded) -> tuple[dict[int, ExitHead], str]:
    """The heads in `folder` by number of layers run, checked against the model; a fingerprint."""
    addon = open_addon(folder, METHOD, loaded, LAYOUT)
    layers, rank = _options(addon, loaded.staged.n_layers)
    of_state = addon.options.get("of_state", False)
    if type(of_state) is not bool:
        raise ConfigError(
            f"{addon.folder / LAYOUT.header}: of_state {of_state!r}; use true or false"
        )
    heads = {
        layer: take_head(addon, f"layer.{layer}", rank, loaded, of_state=of_state)
        for layer in layers
    }
    addon.close()
    return heads, addon.fingerprint


def _options(addon: Addon, n_layers: int) -> tuple[list[int], int | None]:
    where = addon.folder / LAYOUT.header
    layers, rank = addon.options.get("layers"), addon.options.get("rank")
    if not isinstance(layers, list) or not layers or not all(type(n) is int for n in layers):
        raise ConfigError(f"{where}: layers must be a list of layer numbers")
    if len(set(layers)) < len(layers):
        raise ConfigError(f"{where} names a layer twice: {layers}")
    # The last layer has a head: the model's own.
    outside = [n for n in layers if not 1 <= n < n_layers]
    if outside:
        raise ConfigError(f"{where}: head for layer {outside[0]}; use 1..{n_layers - 1}")
    if rank is not None and (type(rank) is not int or rank < 1):
        raise ConfigError(f"{where}: rank {rank!r}; use 1 or more, or leave it out")
    return layers, rank


def take_head(
    addon: Addon, name: str, rank: int | None, loaded: Loaded, *, of_state: bool = False
) -> ExitHead:
    """The head whose tensors are called `name.weight`, or with a rank `name.down` and `name.up`."""
    vocab, width = loaded.staged.vocab_size, loaded.staged.adapter.head_width
    if rank is None:
        return ExitHead(weight=addon.take(f"{name}.weight", (vocab, width)))
    return ExitHead(
        down=addon.take(f"{name}.down", (rank, width)),
        up=addon.take(f"{name}.up", (width if of_state else vocab, rank)),
        of_state=of_state,
    )


@torch.inference_mode()
def head_rows(loaded: Loaded, ids: Tensor) -> Tensor:
    """The rows of the model's head for these tokens, in whatever form it is held.

    Of a state with a single one it makes a column of its weights, without any rounding but that of
    a bias, which is no part of them.
    """
    adapter = loaded.staged.adapter
    ones = torch.eye(adapter.head_width, dtype=loaded.staged.dtype, device=ids.device)
    columns: Tensor = adapter.head(ones)
    if getattr(adapter.head, "bias", None) is not None:
        columns = columns - adapter.head(torch.zeros_like(ones[:1]))
    return columns[:, ids].mT.contiguous()
