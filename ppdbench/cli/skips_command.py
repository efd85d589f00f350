"""`ppdbench skips`: the search for blocks that a draft can do without."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import notice, stand_in_note, what_is_asked
from ppdbench.cli.help import Command
from ppdbench.cli.options import (
    chat_options,
    data_option,
    format_option,
    model_options,
    tasks_option,
)
from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError
from ppdbench.report.progress import progress
from ppdbench.report.sheet import Sheet

if TYPE_CHECKING:
    from ppdbench.methods.draft_verify.skip_search import SearchResult


@click.command(
    "skips",
    cls=Command,
    first=("tasks", "model", "data", "limit", "search", "budget", "draft_length", "out", "form"),
)
@tasks_option
@click.option("--search", default="greedy", show_default=True, help="greedy or bayes.")
@click.option("--budget", default=200, show_default=True, help="Sets to try at most.")
@click.option("--draft-length", default=8, show_default=True, help="Tokens drafted at most.")
@data_option
@click.option("--split", help="Split of the data set (the task's own).")
@click.option("--limit", default=4, show_default=True, help="Use the first N examples of each.")
@click.option("--shots", default=0, show_default=True, help="Worked examples before each.")
@click.option("--max-new-tokens", type=int, help="Tokens to generate (the task's own).")
@click.option("--seed", default=0, show_default=True, help="Seed of everything drawn.")
@chat_options
@click.option(
    "--out",
    metavar="FILE",
    default="skip_layers.json",
    show_default=True,
    help="File that the set is added to; sets of other models in it stay.",
)
@model_options
@format_option
def command(out: str, form: str, **options: Any) -> int:
    """Search for the blocks that draft-verify should skip; show and keep them in a file.

    \b
    ppdbench skips --task gsm8k --limit 4 --out skip_layers.json
    ppdbench skips --model ./my-model --task xsum --search bayes --budget 400
    """
    from ppdbench.machine.environment import set_threads
    from ppdbench.methods.draft_verify.skip_search import SearchConfig, run_search
    from ppdbench.report.export import emit

    quiet()
    set_threads(options["threads"])
    if not out:
        raise ConfigError("--out is empty; give a file such as skip_layers.json")
    asked = options["model"]
    config = SearchConfig(**what_is_asked(options), **options)
    with progress() as report:
        found = run_search(config, Path(out), report=report)
    emit([_sheet(found)], asdict(found), form)
    stand_in_note(asked)
    if found.cut:
        notice(f"note: {found.cut} prompts were too long and were cut")
    if found.score.speedup <= 1:
        notice("note: no set that was tried promises to beat greedy decoding; this is the best")
    notice(f"written: {out} ({found.model})")
    return 0


def _sheet(found: SearchResult) -> Sheet:
    sets = {"found": (found.skips, found.score), "default": (found.default, found.default_score)}
    return Sheet(
        title=f"Blocks that drafts skip: {found.model} ({found.n_layers} layers)",
        header=("set", "attention", "mlp", "agreement", "cost", "speed-up", "draft"),
        rows=tuple(
            (
                name,
                " ".join(map(str, skips.attention)) or "-",
                " ".join(map(str, skips.mlp)) or "-",
                score.agreement,
                score.cost,
                score.speedup,
                score.draft_length,
            )
            for name, (skips, score) in sets.items()
        ),
        notes=(
            f"{found.tried} sets tried. agreement: drafted tokens that are the model's, given its "
            "own text; cost: weights read against a whole pass; speed-up: predicted from both, "
            "with drafts of fixed length (draft).",
        ),
        digits={"agreement": 1, "cost": 3, "speed-up": 3},
        percent=frozenset({"agreement"}),
    )
