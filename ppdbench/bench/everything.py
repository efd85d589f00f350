"""All methods of ours in one run, each with what came with the model."""

from __future__ import annotations

from ppdbench.bench.peers import DRAFTS
from ppdbench.bench.runner import Choice
from ppdbench.engine.addons import no_addon
from ppdbench.engine.loading import REFERENCE
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS


def every_method(model: str) -> tuple[list[Choice], list[str]]:
    """The methods that can run on `model`, and of the others what each lacks.

    What only the loaded model can tell is found out later; nobody asked for these methods by
    name, so that they are left out then, too.
    """
    chosen, lacking = [], []
    for name in METHODS.names():
        if ":" in name:  # somebody else's
            continue
        if model != REFERENCE and _takes_addon(name):
            lacking.append(no_addon(name, model))
            continue
        choice = Choice(name=name, options=_shipped(name, model))
        try:
            choice.build()
        except ConfigError as error:
            lacking.append(str(error))
        else:
            chosen.append(choice)
    return chosen, lacking


def _takes_addon(name: str) -> bool:
    """True if a method cannot do without something that was trained for the model."""
    method = METHODS.get(name)
    return method.trained and any(option.name == "addon" for option in method.options())


def _shipped(name: str, model: str) -> dict[str, str]:
    """Options that name a part which came with the model."""
    if name == "speculative" and model in DRAFTS:
        return {"draft_model": DRAFTS[model]}
    if name == "rest" and model == REFERENCE:
        return {"datastore": REFERENCE}
    return {}
