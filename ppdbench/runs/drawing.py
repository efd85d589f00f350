"""Words for how tokens were drawn, wherever a table is of such."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.runs.records import AskedTarget

GREEDY = "greedy"


def drawn_note(targets: Sequence[AskedTarget]) -> list[str]:
    """Say how each of these draws; nothing where all are greedy."""
    told = [drawn_words(target) for target in targets if target.kind != GREEDY]
    return [f"Drawn: {'; '.join(told)}."] if told else []


def drawn_words(target: AskedTarget) -> str:
    """`top-k from 3 tokens at temperature 1`, and whatever changes the logits before."""
    what = {
        "top-k": f"from {target.top_k} tokens",
        "top-p": f"from {100 * target.top_p:g}% of the probability",
        "min-p": f"from tokens of {100 * target.min_p:g}% of the likeliest's probability or more",
    }[target.kind]
    words = f"{target.kind} {what} at temperature {target.temperature:g}"
    if target.repetition_penalty != 1:
        words += f", repetition penalty {target.repetition_penalty:g}"
    if target.logit_bias:
        words += f", a bias on {len(target.logit_bias)} tokens"
    return words
