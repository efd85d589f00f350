"""Rows of numbers that tokens carry from layer to layer where that is more than a state.

Some families hand every layer an input of its own, made of the word alone, or the embedded word
once more. Others pass on several states of a token side by side. Between layers all of it lies in
one row of numbers: whoever runs a range of layers, keeps rows or moves them need not know. A row is
taken apart where a layer is called and where it is read out, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

# Below it a length is no longer told from nothing.
SHORTEST = 1e-5


class Carried(Protocol):
    """All that the tokens of one model carry."""

    parts: tuple[str, ...]
    """The modules of the body that make and read it, by their names there."""

    @property
    def width(self) -> int:
        """Numbers that go from layer to layer for a token."""
        ...

    def over(self, body: Any) -> Carried:
        """The same with the modules of another body."""
        ...

    def begin(self, words: Tensor, tokens: Tensor) -> Tensor:
        """Rows [batch, query, width] of embedded words [batch, query, hidden] of `tokens`."""
        ...

    def handed(self, layer: int, rows: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """States as layers take them, and what else this one takes of the rows, by name."""
        ...

    def behind(self, rows: Tensor, states: Tensor, others: Sequence[Any]) -> Tensor:
        """Rows that go on, where a layer that took `rows` gave `states` and `others`."""
        ...

    def state(self, rows: Tensor) -> Tensor:
        """The one state [..., hidden] that is normed and read out."""
        ...


class _Beside:
    """A state, and behind it numbers that all layers hand on."""

    parts: tuple[str, ...] = ()

    def __init__(self, body: Any, config: Any) -> None:
        self.body, self.config = body, config
        self.hidden = int(config.hidden_size)
        self.ahead = self.hidden
        """Numbers of a row that layers change; those behind them stay as they are."""

    def over(self, body: Any) -> Any:
        return type(self)(body, self.config)

    def behind(self, rows: Tensor, states: Tensor, others: Sequence[Any]) -> Tensor:
        return torch.cat([self._row(states), rows[..., self.ahead :]], dim=-1)

    def state(self, rows: Tensor) -> Tensor:
        return rows[..., : self.hidden]

    def _states(self, rows: Tensor) -> Tensor:
        """The states as layers take them."""
        return self.state(rows)

    def _row(self, states: Tensor) -> Tensor:
        """The same as they stand in a row."""
        return states


class WordsAgain(_Beside):
    """A state, and behind it the embedded word itself, which some layers look at once more."""

    @property
    def width(self) -> int:
        return 2 * self.hidden

    def begin(self, words: Tensor, tokens: Tensor) -> Tensor:
        return torch.cat([words, words], dim=-1)

    def handed(self, layer: int, rows: Tensor) -> tuple[Tensor, dict[str, Any]]:
        words = rows[..., self.ahead :]
        return self._states(rows), {"original_hidden_states": words, "layer_idx": layer}


class RouterStates(_Beside):
    """A state in float32 at least, and behind it what the latest router made of the token.

    The router of the next layer adds that to its own.
    """

    @property
    def width(self) -> int:
        return self.hidden + int(self.config.router_hidden_size)

    def begin(self, words: Tensor, tokens: Tensor) -> Tensor:
        body = self.body
        scaled = (words + body.input_hidden_states_bias) * body.input_hidden_states_scale
        wide = scaled.to(torch.promote_types(scaled.dtype, torch.float32))
        routed = wide.new_zeros(*wide.shape[:-1], self.width - self.hidden)
        return torch.cat([wide, routed], dim=-1)

    def handed(self, layer: int, rows: Tensor) -> tuple[Tensor, dict[str, Any]]:
        routed = rows[..., self.hidden :].to(self._narrow)
        return super().state(rows), {"prev_router_hidden_states": routed}

    def behind(self, rows: Tensor, states: Tensor, others: Sequence[Any]) -> Tensor:
        (routed,) = others
        if routed is None:  # there is no router where a layer's MLP is left out
            return super().behind(rows, states, others)
        return torch.cat([states, routed.to(states.dtype)], dim=-1)

    def state(self, rows: Tensor) -> Tensor:
        return super().state(rows).to(self._narrow)

    @property
    def _narrow(self) -> torch.dtype:
        """The type of everything but states."""
        dtype: torch.dtype = self.body.input_hidden_states_scale.dtype
        return dtype


class LayerInputs(_Beside):
    """A state, and behind it an input of its own for every layer."""

    parts: tuple[str, ...] = (
        "embed_tokens_per_layer",
        "per_layer_model_projection",
        "per_layer_projection_norm",
    )

    def __init__(self, body: Any, config: Any) -> None:
        super().__init__(body, config)
        self.each = int(config.hidden_size_per_layer_input)

    @property
    def width(self) -> int:
        return self.ahead + int(self.config.num_hidden_layers) * self.each

    def begin(self, words: Tensor, tokens: Tensor) -> Tensor:
        known = self.body.get_per_layer_inputs(tokens)
        inputs = self.body.project_per_layer_inputs(words, known)
        return torch.cat([self._spread(words), inputs.flatten(-2)], dim=-1)

    def place(self, layer: int) -> tuple[int, int]:
        """The place of a layer's input in a row: its first number, and how many it has."""
        return self.ahead + layer * self.each, self.each

    def handed(self, layer: int, rows: Tensor) -> tuple[Tensor, dict[str, Any]]:
        first, width = self.place(layer)
        return self._states(rows), {"per_layer_input": rows[..., first : first + width]}

    def _spread(self, words: Tensor) -> Tensor:
        """Numbers of a row before the layers' inputs, of embedded words."""
        return words


class StreamsAndInputs(LayerInputs):
    """Several states of a token side by side, and behind them an input for every layer.

    The first is the embedded word. The others are projections of it that keep its size, and are
    projected back in the same way before all are averaged and read out.
    """

    parts = (*LayerInputs.parts, "altup_projections", "altup_unembed_projections")

    def __init__(self, body: Any, config: Any) -> None:
        super().__init__(body, config)
        self.streams = int(config.altup_num_inputs)
        self.ahead = self.streams * self.hidden

    def state(self, rows: Tensor) -> Tensor:
        first, *others = self._states(rows)
        unembed = self.body.altup_unembed_projections
        back = (self._sized(make(each), first) for make, each in zip(unembed, others, strict=True))
        return torch.stack([first, *back]).mean(dim=0)

    def _spread(self, words: Tensor) -> Tensor:
        others = (self._sized(make(words), words) for make in self.body.altup_projections)
        return torch.cat([words, *others], dim=-1)

    @staticmethod
    def _sized(states: Tensor, like: Tensor) -> Tensor:
        """States as large as others, in the mean of their squares."""
        wanted = like.square().mean(dim=-1, keepdim=True) ** 0.5
        own = states.square().mean(dim=-1, keepdim=True).clamp(min=SHORTEST).sqrt()
        return states * wanted / own

    def _states(self, rows: Tensor) -> Tensor:
        """[stream, ..., hidden]."""
        own = rows[..., : self.ahead]
        return own.reshape(*own.shape[:-1], self.streams, self.hidden).movedim(-2, 0)

    def _row(self, states: Tensor) -> Tensor:
        return states.movedim(0, -2).flatten(-2)
