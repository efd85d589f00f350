"""Tokens that are read but not learned from, such as those of prompts.

Where a text says how far a prompt goes, its tokens are written as ~id, below zero, so that a row of
ids says both what stands there and what is learned from. What drafts for a model is asked for
guesses in answers alone: a guess counts where the token behind its place and the one that it
guesses are both of an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IGNORED = -100  # a target that cross entropy leaves out


def marked(prompt: Sequence[int], answer: Sequence[int]) -> list[int]:
    """A row of ids whose first ones are not learned from."""
    return [*(~token for token in prompt), *answer]


def plain_ids(ids: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The ids of all tokens, those that are not learned from among them."""
    return np.where(ids < 0, ~ids, ids)


def unmarked(blocks: Tensor) -> tuple[Tensor, Tensor | None]:
    """Tokens [batch, n] of blocks, and which of them are learned from; None where all are."""
    learned = blocks >= 0
    if bool(learned.all()):
        return blocks, None
    return torch.where(learned, blocks, ~blocks), learned


def learned_places(blocks: Tensor) -> Tensor:
    """Count the places [batch] of blocks whose guesses of the next token are learned from."""
    return (blocks[:, 1:] >= 0).sum(1)


def places(learned: Tensor | None, distance: int) -> Tensor | None:
    """Places [batch, n - 1 - distance] of blocks [batch, n] whose guesses at a distance count.

    At distance 0 a place guesses the token behind it, at distance 1 the one after that.
    """
    if learned is None:
        return None
    behind = learned[:, 1 : max(1, learned.shape[1] - distance)]
    return behind & learned[:, 1 + distance :]


def picked(values: Tensor, chosen: Tensor | None) -> Tensor:
    """Values [batch, place, ...] at chosen places, one after another; as they are without."""
    return values if chosen is None else values[chosen]


class ReadAhead:
    """Readouts of a model's states [batch, place, width], each place made once.

    `at` hands it out for guesses at a distance, in the order of `picked`.
    """

    def __init__(
        self, states: Tensor, learned: Tensor | None, readout: Callable[[Tensor], Tensor]
    ) -> None:
        chosen, self.learned = places(learned, 0), learned
        self.found = readout(picked(states, chosen))
        self.rows = None if chosen is None else chosen.flatten().cumsum(0).view_as(chosen) - 1

    def at(self, distance: int) -> Tensor:
        """The readout so far ahead of each place that counts at this distance."""
        if self.rows is None:
            return self.found[:, distance:]
        return self.found[picked(self.rows[:, distance:], places(self.learned, distance))]
