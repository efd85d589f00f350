"""All methods of ours in one run, each with what came with the model."""

from __future__ import annotations

from ppdbench.bench.peers import DRAFTS
from ppdbench.bench.runner import Choice
from ppdbench.engine.loading import REFERENCE
from ppdbench.errors import ConfigError
from ppdbench.strategies import METHODS

ALL = "all"


def every_method(model: str) -> tuple[list[Choice], list[str]]:
    """The methods that can run on `model`, and of the others what each lacks.

    What only the loaded model can tell, such as an add-on that was never trained for it, is
    found out later, and reported like a method that fails to start.
    """
    chosen, lacking = [], []
    for name in METHODS.names():
        if ":" in name:  # somebody else's
            continue
        choice = Choice(name=name, options=_shipped(name, model))
        try:
            choice.build()
        except ConfigError as error:
            lacking.append(str(error))
        else:
            chosen.append(choice)
    return chosen, lacking


def _shipped(name: str, model: str) -> dict[str, str]:
    """Options that name a part which came with the model."""
    if name == "speculative" and model in DRAFTS:
        return {"draft_model": DRAFTS[model]}
    if name == "rest" and model == REFERENCE:
        return {"datastore": REFERENCE}
    return {}
