"""Greedy decoding: one token per pass, the reference for every other method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.strategies.base import strategy

if TYPE_CHECKING:
    from ppdbench.bench.clock import Clock
    from ppdbench.decoding.limits import Limits
    from ppdbench.decoding.loop import Decoded
    from ppdbench.engine.session import Session


@strategy("greedy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """The most likely token, one pass each."""

    def decode(
        self, session: Session, prompt_ids: list[int], limits: Limits, clock: Clock
    ) -> Decoded:
        """The reference output."""
        from ppdbench.decoding.loop import autoregressive

        return autoregressive(session, prompt_ids, limits, clock)
