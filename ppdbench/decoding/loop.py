"""The decoding loop: prefill, then propose, verify and commit until a limit is reached.

Every step ends by reading its tokens, which is the only point where host and device meet;
the clock is read there and, once more, between drafting and verifying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ppdbench.decoding.draft import EMPTY, Draft
from ppdbench.decoding.limits import Finish, Limits
from ppdbench.decoding.passes import run_pass
from ppdbench.decoding.sampling import GREEDY, Chooser
from ppdbench.decoding.verify import Acceptance, Outcome, accept_greedy, accept_sampled
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.staged import Tap
from ppdbench.errors import NumericalError
from ppdbench.machine.clock import Clock

if TYPE_CHECKING:
    from ppdbench.decoding.decoder import Proposer


@dataclass(frozen=True, slots=True)
class Pipelined:
    """How Predictive Pipelined Decoding came about.

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
    `len(output_ids) == 1 + sum(accepted) + len(accepted)`, less one where a limit ended the
    output at a drafted token. `draft_ms` is the part of each step before its verification;
    `rows` holds the query rows of each pass, and `trees` says whether any draft branched;
    `inserted` says of each pass after how many layers how many of its rows joined it;
    `exits` how many layers each token ran through, where a method leaves some out. `parts`
    are the lengths that the prompt was run in, where it was not run as a whole. `wall_ms` is how
    long all of it took and `prompt_ms` the prompt at least, seen from outside; `aside_ms` is what
    came before the prompt and after the last token where several units work: making them ready,
    and collecting what they noted. `profile` says where the steps spent their time, where that
    was asked for.
    """

    output_ids: tuple[int, ...]
    proposed: tuple[int, ...]
    accepted: tuple[int, ...]
    prefill_ms: float
    step_ms: tuple[float, ...]
    finish: Finish
    draft_ms: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    trees: bool = False
    inserted: tuple[tuple[tuple[int, int], ...], ...] = ()
    exits: tuple[int, ...] = ()
    parts: tuple[int, ...] = ()
    pipelined: Pipelined | None = None
    wall_ms: float = 0.0
    prompt_ms: float = 0.0
    aside_ms: float = 0.0
    profile: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Opening:
    """What a strategy learns of a new sequence besides its tokens.

    `taps` holds what the layers that it asked for gave over the prompt: [1, n, hidden].
    """

    chooser: Chooser
    taps: dict[int, Tensor]


@dataclass(frozen=True, slots=True)
class Verified:
    """What a pass over a draft found, for the strategy to learn from.

    `predictions` holds the model's most likely token after the newest token, then after each
    node of the draft. `rows` [1, row, hidden] is what the last layer gave for all rows of the
    pass: the newest token, the nodes, then what was inserted; `states` the same for the layers
    that the strategy asked for.
    """

    draft: Draft
    outcome: Outcome
    predictions: tuple[int, ...]
    rows: Tensor
    states: dict[int, Tensor]

    @property
    def hidden(self) -> Tensor:
        """What the last layer gave for the newest token and each node: [1, 1 + n, hidden]."""
        return self.draft.of_tokens(self.rows)

    @property
    def taps(self) -> dict[int, Tensor]:
        """The same for the layers that the strategy asked for."""
        return {layer: self.draft.of_tokens(given) for layer, given in self.states.items()}

    @property
    def last(self) -> int:
        """The row of the last token that was kept."""
        return 1 + self.outcome.path[-1] if self.outcome.path else 0

    @property
    def first_inserted(self) -> int:
        """The first row of the draft's insertions."""
        return 1 + len(self.draft)


@torch.inference_mode()
def autoregressive(
    session: Session,
    prompt_ids: list[int],
    limits: Limits,
    clock: Clock,
    chooser: Chooser = GREEDY,
) -> Decoded:
    """One token per pass: the reference that every strategy is compared with."""
    session.reset(prompt_ids)
    clock.synchronize()
    before = clock.now()
    reading = session.read(session.run_prompt())
    token = chooser.choose_last(reading)
    output = [int(token)]
    after = clock.now()
    watched(session, 0, reading)
    prefill_ms, step_ms = 1e3 * (after - before), []
    session.tokens.append(output[-1])
    # Collected, not read: whether there was NaN is asked once, at the end.
    peaks = {1: reading.peaks}
    while (finish := limits.finish(output)) is None:
        before = clock.now()
        reading = session.read(session.forward(token))
        token = chooser.choose_last(reading)
        output.append(int(token))
        step_ms.append(1e3 * (clock.now() - before))
        watched(session, len(output) - 1, reading)
        session.tokens.append(output[-1])
        peaks[len(output)] = reading.peaks
    _refuse_nan(session, peaks)
    n = len(step_ms)
    none, one = (0,) * n, (1,) * n
    return Decoded(tuple(output), none, none, prefill_ms, tuple(step_ms), finish, rows=one)


@torch.inference_mode()
def speculative(
    session: Session,
    proposer: Proposer,
    prompt_ids: list[int],
    limits: Limits,
    clock: Clock,
    chooser: Chooser = GREEDY,
) -> Decoded:
    """Propose, verify, commit: any strategy's drafts, the model's own output."""
    session.reset(prompt_ids)
    verifier = Verifier(session, chooser, proposer.taps, proposer.acceptance)
    clock.synchronize()
    before = clock.now()
    output = [verifier.first()]
    session.tokens.append(output[-1])
    proposer.start(session, Opening(chooser, verifier.prompt_taps))
    clock.synchronize()
    prefill_ms = 1e3 * (clock.now() - before)
    proposed, accepted, rows, inserted, step_ms, draft_ms = [], [], [], [], [], []
    trees = False
    while (finish := limits.finish(output)) is None:
        before = clock.now()
        # The token that the model adds itself takes the last place.
        room = limits.max_new_tokens - len(output) - 1
        draft = proposer.propose(session, room) if room else EMPTY
        draft.check(session.model.vocab_size, session.model.n_layers)
        draft = draft.within(room)
        trees = trees or draft.parents is not None
        between = clock.now()
        verified = verifier.verify(draft, len(output) + 1)
        new = [*(draft.tokens[node] for node in verified.outcome.path), verified.outcome.token]
        kept = commit(output, new, limits)
        session.tokens += new[:kept]
        if kept == len(new):
            proposer.learn(session, verified)
        after = clock.now()
        proposed.append(draft.proposed)
        accepted.append(min(kept, len(verified.outcome.path)))
        rows.append(draft.rows)
        inserted.append(tuple((i.layer, len(i)) for i in draft.insertions))
        draft_ms.append(1e3 * (between - before))
        step_ms.append(1e3 * (after - before))
    _refuse_nan(session, verifier.peaks)
    return Decoded(
        tuple(output),
        tuple(proposed),
        tuple(accepted),
        prefill_ms,
        tuple(step_ms),
        finish,
        tuple(draft_ms),
        tuple(rows),
        trees,
        tuple(inserted),
    )


def watched(session: Session, position: int, reading: Reading, path: Sequence[int] = (0,)) -> None:
    """Tell who watches which rows of a pass chose the tokens from output `position` on."""
    if session.watch is not None:
        for place, row in enumerate(path, start=position):
            session.watch.note(place, reading.logits[0, row], session.model.n_layers)


def commit(output: list[int], new: Sequence[int], limits: Limits) -> int:
    """Append tokens one by one, as greedy decoding would, until a limit; how many it took."""
    for count, token in enumerate(new, start=1):
        output.append(token)
        if limits.finish(output) is not None:
            return count
    return len(new)


@dataclass(slots=True)
class Verifier:
    """Runs the model over drafts and leaves in the cache what was accepted."""

    session: Session
    chooser: Chooser
    taps: tuple[int, ...] = ()
    acceptance: Acceptance | None = None
    peaks: dict[int, Tensor] = field(default_factory=dict)  # [1, row] by output position
    prompt_taps: dict[int, Tensor] = field(default_factory=dict)

    def first(self) -> int:
        """Run the prompt; the first token of the output."""
        reading = self.session.read(self.session.run_prompt(tap=self._tap(self.prompt_taps)))
        self.peaks[1] = reading.peaks
        watched(self.session, 0, reading)
        return int(self.chooser.choose_last(reading))

    def verify(self, draft: Draft, position: int) -> Verified:
        """One pass over the newest token and the draft; decides from output `position` on."""
        session, start = self.session, self.session.cached
        tapped: dict[int, Tensor] = {}
        rows = run_pass(session, draft, self._tap(tapped), start)
        reading = session.read(draft.of_tokens(rows))
        self.peaks[position] = reading.peaks
        predictions = tuple(reading.likeliest.tolist()[0])
        if not self.chooser.target.greedy:
            generator = self.chooser.generator
            outcome = accept_sampled(draft, reading.logits[0], self.chooser.target, generator)
        elif self.acceptance is not None:
            outcome = self.acceptance(draft, reading.logits[0], predictions)
        else:
            outcome = accept_greedy(draft, predictions)
        kept = [0, *(1 + node for node in outcome.path)]
        watched(session, position - 1, reading, kept)
        session.cache.keep(start, kept)
        return Verified(draft, outcome, predictions, rows, tapped)

    def _tap(self, into: dict[int, Tensor]) -> Tap | None:
        """Keeps what the layers give that the strategy wants to see."""
        if not self.taps:
            return None

        def tap(layer: int, hidden: Tensor) -> None:
            if layer in self.taps:
                into[layer] = hidden

        return tap


def _refuse_nan(session: Session, peaks: dict[int, Tensor]) -> None:
    try:
        highest = torch.stack([rows.amax() for rows in peaks.values()])
        check_finite(highest, session.model.n_layers, list(peaks))
    except NumericalError:
        session.cache.wipe()
        raise


def check_finite(peaks: Tensor, layer: int, positions: Sequence[int] | None = None) -> None:
    """Refuse outputs that came from NaN or infinite logits; `positions` of outputs, 1, 2, ..."""
    if not bool(torch.isfinite(peaks).all()):
        first = int((~torch.isfinite(peaks)).nonzero()[0, 0])
        position = first + 1 if positions is None else positions[first]
        raise NumericalError(
            f"NaN or infinite logits after layer {layer} at output position {position}; "
            "try --dtype float32 or check the weights"
        )
