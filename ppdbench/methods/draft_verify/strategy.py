"""Draft & Verify: the model drafts for itself with some of its blocks left out.

Zhang et al. 2023. A draft runs over the exact cache rows of what is committed and writes rows
of its own behind them, which the verifying pass overwrites. It ends at a token that the
drafting model holds less likely than a threshold, and the threshold follows how much of
earlier drafts of the same output was accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.errors import ConfigError
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import DRAWN, check_least, option, strategy
from ppdbench.methods.draft_verify.skip_file import SkipSet, pick, read_skips

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.decoding.sampling import Chooser
    from ppdbench.engine.session import Session
    from ppdbench.engine.skipping import SkippedModel

# The constants that the authors published with their method.
RATE_MEMORY = 0.5  # beta 1: weight of the past in the smoothed acceptance rate
STEP = 0.01  # epsilon: by how much the threshold wants to move after a draft
THRESHOLD_MEMORY = 0.9  # beta 2: weight of the threshold as it was


@strategy(
    "draft-verify",
    chains=True,
    papers=(
        arxiv(
            "2309.08168",
            "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative "
            "Decoding",
        ),
    ),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class DraftVerify:
    """Draft with the model itself, some of its attention and MLP blocks skipped."""

    skip: str = option(
        "", "skip_layers.json to take the blocks from (a set in the middle)", names="file"
    )
    draft_length: int = option(8, "tokens drafted at most")
    threshold: float = option(0.6, "probability below which a token ends its draft, at first")
    adaptive: bool = option(True, "move the threshold towards the target acceptance")
    target_acceptance: float = option(0.9, "accepted per drafted token that is aimed for")
    drawn: bool = option(True, DRAWN)

    def __post_init__(self) -> None:
        check_least("draft-verify", self, draft_length=1)
        for name in ("threshold", "target_acceptance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"draft-verify: {name}={getattr(self, name)}; use 0 to 1")
        if self.skip:
            read_skips(self._path)

    @property
    def _path(self) -> Path:
        return Path(self.skip).expanduser()

    def prepare(self, setup: Setup) -> SelfDrafter:
        """The blocks to skip, checked against the model."""
        from ppdbench.engine.skipping import SkippedModel

        target = setup.target
        skips, where = SkipSet.default(target.staged.n_layers), "draft-verify: default set"
        if self.skip:
            sets = read_skips(self._path)
            skips = pick(sets, target.spec.name, target.fingerprint, self._path)
            where = f"draft-verify: {self.skip}"
        skips.check(target.staged.n_layers, where)
        skipped = setup.part(
            ("skipped", skips), lambda: SkippedModel(target.staged, skips.attention, skips.mlp)
        )
        drafter = SelfDrafter(self, skipped)
        drafter.used = {"skip": self.skip or skips.told(target.staged.n_layers)}
        return drafter


class MovingThreshold:
    """The probability below which a token ends its draft, moved after every draft."""

    def __init__(self, options: DraftVerify) -> None:
        self.value = options.threshold
        self.rate: float | None = None
        self._options = options

    def learn(self, accepted: int, drafted: int) -> None:
        """Up after drafts that promised too much, down after ones that stopped too soon."""
        fresh = accepted / drafted
        past = fresh if self.rate is None else self.rate
        self.rate = RATE_MEMORY * past + (1 - RATE_MEMORY) * fresh
        if self.rate < self._options.target_acceptance:
            wanted = self.value + STEP
        elif drafted < self._options.draft_length:
            wanted = self.value - STEP
        else:
            return  # it did not stop this draft
        moved = THRESHOLD_MEMORY * self.value + (1 - THRESHOLD_MEMORY) * wanted
        self.value = min(1.0, max(0.0, moved))


class SelfDrafter(Proposer):
    """Drafts token by token with what is left of the model."""

    def __init__(self, options: DraftVerify, skipped: SkippedModel) -> None:
        self.options, self.skipped = options, skipped
        self.rows = 1 + options.draft_length
        self.threshold = MovingThreshold(options)

    def start(self, session: Session, prefill: Prefill) -> None:
        self.threshold = MovingThreshold(self.options)
        self._session = self.skipped.over(session)
        self._chooser: Chooser = prefill.drafting(drawn=self.options.drawn)

    def propose(self, session: Session, room: int) -> Draft:
        import torch

        base, newest = session.cached, session.tokens[-1]
        tokens: list[Tensor] = []
        drawn: list[Tensor] = []
        for row in range(base, base + min(room, self.options.draft_length)):
            _, reading = self._session.run_and_read([newest], self._session.chain(1, row))
            token, probabilities = self._chooser.draw_last(reading)
            newest = int(token)
            # An unlikely token ends the draft but stays in it: to drop what was drawn because
            # of what it is would change what the others were drawn from.
            tokens.append(token)
            if probabilities is not None:
                drawn.append(probabilities)
            likelihoods = torch.softmax(reading.logits[0, -1].float(), -1)
            if float(likelihoods[newest]) < self.threshold.value:
                break
        session.cache.truncate(base)
        ids: list[int] = torch.cat(tokens, dim=1)[0].tolist()
        return Draft.chain(ids, probabilities=torch.cat(drawn) if drawn else None)

    def learn(self, session: Session, verified: Verified) -> None:
        if self.options.adaptive and verified.draft.proposed:
            self.threshold.learn(len(verified.outcome.path), verified.draft.proposed)
