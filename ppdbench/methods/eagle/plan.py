"""Options of `train eagle`: which version of the draft network is trained, and how.

`passes` and `noise` that are left open are the papers': 1 and 0.1 for version 1, else 5 and 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ppdbench.errors import ConfigError
from ppdbench.training.plans import (
    GoingOn,
    check_decay,
    check_loss,
    option,
    training_plan,
)

if TYPE_CHECKING:
    from ppdbench.methods.eagle.train import EagleObjective
    from ppdbench.training.run import Material

VERSIONS = (1, 3)
DISTANCES = 5  # measured afterwards, and the passes of version 3 unless told
MOST = 1 << 20  # of anything that is counted below


@training_plan("eagle", of_states=True, learning_rate=3e-5)
@dataclass(frozen=True, slots=True, kw_only=True)
class EaglePlan(GoingOn):
    """A network of one layer that continues the model's features, everything else frozen.

    Afterwards its guesses are measured on --held-out text, by distance.

    \b
    ppdbench train eagle --model ./my-model --text ./corpus.txt --out ./eagle --steps 100
    ppdbench train eagle --text ./corpus.txt --out ./eagle --version 1 --ffn 512 --dry-run
    """

    method: ClassVar[str] = "eagle"

    version: int = option(3, "1 (also for EAGLE-2's trees) or 3.")
    passes: int | None = option(None, "How far it reads its own guesses in training (1: 1, 3: 5).")
    draft_vocab: int = option(
        0, "Version 3: a head over so many of the commonest tokens; 0: the model's head."
    )
    rank: int = option(
        0,
        "Version 3: low-rank change of the model's head; 0: that head as it is, or a whole matrix "
        "with --draft-vocab.",
    )
    ffn: int = option(0, "Width of its MLP; 0: as wide.")
    loss: str = option("kl", "kl: the model's own distribution; ce: its likeliest token.")
    decay: float = option(0.8, "Of the weight, pass by pass.")
    noise: float | None = option(None, "Half the width of the noise on features (1: 0.1, 3: 0).")
    start: str | None = option(
        None, "Go on from this network and its draft vocabulary.", metavar="DIR"
    )

    def __post_init__(self) -> None:
        if self.version not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise ConfigError(
                f"--version {self.version}: use {known} (2 drafts with what 1 trains)"
            )
        for name, lowest in {"passes": 1, "draft_vocab": 0, "rank": 0, "ffn": 0}.items():
            value = getattr(self, name)
            if value is not None and not lowest <= value <= MOST:
                asked = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{asked} {value}: use {lowest} or more, up to {MOST}")
        if self.version == 1 and (self.draft_vocab or self.rank):
            raise ConfigError("--draft-vocab and --rank: version 1 reads through the model's head")
        check_loss(self.loss)
        check_decay(self.decay)
        if self.noise is not None and not self.noise >= 0:
            raise ConfigError(f"--noise {self.noise}: use 0 or more")

    @property
    def n_passes(self) -> int:
        """The number of passes, the first of them over the model's own features."""
        return self.passes or (1 if self.version == 1 else DISTANCES)

    @property
    def half_width(self) -> float:
        """Half the width of the noise on features."""
        return (0.1 if self.version == 1 else 0.0) if self.noise is None else self.noise

    def objective(self, model: Any, material: Material, *, compiled: bool) -> EagleObjective:
        """The draft network; its own vocabulary are the commonest words of the text."""
        from ppdbench.methods.eagle.train import EagleObjective

        config, words = material.job.config, material.commonest(self.draft_vocab)
        return EagleObjective(
            model, self, config.sequence, config.seed, words=words, compiled=compiled
        )
