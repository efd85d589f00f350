"""Greedy decoding: one token per pass, the reference for every other method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.methods.base import strategy

if TYPE_CHECKING:
    from ppdbench.decoding.decoded import Decoded
    from ppdbench.engine.session import Session


@strategy("greedy")
@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """The most likely token, one pass each."""

    def prepare(self, setup: Setup) -> Autoregressive:
        """Return the decoder; there is nothing to load."""
        return Autoregressive()


class Autoregressive(Decoder):
    """One row per pass."""

    def decode(self, session: Session, request: Request) -> Decoded:
        """Decode the output that all others are compared with."""
        from ppdbench.decoding.loop import autoregressive

        return autoregressive(session, request)
