"""LayerSkip: the model's own first layers draft, its other layers check.

Elhoushi et al. 2024, self-speculative decoding. A draft comes from layers [0, E), read out
through the shared norm and head. Those layers are the same for drafting and checking, so that
their cache rows and the hidden states at the exit are kept: checking starts at layer E, and
nothing is computed twice. Works on any model, but pays on those trained to exit early.

What is reused can be taken away for comparison. `kvq` is all of the above; `kv` still keeps
one cache for both, but checking runs layers [0, E) again; with `none` the draft moreover has
a cache of its own, with a prefill of its own, as when two models of equal weights are used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Computed, Draft
from ppdbench.errors import ConfigError
from ppdbench.files.publications import LAYERSKIP
from ppdbench.methods.base import DRAWN, check_least, check_words, left_open, option, strategy
from ppdbench.methods.early_exit import check_exit_options, exit_layer_of
from ppdbench.methods.exits import CountedExit, chosen_drafts

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.decoding.sampling import Chooser
    from ppdbench.engine.cache import KVCache
    from ppdbench.engine.masks import Step, StepMaker
    from ppdbench.engine.reading import Reading
    from ppdbench.engine.session import Session

REUSES = ("kvq", "kv", "none")


@strategy("layerskip", chains=True, papers=(LAYERSKIP,))
@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSkip:
    """Draft with the model's own first layers, check with the others."""

    exit_layer: int = option(
        0, "layers that draft (0: a quarter of them, of more than 12 the best by a short probe)"
    )
    draft_length: int = option(
        0,
        "tokens drafted at most (0: 4, of more than 12 layers the best by that probe); where it "
        "starts if adaptive",
    )
    confidence: float = option(
        0.0, "draft no further where no token has this probability, 0..1 (0: off)"
    )
    adaptive: bool = option(
        False, "draft one token more after a draft fully accepted, one less after any other"
    )
    max_draft: int = option(12, "tokens drafted at most if adaptive")
    reuse: str = option(
        "kvq",
        "kvq: nothing is computed twice; kv: checking runs the drafting layers again; "
        "none: drafting also has a cache of its own",
    )
    drawn: bool = option(True, DRAWN)

    def __post_init__(self) -> None:
        check_exit_options("layerskip", self.exit_layer, self.confidence)
        check_least("layerskip", self, draft_length=0, max_draft=1)
        if self.adaptive and self.max_draft < self.draft_length:
            raise ConfigError(
                f"layerskip: max_draft={self.max_draft} is below draft_length="
                f"{self.draft_length}; use {self.draft_length} or more"
            )
        check_words("layerskip", self, reuse=REUSES)

    def exit_in(self, n_layers: int) -> int:
        """The exit asked for, or a quarter of the layers."""
        return exit_layer_of("layerskip", self.exit_layer, n_layers // 4, n_layers)

    def prepare(self, setup: Setup) -> SelfSpeculation:
        """Settle the exit; make the second cache if there is to be one."""
        model, found = setup.target.staged, self._chosen(setup)
        layers = found.exit.layers
        own = None
        if self.reuse == "none":
            own = model.new_cache(setup.capacity, layers=range(layers))
        drafter = SelfSpeculation(replace(self, draft_length=found.count), layers, own)
        drafter.used, drafter.facts = found.drafting(model.n_layers), found.exit.facts()
        drafter.chosen = left_open(self, exit_layer=layers, draft_length=found.count)
        return drafter

    def _chosen(self, setup: Setup) -> CountedExit:
        """The exit and the draft length asked for, or the fastest by what was probed."""
        by_depth = self.exit_in(setup.target.staged.n_layers)
        found = chosen_drafts(setup, self.exit_layer, self.draft_length, by_depth)
        most = self.max_draft if self.adaptive else found.count
        return replace(found, count=min(found.count, most))


class SelfSpeculation(Proposer):
    """Runs the layers below the exit ahead of the others, token by token."""

    _chooser: Chooser

    def __init__(
        self, options: LayerSkip, exit_layer: int, own: tuple[KVCache, StepMaker] | None = None
    ) -> None:
        assert options.draft_length, "a length is chosen before a drafter is made"
        self.options = options
        self.exit_layer = exit_layer
        self.longest = options.max_draft if options.adaptive else options.draft_length
        self.rows = 1 + self.longest
        self._own = own
        self._length = options.draft_length

    def start(self, session: Session, prefill: Prefill) -> None:
        self._chooser = prefill.drafting(drawn=self.options.drawn)
        self._length = self.options.draft_length
        if self._own is not None:
            self._own[0].truncate(0)
            self._run(session, session.ids(session.tokens[:-1]))

    def propose(self, session: Session, room: int) -> Draft:
        import torch

        given = session.ids(self._unseen(session))
        states: list[Tensor] = []
        tokens: list[Tensor] = []
        drawn: list[Tensor] = []
        while len(tokens) < min(room, self._length):
            hidden, reading = self._run_and_read(session, given)
            states.append(hidden)
            if self._unsure(reading.logits[:, -1]):
                break
            given, probabilities = self._chooser.draw_last(reading)
            tokens.append(given)
            if probabilities is not None:
                drawn.append(probabilities)
        # Only now does the host wait for the tokens, all at once.
        ids = torch.cat(tokens, dim=1)[0].tolist() if tokens else []
        return Draft.chain(
            ids,
            computed=self._computed(session, states, tokens),
            probabilities=torch.cat(drawn) if drawn else None,
        )

    def learn(self, session: Session, verified: Verified) -> None:
        n = len(verified.draft)
        if self.options.adaptive and n:
            longer = len(verified.outcome.path) == n
            self._length = max(1, min(self.longest, self._length + (1 if longer else -1)))

    def _unseen(self, session: Session) -> list[int]:
        """The tokens that the drafting layers have yet to run.

        The newest; in a cache of their own the one before as well, after a draft fully accepted.
        """
        cache = self._cache(session)
        cache.truncate(session.cached)
        return session.tokens[cache.length(0) :]

    def _run_and_read(self, session: Session, ids: Tensor) -> tuple[Tensor, Reading]:
        """Run the layers below the exit over the tokens that follow, and read out.

        Of the states it returns the last, [1, 1, hidden].
        """
        cache, step = self._cache(session), self._step(session, ids.shape[1])
        hidden, reading = session.run_to_exit(ids, self.exit_layer, step, cache=cache)
        return hidden[:, -1:], reading

    def _run(self, session: Session, ids: Tensor) -> Tensor:
        """The same without a readout: the last state."""
        cache, step = self._cache(session), self._step(session, ids.shape[1])
        hidden = session.embed(ids, step)
        return session.run(hidden, 0, self.exit_layer, step, cache=cache)[:, -1:]

    def _step(self, session: Session, n: int) -> Step:
        """A pass of the next `n` tokens through these layers."""
        first = self._cache(session).length(0)
        return session.chain(n, start=first) if self._own is None else self._own[1].chain(first, n)

    def _cache(self, session: Session) -> KVCache:
        return session.cache if self._own is None else self._own[0]

    def _unsure(self, logits: Tensor) -> bool:
        """True if not even the likeliest token is likely enough.

        Asked before a token is drawn: to drop one for what it turned out to be would skew
        sampled outputs.
        """
        import torch

        confidence = self.options.confidence
        return confidence > 0 and float(torch.softmax(logits.float(), -1).amax()) < confidence

    def _computed(
        self, session: Session, states: list[Tensor], tokens: list[Tensor]
    ) -> Computed | None:
        """Return the work that checking need not repeat; the newest draft has to run for it."""
        import torch

        if self.options.reuse != "kvq":
            return None
        if len(states) == len(tokens):
            states.append(self._run(session, tokens[-1]))
        return Computed(torch.cat(states, dim=1), self.exit_layer)
