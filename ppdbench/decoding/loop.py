"""The decoding loop: prefill, then propose, verify and commit until a limit is reached.

Every step ends by reading its tokens, which is the only point where host and device meet;
the clock is read there and, once more, between drafting and verifying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from math import isfinite
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol

import torch
from torch import Tensor

from ppdbench.decoding.decoded import Decoded, StepRecord
from ppdbench.decoding.draft import EMPTY, Draft
from ppdbench.decoding.limits import Finish, Limits
from ppdbench.decoding.passes import run_and_read
from ppdbench.decoding.sampling import GREEDY, Chooser
from ppdbench.decoding.verify import Acceptance, Outcome, accept_greedy, accept_sampled
from ppdbench.engine.reading import Heights, Reading
from ppdbench.engine.session import Session
from ppdbench.engine.taps import StateTap, Tap
from ppdbench.errors import NumericalError
from ppdbench.machine.threads import threads

if TYPE_CHECKING:
    from ppdbench.decoding.decoder import Proposer, Request

Given = ParamSpec("Given")
Loop = Callable[Concatenate[Session, Given], Decoded]


def undisturbed(loop: Loop[Given]) -> Loop[Given]:
    """The same loop, with threads of torch out of the way of passes that are not torch's."""

    @wraps(loop)
    def run(session: Session, /, *given: Given.args, **named: Given.kwargs) -> Decoded:
        if session.model.flat is None:
            return loop(session, *given, **named)
        with threads.lent():
            return loop(session, *given, **named)

    return run


@dataclass(frozen=True, slots=True)
class Prefill:
    """The prefill's results: all that a strategy learns of a new sequence besides its tokens.

    `taps` holds what the layers that it asked for gave over the prompt: [1, n, hidden].
    """

    chooser: Chooser
    taps: dict[int, Tensor]

    def drafting(self, *, drawn: bool) -> Chooser:
        """The one that picks drafted tokens: as the output's are, or always the likeliest."""
        return self.chooser if drawn else GREEDY


@dataclass(frozen=True, slots=True)
class Verified:
    """The results of a pass over a draft, for the strategy to learn from.

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
        """The last layer's output for the newest token and each node: [1, 1 + n, hidden]."""
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


class ReadOut(NamedTuple):
    """The logits of one position, read out after `depth` layers."""

    reading: Reading
    depth: int


class TokenByToken(Protocol):
    """A model, or a part of it, that takes one token per pass."""

    def prompt(self) -> ReadOut:
        """Run the prompt; what its last token leads to."""
        ...

    def token(self, token: int) -> ReadOut:
        """Run one more token."""
        ...


class WholeModel:
    """All layers over the tokens of a session, one row per pass; a tap looks at what they give."""

    def __init__(self, session: Session, tap: Tap | None = None) -> None:
        self._session, self._tap, self._depth = session, tap, session.model.n_layers

    def prompt(self) -> ReadOut:
        """Run the prompt; what its last token leads to."""
        return ReadOut(self._session.read(self._session.run_prompt(tap=self._tap)), self._depth)

    def token(self, token: int) -> ReadOut:
        """Run one more token."""
        _, reading = self._session.run_and_read([token], tap=self._tap)
        return ReadOut(reading, self._depth)


def autoregressive(session: Session, request: Request) -> Decoded:
    """One token per pass: the reference that every strategy is compared with."""
    decoded = token_by_token(session, WholeModel(session), request)
    return replace(decoded, exits=())


@undisturbed
@torch.inference_mode()
def token_by_token(session: Session, model: TokenByToken, request: Request) -> Decoded:
    """One token per pass of `model`, until a limit; no token is drafted."""
    limits, clock, chooser = request.limits, request.clock, request.chooser
    session.reset(request.prompt)
    clock.synchronize()
    before = clock.now()
    read = model.prompt()
    output = [chooser.choose_last(read.reading, session.tokens)]
    prefill_ms = 1e3 * (clock.now() - before)
    tell_watcher(session, 0, read)
    session.tokens.append(output[-1])
    # Records are made at the end, so that no step waits for them.
    times: list[float] = []
    # Collected, not read: whether there was NaN is asked once, at the end.
    depths, peaks = [read.depth], {1: read.reading.heights}
    finish = limits.finish(output)
    while finish is None:
        before = clock.now()
        read = model.token(output[-1])
        output.append(chooser.choose_last(read.reading, session.tokens))
        session.tokens.append(output[-1])
        depths.append(read.depth)
        peaks[len(output)] = read.reading.heights
        finish = limits.finish(output)
        times.append(1e3 * (clock.now() - before))
        tell_watcher(session, len(output) - 1, read)
    refuse_nan(session, peaks, depths)
    steps = tuple(map(StepRecord, times))
    return Decoded(tuple(output), prefill_ms, steps, finish, exits=tuple(depths))


@undisturbed
@torch.inference_mode()
def speculative(session: Session, proposer: Proposer, request: Request) -> Decoded:
    """Propose, verify, commit: any strategy's drafts, the model's own output."""
    limits, clock, chooser = request.limits, request.clock, request.chooser
    session.reset(request.prompt)
    verifier = Verifier(session, chooser, proposer.taps, proposer.acceptance)
    clock.synchronize()
    before = clock.now()
    output = [verifier.first()]
    session.tokens.append(output[-1])
    proposer.start(session, Prefill(chooser, verifier.prompt_taps))
    clock.synchronize()
    prefill_ms = 1e3 * (clock.now() - before)
    steps: list[tuple[Any, ...]] = []  # the fields of a record
    trees = False
    finish = limits.finish(output)
    while finish is None:
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
        kept, finish = commit(output, new, limits)
        session.tokens += new[:kept]
        if kept == len(new):
            proposer.learn(session, verified)
        spent_ms, drafting_ms = 1e3 * (clock.now() - before), 1e3 * (between - before)
        accepted = min(kept, len(verified.outcome.path))
        joined = tuple((i.layer, len(i)) for i in draft.insertions)
        steps.append((spent_ms, draft.rows, draft.proposed, accepted, drafting_ms, joined))
    refuse_nan(session, verifier.peaks)
    # Records are made at the end, so that no step waits for them.
    records = tuple(StepRecord(*step) for step in steps)
    return Decoded(tuple(output), prefill_ms, records, finish, trees)


def tell_watcher(
    session: Session, position: int, read: ReadOut, path: Sequence[int] = (0,)
) -> None:
    """Tell who watches which rows of a pass chose the tokens from output `position` on."""
    if session.watch is not None:
        for place, row in enumerate(path, start=position):
            session.watch.note(place, read.reading.logits[0, row], read.depth)


def commit(output: list[int], new: Sequence[int], limits: Limits) -> tuple[int, Finish | None]:
    """Append tokens one by one, as greedy decoding would, until a limit; how many, and which."""
    for count, token in enumerate(new, start=1):
        output.append(token)
        if (finish := limits.finish(output)) is not None:
            return count, finish
    return len(new), None


@dataclass(slots=True)
class Verifier:
    """Runs the model over drafts and leaves in the cache what was accepted."""

    session: Session
    chooser: Chooser
    taps: tuple[int, ...] = ()
    acceptance: Acceptance | None = None
    peaks: dict[int, Heights] = field(default_factory=dict)  # by output position
    prompt_taps: dict[int, Tensor] = field(default_factory=dict)

    def first(self) -> int:
        """Run the prompt; the first token of the output."""
        reading = self.session.read(self.session.run_prompt(tap=self._tap(self.prompt_taps)))
        self.peaks[1] = reading.heights
        tell_watcher(self.session, 0, ReadOut(reading, self.session.model.n_layers))
        return self.chooser.choose_last(reading, self.session.tokens)

    def verify(self, draft: Draft, position: int) -> Verified:
        """One pass over the newest token and the draft; decides from output `position` on."""
        session, start = self.session, self.session.cached
        tapped: dict[int, Tensor] = {}
        rows, reading = run_and_read(session, draft, self._tap(tapped), start)
        self.peaks[position] = reading.heights
        predictions = tuple(reading.tokens)
        if not self.chooser.target.greedy:
            target, generator = self.chooser.target, self.chooser.generator
            logits = reading.logits[0]
            accept = self.chooser.rule or accept_sampled
            outcome = accept(draft, logits, target, generator, session.tokens)
        elif self.acceptance is not None:
            outcome = self.acceptance(draft, reading.logits[0], predictions)
        else:
            outcome = accept_greedy(draft, predictions)
        kept = [0, *(1 + node for node in outcome.path)]
        tell_watcher(session, position - 1, ReadOut(reading, session.model.n_layers), kept)
        session.cache.keep(start, kept)
        return Verified(draft, outcome, predictions, rows, tapped)

    def _tap(self, into: dict[int, Tensor]) -> Tap | None:
        """Keeps what the layers give that the strategy wants to see."""
        return StateTap(self.taps, into) if self.taps else None


def refuse_nan(
    session: Session, peaks: dict[int, Heights], depths: Sequence[int] | None = None
) -> None:
    """Refuse an output any of whose tokens was chosen from NaN, and forget what was written."""
    try:
        check_finite(list(peaks.values()), depths or session.model.n_layers, list(peaks))
    except NumericalError:
        session.wipe()  # what was written must not enter later products
        raise


def check_finite(
    peaks: Sequence[Heights], depth: int | Sequence[int], positions: Sequence[int] | None = None
) -> None:
    """Refuse outputs that came from NaN or infinite logits; `peaks` are those of each pass.

    `depth` is after how many layers each was read out, or all were; `positions` are those of
    outputs, which begin with 1.
    """
    if any(isinstance(rows, Tensor) for rows in peaks):  # a device is asked once for all
        highest = torch.stack([torch.as_tensor(rows).amax() for rows in peaks])
        finite = torch.isfinite(highest).tolist()
    else:
        finite = [all(map(isfinite, rows)) for rows in peaks]
    if not all(finite):
        first = finite.index(False)
        position = first + 1 if positions is None else positions[first]
        layer = depth if isinstance(depth, int) else depth[first]
        raise no_numbers(layer, position)


def no_numbers(layer: int, position: int) -> NumericalError:
    """The error of an output whose token at a position, from 1 on, came from NaN or infinity."""
    return NumericalError(
        f"NaN or infinite logits after layer {layer} at output position {position}; "
        "try --dtype float32 or check the weights"
    )
