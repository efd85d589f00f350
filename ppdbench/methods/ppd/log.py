"""A unit's log: its work by time, for the picture of a timeline and the cost of communication."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

DRAWN_TOKENS = 12  # how many tokens of an output a timeline can show

Event = tuple[str, str, int, float, float]  # unit, what, for which token, from, to (seconds)


@dataclass(slots=True)
class UnitReport:
    """A unit's report after an output."""

    communication_s: float = 0.0
    events: list[Event] = field(default_factory=list)


class UnitLog:
    """Notes of one unit, kept for the first tokens only, so that long outputs cost nothing."""

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.events: list[Event] = []

    def note(self, what: str, token: int, began: float) -> None:
        """`what` was done for output `token` (1, 2, ...) since `began`."""
        if token <= DRAWN_TOKENS:
            self.events.append((self.unit, what, token, began, time.perf_counter()))
