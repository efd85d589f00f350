"""Hidden transfer: a matrix turns the state of a token into that of a token still to come.

Wu et al. 2024. Step i has a matrix W and a layer t. For the token at position q, W h, where h
is its state after t layers, is put at position q + i as the state of the token that will stand
there. From layer t on this pseudo state passes the model like any other: it sees the text up
to q and the pseudo states of earlier steps for the same q. What the model's own head makes of
it in the end is the guess at distance i.

A folder that `train hidden-transfer` wrote holds `step.1`, `step.2`, ... [hidden, hidden], and
in its options the layer of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from ppdbench.engine.addons import Addon, open_addon
from ppdbench.engine.loading import Loaded
from ppdbench.engine.masks import Step, behind
from ppdbench.errors import ConfigError
from ppdbench.files.keys import Keys

METHOD = "hidden-transfer"

# Runs layers [first, last) over rows [batch, row, hidden] that are no tokens.
RunLayers = Callable[[Tensor, int, int, Step], Tensor]


@dataclass(frozen=True)
class TransferMatrices:
    """The matrix of each step and the number of layers after which it is applied."""

    layers: tuple[int, ...]
    matrices: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.layers)

    def first(self, steps: int) -> TransferMatrices:
        """Return its first steps alone."""
        return TransferMatrices(self.layers[:steps], self.matrices[:steps])

    def state(self, step: int, hidden: Tensor) -> Tensor:
        """Pseudo states of a step, counted from 0."""
        return linear(hidden, self.matrices[step].to(hidden))


def check_layers(layers: Sequence[int], n_layers: int) -> None:
    """Refuse layers at which a model of `n_layers` cannot transfer one step after the other."""
    outside = [layer for layer in layers if not 1 <= layer < n_layers]
    if outside:
        raise ConfigError(
            f"{METHOD} after layer {outside[0]}, but this model has {n_layers} layers; use "
            f"1..{n_layers - 1}"
        )
    if not layers or list(layers) != sorted(layers):
        raise ConfigError(
            f"{METHOD} after layers {', '.join(map(str, layers)) or 'none'}; name one for each "
            "step, none below the one before"
        )


def load_transfer(folder: str | Path, loaded: Loaded) -> tuple[TransferMatrices, Path, str]:
    """The transfer in `folder`, where it lies, and its fingerprint."""
    loaded.staged.adapter.check_one_state(METHOD)
    addon = open_addon(folder, METHOD, loaded)
    fingerprint = addon.fingerprint
    transfer = read_transfer(addon, loaded.staged.n_layers, loaded.staged.hidden_size)
    return transfer, addon.folder, fingerprint


def read_transfer(addon: Addon, n_layers: int, size: int) -> TransferMatrices:
    """The transfer that an add-on of a model of so many layers holds; the add-on is closed."""
    keys = Keys(addon.options, f"{addon.folder}, options")
    layers = keys.items("layers")
    with keys.telling():
        if not all(type(layer) is int for layer in layers):
            raise ConfigError("layers must be a list of layer numbers")
        check_layers(layers, n_layers)
    matrices = [addon.take(f"step.{i + 1}", (size, size)) for i in range(len(layers))]
    addon.close()
    return TransferMatrices(tuple(layers), tuple(matrices))


@dataclass(frozen=True)
class PseudoStatePass:
    """The pass over pseudo states made of a text that the model has run already.

    `places` are tokens of the text, `steps` the steps made for each, counted from 1. Step i
    also sees the `known` tokens after its place, as in training, where these are not left to
    guess. `masked`: later steps do not see earlier ones. No row stands beyond position `last`.
    """

    places: Tensor
    steps: tuple[int, ...]
    length: int
    last: int
    known: int = 0
    masked: bool = False

    def step(self, n: int) -> Step:
        """The pass over the first `n` of the steps, one step's rows after another's."""
        count = len(self.places)
        row = torch.arange(n * count, device=self.places.device)
        same = row[:, None] % count == row % count
        earlier = row[:, None] == row if self.masked else row[:, None] >= row
        ahead = self.places.new_tensor(self.steps[:n]).repeat_interleave(count)
        places = self.places.repeat(n)
        positions = (places + ahead).clamp(max=self.last)
        return behind(self.length, places + self.known, positions, same & earlier)


def transferred(
    transfer: TransferMatrices,
    states: Mapping[int, Tensor],
    where: PseudoStatePass,
    n_layers: int,
    run: RunLayers,
) -> Tensor:
    """Return the last layer's output for pseudo states: [batch, step, place, hidden].

    `states` [batch, length, hidden] are what the text gave after each layer of the transfer.
    """
    rows = next(iter(states.values()))[:, :0]
    for i, layer in enumerate(transfer.layers):
        new = transfer.state(i, states[layer][:, where.places])
        until = transfer.layers[i + 1] if i + 1 < len(transfer) else n_layers
        rows = run(torch.cat([rows, new], dim=1), layer, until, where.step(i + 1))
    return rows.reshape(len(rows), len(transfer), len(where.places), rows.shape[-1])
