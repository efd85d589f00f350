"""Peers: the ways of transformers to decode that stand beside the methods of a run.

Plain `generate()` with both of its caches always; of its assisted modes each with the options
of the method that it is the counterpart of, or with its own defaults where that does not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.counterparts import ASSISTANT, COUNTERPARTS, GREEDY
from ppdbench.bench.runner import Choice
from ppdbench.engine.loading import REFERENCE
from ppdbench.errors import ConfigError

DRAFTS = {REFERENCE: "reference-draft"}


def with_peers(
    choices: Sequence[Choice], model: str, peer: str = "transformers"
) -> tuple[list[Choice], str | None]:
    """The methods of a run and their peers, and a note on what had to stay away."""
    if peer != "transformers":
        raise ConfigError(f"--against {peer}: use transformers")
    wanted = [Choice(name=name) for name in GREEDY]
    note = None
    for ours, theirs, shared in COUNTERPARTS:
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
