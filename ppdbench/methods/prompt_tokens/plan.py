"""Options of `train prompt-tokens`: what is trained, and against what.

kl is the divergence of the guess from the model's own distribution, reverse-kl its other
direction, which is how the paper writes it; ce takes the text's token instead. Prompt token i
counts `decay` ** (i - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ppdbench.errors import ConfigError
from ppdbench.training.plans import GoingOn, check_decay, option, training_plan

if TYPE_CHECKING:
    from ppdbench.methods.prompt_tokens.network import Chain
    from ppdbench.methods.prompt_tokens.train import PromptsObjective
    from ppdbench.training.run import Material

LOSSES = ("kl", "reverse-kl", "ce")
MEAN, LEARNED = AGGREGATIONS = ("mean", "learned")
MOST = 256  # prompt tokens, and rows of each


@training_plan("prompt-tokens", learning_rate=1e-2, batch_size=4, sequence=1024, warmup_ratio=0.0)
@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan(GoingOn):
    """Rows that guess what follows a token, everything else frozen.

    Defaults are those of the paper on parallel prompt decoding. Afterwards the guesses are
    measured on --held-out text, by distance.

    \b
    ppdbench train prompt-tokens --model ./my-model --text ./corpus.txt --out ./prompts --steps 100
    ppdbench train prompt-tokens --text ./corpus.txt --out ./eight --epts 8 --mask decoder
    ppdbench train prompt-tokens --text ./corpus.txt --out ./second --start ./prompts --custom-head
    """

    method: ClassVar[str] = "prompt-tokens"

    prompts: int = option(3, "Tokens guessed ahead.")
    epts: int = option(1, "Embeddings per prompt token.")
    mask: str = option(
        "ensemble", "What an embedding sees of the others: ensemble, decoder or encoder."
    )
    aggregation: str = option(MEAN, "Of an ensemble: mean or learned.")
    exits: int = option(1, "Last layers averaged.")
    prefix: int = option(0, "Trained keys per prompt token.")
    custom_head: bool = option(False, "A head of their own too; see --start.")
    rank: int = option(0, "Of that head; 0: a whole matrix.")
    of_state: bool = option(
        False, "Of --rank too: change the state before the head, not the head: far fewer numbers."
    )
    loss: str = option("kl", "kl or reverse-kl: the model; ce: the text.")
    decay: float = option(0.8, "Of the weight, token by token.")
    insertions: int = option(16, "Places per sequence and step.")
    start: str | None = option(
        None, "Go on from these; with --custom-head the second stage.", metavar="DIR"
    )

    def __post_init__(self) -> None:
        for name, known in (("aggregation", AGGREGATIONS), ("loss", LOSSES)):
            if getattr(self, name) not in known:
                raise ConfigError(f"--{name} {getattr(self, name)!r}: use {', '.join(known)}")
        for name in ("prompts", "epts", "prefix"):
            if getattr(self, name) > MOST:
                raise ConfigError(f"--{name} {getattr(self, name)}: use {MOST} or less")
        for name, least in (("exits", 1), ("rank", 0), ("insertions", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} {getattr(self, name)}: use {least} or more")
        check_decay(self.decay)
        if self.rank and not self.custom_head:
            raise ConfigError("--rank is of --custom-head; give both or neither")
        if self.of_state and not self.rank:
            raise ConfigError("--of-state is a low-rank change; give --custom-head and --rank too")

    @property
    def chain(self) -> Chain:
        """The rows behind a place."""
        from ppdbench.methods.prompt_tokens.network import Chain

        return Chain(self.prompts, self.epts, self.mask, self.prefix)

    @property
    def n_words(self) -> int:
        """The number of words it takes to begin with."""
        return self.prompts * (self.epts + self.prefix)

    def objective(self, model: Any, material: Material, *, compiled: bool) -> PromptsObjective:
        """Prompt tokens that start as ordinary words."""
        from ppdbench.methods.prompt_tokens.train import PromptsObjective, ordinary_words

        config = material.job.config
        words = ordinary_words(*material.words, self.n_words, config.seed)
        return PromptsObjective(model, self, config.sequence, words, config.seed, compiled=compiled)
