"""Early exit: read every token out of an early layer and leave the rest of the model alone.

Not exact. With a fixed exit (as in LayerSkip, Elhoushi et al. 2024) the model simply ends
there: the prompt too runs through no more layers, and the first token is read out like all
others. With a confidence (CALM, Schuster et al. 2022) each token, the first included, leaves
at the first layer that is sure of it; the prompt runs through all layers, since any later
token may look at its keys anywhere. CALM copies a token's last hidden state to the layers it
did not reach. Here those layers run it when a later token gets there, so that what a layer
sees is never an approximation: the only thing lost is what a deeper layer would have chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.errors import ConfigError
from ppdbench.files.publications import arxiv
from ppdbench.methods.base import check_words, left_open, option, strategy
from ppdbench.methods.exits import ChosenExit, chosen_exit

if TYPE_CHECKING:
    from torch import Tensor

    from ppdbench.decoding.decoded import Decoded
    from ppdbench.decoding.loop import ReadOut
    from ppdbench.engine.masks import Step
    from ppdbench.engine.session import Session

ENOUGH = 0.5  # share of tokens with which an exit that nobody asked for is content
MEASURES = ("softmax", "top", "state")


def exit_layer_of(method: str, asked: int, default: int, n_layers: int) -> int:
    """Return the number of layers up to the exit: `asked`, or `default` where that is 0."""
    if n_layers < 2:
        raise ConfigError(f"{method}: this model has {n_layers} layer; exits take 2 or more")
    if asked >= n_layers:
        raise ConfigError(
            f"{method}: exit_layer={asked}, but this model has {n_layers} layers; "
            f"use 1..{n_layers - 1}"
        )
    return asked or max(1, default)


def check_exit_options(method: str, exit_layer: int, confidence: float) -> None:
    """Refuse what no model could run."""
    if exit_layer < 0:
        raise ConfigError(
            f"{method}: exit_layer={exit_layer}; use 1 or more layers, or 0 for the default"
        )
    if not 0 <= confidence <= 1:
        raise ConfigError(f"{method}: confidence={confidence}; use 0 (off) to 1")


@strategy(
    "early-exit", exact=False, papers=(arxiv("2207.07061", "Confident Adaptive Language Modeling"),)
)
@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    """Read tokens out of an early layer: the same one for all, or one that is sure enough."""

    exit_layer: int = option(
        0,
        "layers run (0: half of them, of more than 12 the first where a short probe finds half "
        "of the tokens); with confidence the fewest (0: one)",
    )
    confidence: float = option(
        0.0, "exit where the measure is above it, 0..1 (0: always at exit_layer)"
    )
    measure: str = option(
        "softmax",
        "softmax: the likeliest token's probability less the second's; top: the likeliest's; "
        "state: cosine of the hidden states before and after the layer",
    )

    def __post_init__(self) -> None:
        check_exit_options("early-exit", self.exit_layer, self.confidence)
        check_words("early-exit", self, measure=MEASURES)

    def exit_in(self, n_layers: int) -> int:
        """The exit asked for; half of the layers, or with a confidence the first."""
        default = 1 if self.confidence else n_layers // 2
        return exit_layer_of("early-exit", self.exit_layer, default, n_layers)

    def prepare(self, setup: Setup) -> EarlyExitDecoder:
        """Settle the exit; there is nothing to load."""
        model = setup.target.staged
        found = ChosenExit(self.exit_in(model.n_layers))
        if not self.exit_layer and not self.confidence:
            found = chosen_exit(setup, found.layers, lambda _, match: min(match, ENOUGH))
        decoder = EarlyExitDecoder(self, found.layers)
        decoder.used, decoder.facts = {"exit_layer": found.told(model.n_layers)}, found.facts()
        decoder.chosen = left_open(self, exit_layer=found.layers)
        return decoder


class EarlyExitDecoder(Decoder):
    """One token after another, each through as many layers as it needs.

    A pass takes one row, and more only where rows that a layer has not seen wait for it.
    """

    def __init__(self, options: EarlyExit, first: int) -> None:
        self.options = options
        self.first = first

    def decode(self, session: Session, request: Request) -> Decoded:
        """Decode until a limit; no token is proposed, so none is accepted."""
        from ppdbench.decoding.loop import token_by_token

        return token_by_token(session, self._descent(session), request)

    def _descent(self, session: Session) -> Descent:
        if self.options.confidence:
            return ConfidentDescent(session, self.first, self.options)
        return Descent(session, self.first)


class Descent:
    """One sequence through the first layers only; those above never see it."""

    def __init__(self, session: Session, first: int) -> None:
        self.session = session
        self.first = first

    def prompt(self) -> ReadOut:
        """Run the prompt; what its last token leads to."""
        hidden = self._enter(*self._prompt(), self.first)
        return self._leave_at(self.first, hidden[:, -1:])

    def token(self, token: int) -> ReadOut:
        """Run one more token."""
        from ppdbench.decoding.loop import ReadOut

        ids = self.session.ids([token])
        _, reading = self.session.run_to_exit(ids, self.first, self._next())
        return ReadOut(reading, self.first)

    def _prompt(self) -> tuple[Tensor, Step]:
        tokens = self.session.tokens
        return self.session.ids(tokens), self.session.steps.prefill(len(tokens))

    def _next(self) -> Step:
        # Layer 0 alone is sure to hold every token so far.
        return self.session.chain(1, start=self.session.cache.length(0))

    def _enter(self, tokens: Tensor, step: Step, layers: int) -> Tensor:
        """The first `layers` layers over `tokens` [1, n]."""
        return self.session.run(self.session.embed(tokens, step), 0, layers, step)

    def _leave_at(self, depth: int, hidden: Tensor) -> ReadOut:
        """Read out the newest row, [1, 1, hidden], as what it is after so many layers."""
        from ppdbench.decoding.loop import ReadOut

        return ReadOut(self.session.read(hidden), depth)


class ConfidentDescent(Descent):
    """One sequence, each token through layers until one of them is sure.

    No layer holds more rows than the one below it. `_waiting[j]` keeps what the layers below
    gave for the rows that layer j has yet to run, [1, n, hidden] in pieces.
    """

    def __init__(self, session: Session, first: int, options: EarlyExit) -> None:
        super().__init__(session, first)
        self.options = options
        self.n_layers = session.model.n_layers
        self._waiting: dict[int, list[Tensor]] = {j: [] for j in range(self.n_layers)}

    def prompt(self) -> ReadOut:
        tokens, step = self._prompt()
        below = self.first - 1
        hidden = self._enter(tokens, step, below)
        states = [hidden[:, -1:]]

        def tap(_: int, out: Tensor) -> None:
            states.append(out[:, -1:])

        self.session.run(hidden, below, self.n_layers, step, tap=tap)
        return self._leave(iter(states))

    def token(self, token: int) -> ReadOut:
        hidden = self._enter(self.session.ids([token]), self._next(), self.first - 1)
        return self._leave(self._layer_by_layer(hidden))

    def _leave(self, states: Iterator[Tensor]) -> ReadOut:
        """The first exit that is sure; `states` [1, 1, hidden] begin one layer before it."""
        before = next(states)
        for depth, hidden in enumerate(states, start=self.first):
            if depth == self.n_layers:
                return self._leave_at(depth, hidden)
            # Hidden states are compared without the head, which then waits for its turn.
            found = None if self.options.measure == "state" else self._leave_at(depth, hidden)
            if self._sure(before, hidden, found):
                return self._leave_at(depth, hidden) if found is None else found
            before = hidden
        raise AssertionError("no state after the last layer")

    def _sure(self, before: Tensor, hidden: Tensor, found: ReadOut | None) -> bool:
        if found is not None:
            return self._certainty(found.reading.logits) > self.options.confidence
        states = map(self.session.model.adapter.state, (before, hidden))
        return _cosine(*states) > self.options.confidence

    def _layer_by_layer(self, hidden: Tensor) -> Iterator[Tensor]:
        """The newest row after each layer, computed when asked for."""
        self._waiting[self.first - 1].append(hidden)
        yield hidden
        for layer in range(self.first - 1, self.n_layers):
            yield self._catch_up(layer)

    def _catch_up(self, layer: int) -> Tensor:
        """Run all rows that wait for `layer`; the newest of them afterwards, [1, 1, hidden]."""
        import torch

        session = self.session
        rows = torch.cat(self._waiting[layer], dim=1)
        self._waiting[layer].clear()
        # In a fixed shape a pass takes no more rows than that.
        for piece in torch.split(rows, session.fixed_rows or rows.shape[1], dim=1):
            step = session.chain(piece.shape[1], start=session.cache.length(layer))
            out = session.run(piece, layer, layer + 1, step)
            if layer + 1 < self.n_layers:
                self._waiting[layer + 1].append(out)
        return out[:, -1:]

    def _certainty(self, logits: Tensor) -> float:
        """Return how far the likeliest token stands out, 0..1."""
        import torch

        best = torch.softmax(logits[0, 0].float(), -1).topk(2).values.tolist()
        return float(best[0] - best[1] if self.options.measure == "softmax" else best[0])


def _cosine(before: Tensor, after: Tensor) -> float:
    """The cosine of two hidden states, at most 1 whatever rounding says."""
    import torch

    a, b = before[0, -1].float(), after[0, -1].float()
    return min(1.0, float(torch.cosine_similarity(a, b.to(a.device), dim=0)))
