"""What several commands do before and after their work."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ppdbench.decoding.sampling import Target
    from ppdbench.engine.loading import ModelSpec
    from ppdbench.workload import Finished, Report


def notice(text: str) -> None:
    """One line for people, out of the way of results."""
    click.echo(text, err=True)


def chosen_model(name: str | None) -> str:
    """The model asked for, or the embedded one, or what stands in for that."""
    from ppdbench.engine.loading import REFERENCE, STAND_IN
    from ppdbench.resources import reference_is_there

    if name is not None:
        return name
    return REFERENCE if reference_is_there() else STAND_IN


def stand_in_note(asked: str | None) -> None:
    """Say so where no model was asked for and another had to stand in; not before errors."""
    from ppdbench.engine.loading import STAND_IN
    from ppdbench.resources import reference_is_there

    if asked is None and not reference_is_there():
        notice(
            "note: no --model given and no trained reference model in this version; "
            f"used {STAND_IN} (random weights)"
        )


def model_spec(options: dict[str, Any]) -> ModelSpec:
    """The shared model options as one object; takes them out of `options`."""
    from ppdbench.engine.loading import ModelSpec

    return ModelSpec(
        name=chosen_model(options.pop("model")),
        revision=options.pop("revision"),
        dtype=options.pop("dtype"),
        device=options.pop("device"),
        offline=options.pop("offline"),
        trust_remote_code=options.pop("trust_remote_code"),
    )


def chosen_data(data: str | None, model: str | None) -> str:
    """Builtin examples go with the embedded model, the hub with any other."""
    from ppdbench.errors import ConfigError

    if data == "":
        raise ConfigError("--data is empty; use hub, builtin or a path")
    return data or ("builtin" if model in (None, "reference") else "hub")


# Which targets an option of drawing serves.
DRAWN_BY = {"top_k": {"top-k"}, "top_p": {"top-p"}, "temperature": {"top-k", "top-p"}}


def chosen_targets(kinds: Sequence[str], options: dict[str, Any]) -> tuple[Target, ...]:
    """The targets of these kinds; takes the options of drawing out of `options`."""
    from ppdbench.decoding.sampling import Target
    from ppdbench.errors import ConfigError

    drawing = {name: options.pop(name) for name in DRAWN_BY}
    drawing = {name: value for name, value in drawing.items() if value is not None}
    for name, served in DRAWN_BY.items():
        if name in drawing and not served & set(kinds):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} needs --target {' or '.join(sorted(served))}")
    return tuple(Target(kind=kind, **drawing) for kind in kinds)


def numbers(option: str, text: str, *, as_given: bool = False) -> tuple[int, ...]:
    """`1,3,5` to numbers, each once, smallest first, unless they are to stay as given."""
    from ppdbench.errors import ConfigError

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text!r}: use numbers such as 1,3,5") from None
    return tuple(found if as_given else sorted(set(found)))


def run_folder(out: str | None, resume: bool, *parts: str) -> Path:
    """The folder of a run: the one asked for, or one that says what it is and when."""
    from ppdbench.errors import ConfigError

    if out == "":
        raise ConfigError("--out is empty; give a folder or leave it out")
    if out is not None:
        return Path(out)
    if resume:
        raise ConfigError("--resume needs --out: the folder of the run to continue")
    last = [part.rstrip("/").split("/")[-1] for part in parts]  # of a path, what it ends in
    names = [re.sub(r"[^A-Za-z0-9.=-]+", "_", part).strip("_")[:40] for part in last]
    name = "-".join([*names, time.strftime("%Y%m%d-%H%M%S")])
    # Two runs may start within one second.
    marks = chain([""], (f"-{i}" for i in count(2)))
    return next(p for m in marks if not (p := Path("results") / f"{name}{m}").exists())


def check_pictures(*paths: str | None) -> None:
    """Refuse pictures that could not be written, before any work is done."""
    asked = [path for path in paths if path is not None]
    if asked:
        from ppdbench.report.plots import check_path

        for path in asked:
            check_path(path)


def check_exports(paths: Sequence[str]) -> None:
    """Refuse files that the result could not be written to, before any work is done."""
    if paths:
        from ppdbench.report.export import check_path

        for path in paths:
            check_path(path)


def closing_notes(run: Finished, asked: str | None) -> None:
    """What a user should know of a finished run, and where it lies; `asked` is --model."""
    stand_in_note(asked)
    if run.torn:
        notice("note: the last line of samples.jsonl was incomplete; that example was done again")
    if run.cut:
        examples = {(sample["task"], sample["example_id"]) for sample in run.samples}
        notice(
            f"note: {len(run.cut)} of {len(examples)} prompts were too long and lost "
            f"{sum(run.cut.values())} tokens of their context"
        )
    notice(f"run: {run.path}")


@contextmanager
def progress() -> Iterator[Report]:
    """A bar with the time left on stderr; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeLeft())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)

        def report(text: str, done: int, total: int | None) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield report
