"""Choices that nobody typed one by one: all methods of ours, and transformers' ways beside them.

Plain `generate()` with both of its caches always; of its assisted modes each with the options
of the method that it is the counterpart of, or with its own defaults where that does not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.counterparts import ASSISTANT, COUNTERPARTS, GREEDY
from ppdbench.bench.runner import Choice
from ppdbench.engine.addons import no_addon
from ppdbench.engine.loading import REFERENCE
from ppdbench.errors import ConfigError
from ppdbench.files.resources import came_with
from ppdbench.methods import METHODS

DRAFTS = {REFERENCE: "reference-draft"}


def every_method(model: str) -> tuple[list[Choice], list[str]]:
    """The methods that can run on `model`, and of the others what each lacks.

    What only the loaded model can tell is found out later; nobody asked for these methods by
    name, so that they are left out then, too.
    """
    chosen, lacking = [], []
    for name in METHODS.names():
        if ":" in name:  # somebody else's
            continue
        if _takes_addon(name) and not came_with(model, name):
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
    if name == "rest" and came_with(model, "datastore"):
        return {"datastore": model}
    return {}


def with_peers(
    choices: Sequence[Choice], model: str, peer: str = "transformers", *, together: bool = False
) -> tuple[list[Choice], str | None]:
    """The methods of a run and their peers, and a note on what had to stay away.

    Of sequences that are decoded `together` no peer assists more than one at a time.
    """
    if peer != "transformers":
        raise ConfigError(f"--against {peer}: use transformers")
    wanted = [Choice(name=name) for name in GREEDY]
    note = None
    if together:
        note = "beside batches stand plain modes of generate(): it assists one sequence at a time"
    for ours, theirs, shared in () if together else COUNTERPARTS:
        same = [
            Choice(name=theirs, options={n: v for n, v in c.options.items() if n in shared})
            for c in choices
            if c.name == ours
        ]
        if not same and theirs == ASSISTANT:
            if model not in DRAFTS:
                note = f"{theirs} stays away; it needs --method speculative:draft_model=NAME"
                continue
            same = [Choice(name=theirs, options={"draft_model": DRAFTS[model]})]
        wanted += same or [Choice(name=theirs)]
    asked = {str(choice) for choice in choices}
    added = {str(choice): choice for choice in wanted if str(choice) not in asked}
    return [*choices, *added.values()], note
