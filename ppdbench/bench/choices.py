"""Choices that nobody typed one by one: all methods of ours, and transformers' ways beside them.

Plain `generate()` with both of its caches always; of its assisted modes each with the options
of the method that it is the counterpart of, or with its own defaults where that does not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.counterparts import peers
from ppdbench.bench.runner import Choice
from ppdbench.engine.addons import no_addon
from ppdbench.errors import ConfigError
from ppdbench.files.resources import came_with
from ppdbench.methods import METHODS

ONE_AT_A_TIME = "beside batches stand plain modes of generate(): it assists one sequence at a time"


def every_method(model: str) -> tuple[list[Choice], list[str]]:
    """The methods that can run on `model`, and of the others what each lacks.

    What only the loaded model can tell is found out later; nobody asked for these methods by
    name, so that they are left out then, too.
    """
    chosen, lacking = [], []
    for name in METHODS.names():
        if ":" in name:  # somebody else's
            continue
        if (part := METHODS.get(name).needs) and not came_with(model, part):
            without = no_addon(part, model)
            lacking.append(without if part == name else f"{name}: without {part} for {model}")
            continue
        choice = _with_shipped_parts(name, model)
        if (lack := _lack(choice)) is None:
            chosen.append(choice)
        else:
            lacking.append(lack)
    return chosen, lacking


def _with_shipped_parts(name: str, model: str) -> Choice:
    """The method with the parts that came with the model."""
    return Choice(name=name, options=METHODS.get(name).shipped_with(model))


def _lack(choice: Choice) -> str | None:
    """The reason why a method cannot be had as it is chosen."""
    try:
        choice.build()
    except ConfigError as error:
        return str(error)
    return None


def with_peers(
    choices: Sequence[Choice], model: str, peer: str = "transformers", *, together: bool = False
) -> tuple[list[Choice], str | None]:
    """The methods of a run and their peers, and a note on what had to stay away.

    Of sequences that are decoded `together` no peer assists more than one at a time.
    """
    if peer != "transformers":
        raise ConfigError(f"--against {peer}: use transformers")
    theirs = [method for method in peers() if method.name.startswith(f"{peer}:")]
    wanted = [Choice(name=each.name) for each in theirs if each.peer_of == "greedy"]
    assisted = [] if together else [each for each in theirs if each.peer_of != "greedy"]
    note = ONE_AT_A_TIME if together else None
    for each in assisted:
        same = [
            Choice(name=each.name, options={n: v for n, v in c.options.items() if n in each.alike})
            for c in choices
            if c.name == each.peer_of
        ]
        alone = _with_shipped_parts(each.name, model)
        if not same and _lack(alone) is not None:
            note = f"{each.name} stays away; it needs --method {each.peer_of}:{each.alike[0]}=NAME"
        else:
            wanted += same or [alone]
    asked = {str(choice) for choice in choices}
    added = {str(choice): choice for choice in wanted if str(choice) not in asked}
    return [*choices, *added.values()], note
