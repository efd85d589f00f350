"""Speculative decoding: a small model of the same vocabulary drafts, the target verifies.

Leviathan et al. 2023, Chen et al. 2023. The small model keeps a cache of its own, rolled
back to what it shares with the committed tokens. The growing and shrinking draft follows
Gante 2023, but starts afresh with each example.

The small model may have prompt tokens of its own (Chen et al. 2024, section 5.3). It then drafts
several tokens in a pass, and just those that it would draft one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.errors import ConfigError, NumericalError, PpdbenchError
from ppdbench.files.publications import arxiv
from ppdbench.files.resources import drafting_for
from ppdbench.methods.base import DRAWN, SIZED, TREE, check_least, left_open, option, strategy
from ppdbench.methods.exits import DRAFTED, ChosenLength, chosen_length
from ppdbench.methods.prompt_tokens.strategy import PromptTokens

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.loop import Prefill, Verified
    from ppdbench.engine.loading import Loaded, ModelSpec
    from ppdbench.engine.session import Session

# Text on which tokenizers of one vocabulary may still differ: spaces, digits, case, bytes.
PROBES = (
    "The quick brown fox didn't jump over 12345 lazy dogs.",
    "  def f(x):\n\treturn {'a': x**2}  # two  spaces\r\n\n",
    "Où est l'été? Größe, naïve, ŁÓDŹ, Ελλάδα, Москва",
    "日本語と中文, 한국어, العربية, 🙂👍🏽, 1.5e-3 ≤ π",
)


@strategy(
    "speculative",
    chains=True,
    papers=(arxiv("2211.17192", "Fast Inference from Transformers via Speculative Decoding"),),
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Speculative:
    """Draft with a second, smaller model of the same vocabulary."""

    draft_model: str = option(
        "", "hub id, folder or synthetic:SPEC of the drafting model", names="model"
    )
    draft_length: int = option(
        0,
        "tokens drafted at most (0: 4; beside a model of more than 12 layers the best by how often "
        "both agree on a short text)",
    )
    confidence: float = option(
        0.0, "draft no further where the likeliest token has less probability (0: off)"
    )
    adaptive: bool = option(False, "shorten drafts after a rejection, lengthen them again after")
    draft_addon: str = option(
        "",
        "prompt tokens trained for draft_model; drafts are then its likeliest tokens",
        names="file",
    )
    draft_tree: str = option("", f"{TREE} for them, as in prompt-tokens", names=SIZED)
    drawn: bool = option(True, DRAWN)

    def __post_init__(self) -> None:
        if not self.draft_model.strip():
            raise ConfigError(
                "speculative: no draft_model; give --set draft_model= a hub id, a local folder "
                "or synthetic:SPEC"
            )
        check_least("speculative", self, draft_length=0)
        if not 0 <= self.confidence < 1:
            raise ConfigError(
                f"speculative: confidence={self.confidence}; use 0 (off) or more, below 1"
            )
        if self.draft_tree and not self.draft_addon:
            raise ConfigError("speculative: draft_tree is for prompt tokens; give draft_addon too")
        if self.confidence and self.draft_addon:
            raise ConfigError(
                "speculative: confidence stops drafts token by token, but with draft_addon several "
                "are drafted at once; leave one out"
            )

    @classmethod
    def parts_of(cls, model: str) -> dict[str, str]:
        """Return the model that came with `model` to draft for it."""
        return drafting_for(model)

    def prepare(self, setup: Setup) -> ModelDrafter:
        """Load the draft model and see that it fits the target and the longest sequence."""
        drafter = self._load(setup)
        difference = tokenizer_difference(setup.target, drafter)
        if difference is not None:
            raise ConfigError(
                f"speculative: draft_model={self.draft_model} has another tokenizer than "
                f"{setup.target.spec.name}: {difference}; use a draft model of the same tokenizer"
            )
        if setup.capacity > drafter.max_positions:
            raise ConfigError(
                f"speculative: sequences of {setup.capacity} tokens, but draft_model="
                f"{self.draft_model} runs {drafter.max_positions} at most; lower "
                "--max-new-tokens, shorten the prompts or use another draft model"
            )
        length = self._length(setup, drafter)
        kind = PromptedDrafter if self.draft_addon else ModelDrafter
        made = kind(replace(self, draft_length=length.count), drafter, setup)
        made.used, made.facts = {"draft_length": str(length.count)}, length.facts()
        made.chosen = left_open(self, draft_length=length.count)
        return made

    def _length(self, setup: Setup, drafter: Loaded) -> ChosenLength:
        """The draft length asked for, or the best; prompt tokens make drafts of any cheap."""
        if self.draft_length or self.draft_addon:
            return ChosenLength(self.draft_length or DRAFTED)
        return chosen_length(setup, self.draft_model, lambda: drafter.staged)

    def _load(self, setup: Setup) -> Loaded:
        try:
            return setup.load(draft_spec(setup, self.draft_model))
        except PpdbenchError as error:
            told = str(error).replace("--model", "draft_model")
            raise ConfigError(f"speculative: draft model: {told}") from error


def draft_spec(setup: Setup, name: str) -> ModelSpec:
    """The draft model as it is loaded beside the target."""
    from ppdbench.engine.loading import ModelSpec

    target = setup.target.spec
    return ModelSpec(name=name, dtype=target.dtype, device=target.device, offline=target.offline)


class ModelDrafter(Proposer):
    """The draft model and its own sequence, kept one pass behind the target's.

    `draft.tokens` are those that its cache holds. Where the target commits an id that the
    draft model has no embedding for, nothing more is drafted in that output.
    """

    def __init__(self, options: Speculative, drafter: Loaded, setup: Setup, spare: int = 0) -> None:
        from ppdbench.engine.session import Session

        assert options.draft_length, "a length is chosen before a drafter is made"
        self.options = options
        self.rows = 1 + options.draft_length
        self.loaded = {"draft_model": drafter.fingerprint}
        self.draft = Session(drafter.staged, setup.capacity, spare=spare)
        self.known = drafter.staged.vocab_size
        self.width = setup.target.staged.vocab_size

    def start(self, session: Session, prefill: Prefill) -> None:
        self._chooser = prefill.drafting(drawn=self.options.drawn)
        self._length = self.options.draft_length
        self._checked = 0  # committed tokens that are known to be the draft model's own
        self._readable = True
        self.draft.reset([])
        # The newest token waits: its pass gives the first drafted one.
        if self._reads(session.tokens):
            self._feed(session.tokens[:-1])

    def propose(self, session: Session, room: int) -> Draft:
        from torch import cat

        if not self._reads(session.tokens):
            return Draft.empty()
        self._rewind(session.tokens)
        pending = session.tokens[self._checked :]
        self._checked = len(session.tokens)
        drafted, drawn = self._drafted(pending, min(room, self._length))
        return Draft.chain(drafted, probabilities=cat(drawn) if drawn else None)

    def _drafted(self, pending: list[int], limit: int) -> tuple[list[int], list[Tensor]]:
        """Up to `limit` tokens after those that wait, and what they were drawn from."""
        drafted: list[int] = []
        drawn: list[Tensor] = []
        while len(drafted) < limit:
            logits = self._after(pending)
            if self._unsure(logits):
                break
            token, source = self._chooser.draw(logits)
            pending = [int(token)]
            drafted += pending
            if source is not None:
                drawn.append(self._widened(source))
        return drafted, drawn

    def learn(self, session: Session, verified: Verified) -> None:
        if not self.options.adaptive or not verified.draft.tokens:
            return
        if len(verified.outcome.path) == len(verified.draft.tokens):
            self._length = min(self.options.draft_length, self._length + 2)
        else:
            self._length = max(1, self._length - 1)

    def _reads(self, tokens: list[int]) -> bool:
        """True if the draft model has embeddings for all tokens so far."""
        self._readable = self._readable and max(tokens[self._checked :]) < self.known
        return self._readable

    def _rewind(self, tokens: list[int]) -> None:
        """Back to the longest common prefix, short of the newest token: its pass is next."""
        held, common = self.draft.tokens, self._checked
        while common < min(len(held), len(tokens) - 1) and held[common] == tokens[common]:
            common += 1
        self._checked = min(common, len(held))
        self.draft.rollback(self._checked)

    def _after(self, tokens: list[int]) -> Tensor:
        """Logits [1, ids that both models have] after `tokens`, which follow what is cached."""
        _, reading = self.draft.run_and_read(tokens)
        self.draft.tokens += tokens
        self._refuse_nan(float(reading.heights[-1]))
        return reading.logits[:, -1, : min(self.known, self.width)]

    def _feed(self, tokens: list[int]) -> None:
        """Run tokens that follow what is cached."""
        self.draft.forward(self.draft.ids(tokens))
        self.draft.tokens += tokens

    def _unsure(self, logits: Tensor) -> bool:
        """True to stop here; it must not depend on the draw, or draws would be biased."""
        confidence = self.options.confidence
        return confidence > 0 and float(logits.float().softmax(-1).amax()) < confidence

    def _refuse_nan(self, number: float) -> None:
        if not math.isfinite(number):
            raise NumericalError(
                f"speculative: NaN or infinite logits of draft_model={self.options.draft_model} "
                f"after {len(self.draft.tokens)} tokens; try --dtype float32 or check its weights"
            )

    def _widened(self, probabilities: Tensor) -> Tensor:
        """Over the target's vocabulary: ids that only it has are never drafted."""
        from torch.nn.functional import pad

        return pad(probabilities, (0, self.width - probabilities.shape[-1]))


class PromptedDrafter(ModelDrafter):
    """A draft model that verifies guesses of prompt tokens of its own.

    The first pass of a draft runs the tokens that wait, which are known and all stay, with a
    chain of prompt tokens behind the last of them.
    """

    def __init__(self, options: Speculative, drafter: Loaded, setup: Setup) -> None:
        prompted = PromptTokens(addon=options.draft_addon, tree=options.draft_tree)
        try:
            its = setup.part(("drafting", drafter.spec), lambda: Setup(drafter, setup.capacity))
            self.inner = prompted.prepare(its)
        except ConfigError as error:
            raise ConfigError(f"speculative: draft_addon: {error}") from error
        super().__init__(options, drafter, setup, spare=self.inner.rows)
        theirs = {f"draft_{name}": told for name, told in self.inner.loaded.items()}
        self.loaded = {**self.loaded, **theirs}

    def _drafted(self, pending: list[int], limit: int) -> tuple[list[int], list[Tensor]]:
        from ppdbench.decoding.loop import Verifier
        from ppdbench.decoding.sampling import GREEDY
        from ppdbench.decoding.verify import keep_all

        if not limit:
            return [], []
        held, first = self.draft.tokens, len(self.draft.tokens) + len(pending)
        verifier = Verifier(self.draft, GREEDY, self.inner.taps, keep_all)
        held.append(pending[0])
        draft = self.inner.behind(pending)
        while True:
            verified = verifier.verify(draft, len(held))
            held += [
                *(draft.tokens[node] for node in verified.outcome.path),
                verified.outcome.token,
            ]
            room = first + limit - len(held) - 1  # besides the token that each pass gives itself
            if room < 0:
                break
            self.inner.learn(self.draft, verified)
            verifier.acceptance = None
            draft = self.inner.propose(self.draft, room) if room else Draft.empty()
        self._refuse_nan(sum(float(sum(rows)) for rows in verifier.peaks.values()))
        drafted = held[first:]
        del held[-1]  # nothing has run it yet
        return list(takewhile(lambda token: token < self.width, drafted)), []


def tokenizer_difference(target: Loaded, drafter: Loaded) -> str | None:
    """The first thing on which two tokenizers disagree, or None if ids mean the same.

    Ids that neither model has do not count.
    """
    width = max(target.staged.vocab_size, drafter.staged.vocab_size)
    ours, theirs = _names(target.tokenizer, width), _names(drafter.tokenizer, width)
    for token in sorted(ours.keys() | theirs.keys()):
        if ours.get(token) != theirs.get(token):
            return (
                f"id {token} is {_shown(theirs.get(token))} there and "
                f"{_shown(ours.get(token))} in the target"
            )
    for text in PROBES:
        a, b = _encoded(target.tokenizer, text), _encoded(drafter.tokenizer, text)
        if a != b:
            place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
            told = f"ids {b[place : place + 4]} there and {a[place : place + 4]} in the target"
            return f"{text!r} becomes, from token {place} on, {told}"
    return None


def _names(tokenizer: Any, width: int) -> dict[int, str]:
    return {token: name for name, token in tokenizer.get_vocab().items() if token < width}


def _shown(name: str | None) -> str:
    return "missing" if name is None else repr(name)


def _encoded(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids
