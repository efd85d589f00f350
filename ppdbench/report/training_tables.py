"""Tables of a training run for people: what it would need, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ppdbench.report.sheet import Sheet

if TYPE_CHECKING:
    from ppdbench.training.evaluate import ExitQuality, Quality
    from ppdbench.training.run import Forecast


def forecast_sheet(forecast: Forecast) -> Sheet:
    """The answer to `--dry-run`."""
    rows = (
        ("parameters", f"{forecast.parameters:,}"),
        ("of these trained, or added", f"{forecast.trained:,}"),
        ("tokens of text", f"{forecast.tokens:,}"),
        ("steps", f"{forecast.steps:,}"),
        ("passes over the text", f"{forecast.epochs:.2f}"),
        ("memory of the weights", _mib(forecast.weights_bytes)),
        ("memory of what is added", _mib(forecast.added_bytes)),
        ("memory of gradients and optimizer", _mib(forecast.optimizer_bytes)),
        ("memory of a step, estimated", _mib(forecast.passes_bytes)),
        ("memory in all", _mib(forecast.total_bytes)),
        ("memory there is", _mib(forecast.free_bytes)),
        ("seconds per step, measured", _number(forecast.step_seconds)),
        ("hours in all, estimated", _number(_hours(forecast.total_seconds))),
    )
    notes = (
        "Passes keep what the way back needs: it grows with sequences at once and their length.",
        *(() if forecast.short is None else ("It does not fit, so no step was timed.",)),
    )
    return Sheet("Training plan", ("what", "value"), rows, notes=notes)


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def quality_sheet(quality: Sequence[Quality]) -> Sheet:
    """Show the quality of what was trained, on held-out text: by layer, or by distance."""
    from ppdbench.training.evaluate import ExitQuality

    exits = [q for q in quality if isinstance(q, ExitQuality)]
    return _exits(exits) if exits else _distances(quality)


def _distances(quality: Sequence[Quality]) -> Sheet:
    from ppdbench.training.evaluate import CandidateQuality

    compared = isinstance(quality[0], CandidateQuality)
    shares = ("top1", "top3", "top5", "top10")
    names = (*(("layer",) if compared else ()), "distance", "loss", *shares)
    return Sheet(
        "Held-out text, tokens guessed ahead",
        names,
        tuple(tuple(getattr(q, name) for name in names) for q in quality),
        notes=(
            "distance 1: the token after the model's own next one; loss: KL from the model's.",
            "top1 ...: how often the model's likeliest token there is among so many guesses.",
        ),
        percent=frozenset(shares),
    )


def _exits(quality: Sequence[ExitQuality]) -> Sheet:
    """Held-out loss, perplexity and accuracy of every exit."""
    names = ("head", "layer", "loss", "perplexity", "accuracy", "top1", "top3")
    rows = tuple(tuple(getattr(q, name) for name in names) for q in quality)
    return Sheet(
        "Held-out text, read out after each layer",
        ("head", "layer", "loss", "perplexity", "next token", "k=1", "k=3"),
        rows,
        notes=(
            "head N: the model's own; Y: trained for the layer.",
            "k=1, k=3: how often the last layer's choice is among so many.",
        ),
        digits={"perplexity": 2},
        percent=frozenset({"next token", "k=1", "k=3"}),
    )


def _mib(n: int) -> str:
    return f"{n / 2**20:,.1f} MiB"
