"""Running what a table lacks: each step of its recipe in a process and a folder of its own.

A process of its own, so that memory and threads of one step are no other's, and its run says by
which command it was made. A step that ended well leaves a mark with its command and options. One
without a mark is begun, or gone on with where it stopped; a bench goes on with methods that came
to its step later.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ppdbench.errors import ConfigError, Interrupted, PpdbenchError
from ppdbench.files.json_file import read_versioned, write_versioned
from ppdbench.runs.store import HEADER, StoredRun, read_whole
from ppdbench.tables.recipe import GIVEN, RecipeStep, TableRecipe, methods_apart

MARK, FORMAT, VERSION = "step.json", "ppdbench-step", 1
BEGUN = (HEADER, "training.json")  # what runs and trainings write first
DONE, MISMATCH, FAILURES = 0, 1, 3
GRACE_S = 2.0  # for a process that the keyboard has interrupted too


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScale:
    """A user's additions to a recipe; words are options as they are typed."""

    model: tuple[str, ...] = ()  # to every step
    work: tuple[str, ...] = ()  # to steps that work on examples
    passing: tuple[str, ...] = ()  # to every step, but without influence on what comes out
    text: str | None = None
    heads: str | None = None

    def options(self, step: RecipeStep) -> list[str]:
        """List the options that decide, beside its command, what a step gives."""
        words = [*self.model, *(self.work if step.works_on_examples else ())]
        if "text" in step.names and self.text is not None:
            words += ["--text", Path(self.text).name]  # where a text lies makes no difference
        if "heads" in step.names and self.heads is not None:
            words += ["--heads", self.heads]
        return words

    @property
    def given(self) -> dict[str, str | None]:
        """The values of the names that the user fills in."""
        return {name: getattr(self, name) for name in GIVEN}


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a step that ended well: what it was run with."""

    command: str
    options: tuple[str, ...]


class StepFailed(PpdbenchError):
    """A step ended without a result; what it said stands before this."""


def stored_runs(recipe: TableRecipe, folder: Path) -> list[StoredRun]:
    """The runs of those steps that have been begun, in the order of the recipe."""
    places = [folder / step.name for step in recipe]
    return [read_whole(place) for place in places if (place / HEADER).is_file()]


def missing_steps(recipe: TableRecipe, folder: Path) -> list[RecipeStep]:
    """The steps that have left no trace."""
    places = {step.name: folder / step.name for step in recipe}
    return [
        step
        for step in recipe
        if not _begun(places[step.name]) and not (places[step.name] / MARK).is_file()
    ]


def run_missing(
    recipe: TableRecipe,
    folder: Path,
    scale: RunScale,
    *,
    depth: Callable[[], int],
    report: Callable[[str], None],
) -> None:
    """Run the steps that are not finished; `depth` tells how many layers the model has."""
    left = [step for step in recipe if not finished(step, folder, scale)]
    if scale.text is None and any("text" in step.names for step in left):
        raise ConfigError("a step of this table trains; add --text FILE with what to train on")
    n_layers = depth() if any(step.needs_depth for step in left) else None
    meant = {**scale.given, **{step.name: str(folder / step.name) for step in recipe}}
    for step in left:
        words = command_of(step, folder, scale, step.words(n_layers, meant))
        report(f"running: ppdbench {' '.join(words)}")
        _carry_out(step, folder, scale, words)


def finished(step: RecipeStep, folder: Path, scale: RunScale) -> bool:
    """True if a step is done as it is asked for now; one done otherwise is not overwritten."""
    mark = folder / step.name / MARK
    if not mark.is_file():
        return False
    found, asked = _read_mark(mark), scale.options(step)
    has_more = step.adds_to(found.command)
    if found.command != step.command and not has_more:
        raise ConfigError(
            f"{folder / step.name} was made by another recipe (ppdbench {found.command}); remove "
            "it or choose another --out"
        )
    if list(found.options) != asked:
        raise ConfigError(
            f"{folder / step.name} was run with {_typed(found.options)}, now it is "
            f"{_typed(asked)}; repeat its options or choose another --out"
        )
    return not has_more


def methods_left(step: RecipeStep, folder: Path) -> list[str]:
    """List the methods of a step that its run, where it is done, was made without."""
    mark, methods = folder / step.name / MARK, methods_apart(step.command).methods
    done = methods_apart(_read_mark(mark).command).methods if mark.is_file() else ()
    return [method for method in methods if method not in done]


def _read_mark(path: Path) -> Mark:
    keys = read_versioned(path, "mark of a step", "run the table again", FORMAT, VERSION)
    found = Mark(keys.text("command"), keys.texts("options"))
    keys.refuse_the_rest()
    return found


def command_of(step: RecipeStep, folder: Path, scale: RunScale, words: Sequence[str]) -> list[str]:
    """The whole command line of a step whose own words are these."""
    place = folder / step.name
    work = scale.work if step.works_on_examples else ()
    resume = ["--resume"] if _begun(place) else []
    said = [*scale.model, *work, *scale.passing, "--out", str(place)]
    return [*_without(words, said), *said, *resume]


def _without(words: Sequence[str], said: Sequence[str]) -> list[str]:
    """The words less the options that the user says otherwise."""
    options = {word for word in said if word.startswith("--")}
    pairs = zip(words, [None, *words], strict=False)
    return [word for word, before in pairs if word not in options and before not in options]


def _begun(place: Path) -> bool:
    return any((place / name).is_file() for name in BEGUN)


def _typed(options: Sequence[str]) -> str:
    return " ".join(options) or "no options"


def _carry_out(step: RecipeStep, folder: Path, scale: RunScale, words: Sequence[str]) -> None:
    code = _run(words)
    if code in (-signal.SIGINT, Interrupted.exit_code):
        raise Interrupted(f"interrupted in step {step.name}; the same command goes on from there")
    if code not in (DONE, MISMATCH, FAILURES):
        raise StepFailed(
            f"step {step.name} ended with exit code {code}; what it said stands above, finished "
            "steps are kept"
        )
    if code != FAILURES:  # failed examples are tried again
        content = asdict(Mark(step.command, tuple(scale.options(step))))
        write_versioned(folder / step.name / MARK, FORMAT, VERSION, content)


def _run(words: Sequence[str]) -> int:
    """One command of ours; its result is in its folder, its progress on our stderr."""
    command = [sys.executable, "-m", "ppdbench", *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as child:
        try:
            return child.wait()
        except KeyboardInterrupt:
            # From the keyboard it reaches both; a signal to this process alone is passed on.
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGINT)
                child.wait()
            return Interrupted.exit_code
