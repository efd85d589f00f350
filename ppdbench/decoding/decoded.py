"""One output and how it came about: what a decoder returns, and what a run stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ppdbench.decoding.limits import Finish


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step after the prompt: its time, and what its pass ran over and kept.

    `draft_ms` is the part of `ms` before verification, None where nothing drafts. `rows` are
    the query rows of the pass, and `inserted` says after how many layers how many of them
    joined it.
    """

    ms: float
    rows: int = 1
    proposed: int = 0
    accepted: int = 0
    draft_ms: float | None = None
    inserted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Pipelined:
    """The record of how Predictive Pipelined Decoding made an output.

    `matches` says of each output token whether it was among its candidates. Events are who did
    what for which of the first tokens, from when to when, in ms since the output began.
    """

    matches: tuple[bool, ...]
    communication_ms: float
    events: tuple[tuple[str, str, int, float, float], ...]


@dataclass(frozen=True, slots=True)
class Decoded:
    """One output and how it came about.

    The prefill yields the first token and each step `1 + accepted` more, so
    `len(output_ids) == 1 + sum(accepted) + len(steps)`, less one where a limit ended the
    output at a drafted token. `trees` says whether any draft branched; `exits` how many layers
    each token ran through, where a method leaves some out. `parts` are the lengths that the
    prompt was run in, where it was not run as a whole. `wall_ms` is how long all of it took and
    `prompt_ms` the prompt at least, seen from outside; `aside_ms` is what came before the prompt
    and after the last token where several units work: making them ready, and collecting what
    they noted. `profile` says where the steps spent their time, where that was asked for.
    `experts` are, by rows, how many calls layers of experts had and how many experts those
    touched.
    """

    output_ids: tuple[int, ...]
    prefill_ms: float
    steps: tuple[StepRecord, ...]
    finish: Finish
    trees: bool = False
    exits: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    pipelined: Pipelined | None = None
    wall_ms: float = 0.0
    prompt_ms: float = 0.0
    aside_ms: float = 0.0
    profile: Mapping[str, float] | None = None
    experts: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def step_ms(self) -> tuple[float, ...]:
        """The time of each step."""
        return tuple(step.ms for step in self.steps)

    @property
    def draft_ms(self) -> tuple[float, ...]:
        """The part of each step before its verification; empty where nothing drafts."""
        return tuple(step.draft_ms for step in self.steps if step.draft_ms is not None)

    @property
    def rows(self) -> tuple[int, ...]:
        """The query rows of each pass."""
        return tuple(step.rows for step in self.steps)

    @property
    def inserted(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The rows that joined each pass: after how many layers, how many."""
        return tuple(step.inserted for step in self.steps)

    @property
    def proposed(self) -> tuple[int, ...]:
        """The drafted tokens of each step."""
        return tuple(step.proposed for step in self.steps)

    @property
    def accepted(self) -> tuple[int, ...]:
        """The drafted tokens that each step kept."""
        return tuple(step.accepted for step in self.steps)
