"""Predictive Pipelined Decoding: begin the next token before this one is known.

Yang et al. 2023. The layers up to `exit_after` already tell which tokens may come next: while
the other layers finish the current token, the first layers run for the `k` likeliest. If the
token is one of them, the next one has a head start; if not, nothing is lost but the work.
Outputs are exact: every token is read from the last layer.

Three forms. `split` gives the lower and the upper layers to a process each, one copy of the
weights in all, whatever `k`. `replicated` is the paper's: a whole replica per candidate.
`inline` does the same in one process, one thing after the other, and predicts the latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Setup
from ppdbench.errors import ConfigError
from ppdbench.files.publications import PPD
from ppdbench.methods.base import check_least, check_words, left_open, option, strategy
from ppdbench.methods.exits import CANDIDATES, ChosenExit, CountedExit, chosen_candidates
from ppdbench.theory import check_exit

if TYPE_CHECKING:
    from ppdbench.engine.heads import ExitHead
    from ppdbench.engine.loading import Loaded
    from ppdbench.methods.ppd.forms import Form

NAMES = ("inline", "split", "replicated")


@strategy("ppd", papers=(PPD,))
@dataclass(frozen=True, slots=True, kw_only=True)
class PredictivePipelined:
    """Run the first layers for the likeliest next tokens while the others finish this one."""

    exit_after: int = option(
        0,
        "layers run before candidates are read out, half or more (0: half; of more than 12 layers "
        "where a short probe saves most)",
    )
    k: int = option(
        0,
        "candidates (0: 3; of more than 12 layers as many as each find one token in twenty more)",
    )
    head: str = option(
        "", "folder of trained heads for the early prediction ('': the model's own)", names="file"
    )
    form: str = option(
        "inline", "inline: one process, latency predicted; split: two; replicated: k + 1"
    )
    patience: float = option(60.0, "seconds without an answer after which a unit counts as hung")

    def __post_init__(self) -> None:
        check_least("ppd", self, k=0)
        if self.exit_after < 0:
            raise ConfigError(f"ppd: exit_after={self.exit_after}; use 0 (half) or more")
        check_words("ppd", self, form=NAMES)
        if not self.patience > 0:
            raise ConfigError(f"ppd: patience={self.patience}; use a number of seconds above 0")

    def exit_in(self, n_layers: int) -> int:
        """The exit asked for, or half of the layers."""

        exit_after = self.exit_after or (n_layers + 1) // 2
        check_exit(n_layers, exit_after)
        return exit_after

    def prepare(self, setup: Setup) -> Form:
        """Settle the exit and read the head; units start when the run begins."""
        from ppdbench.methods.ppd.config import PipelineConfig
        from ppdbench.methods.ppd.forms import FORMS

        loaded = setup.target
        if self.k > loaded.staged.vocab_size:
            raise ConfigError(f"ppd: k={self.k}; use 1..{loaded.staged.vocab_size}")
        chosen = self._chosen(setup)
        exit_after = chosen.exit.layers
        head, fingerprint = self._head(loaded, exit_after)
        config = PipelineConfig(
            target=loaded,
            capacity=setup.capacity,
            exit_after=exit_after,
            k=chosen.count,
            head=head,
            patience_s=self.patience,
        )
        form = FORMS[self.form](config)
        form.used = {
            "head": self.head or "the model's own",
            "exit_after": chosen.exit.told(loaded.staged.n_layers),
            "k": str(chosen.count),
        }
        form.chosen = left_open(self, exit_after=exit_after, k=chosen.count)
        form.facts = {**form.facts, **chosen.exit.facts()}
        form.loaded = {"head": fingerprint} if fingerprint else {}
        return form

    def _chosen(self, setup: Setup) -> CountedExit:
        """The exit and the candidates asked for, or those that a probe says save most layers.

        A trained head finds other tokens than the model's own, and none is there for every exit.
        How many replicas there are is for whoever starts them to know beforehand.
        """
        exit_after = self.exit_in(setup.target.staged.n_layers)
        if self.head:
            return CountedExit(ChosenExit(exit_after), self.k or CANDIDATES)
        k = self.k or (CANDIDATES if self.form == "replicated" else 0)
        return chosen_candidates(setup, self.exit_after, k, exit_after)

    def _head(self, loaded: Loaded, exit_after: int) -> tuple[ExitHead | None, str]:
        """The head to read out with, if it is not the model's own, and its fingerprint."""
        if not self.head:
            return None, ""
        from ppdbench.engine.heads import load_heads

        heads, fingerprint = load_heads(self.head, loaded)
        if exit_after not in heads:
            raise ConfigError(
                f"ppd: {self.head} has no head for exit_after={exit_after}; it has "
                f"{', '.join(map(str, sorted(heads)))}"
            )
        return heads[exit_after], fingerprint
