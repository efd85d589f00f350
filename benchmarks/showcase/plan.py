"""The runs of a showcase: which there are, in which order, and what has to stay away and why.

A job is a recipe, as papers' tables have them: each step is a command in a process and a run
folder of its own, leaves a mark when it ended well, and is gone on with where it was interrupted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdbench.bench.choices import every_method
from ppdbench.files.resources import came_with
from ppdbench.methods import method
from ppdbench.tables import TABLES
from ppdbench.tables.recipe import RecipeStep, TableRecipe
from ppdbench.tables.steps import RunScale
from ppdbench.tasks import task_names

PAPERS = (
    *("ppd/2", "ppd/3", "ppd/5", "ppd/6", "ppd/7", "ppd/8", "ppd/figures"),
    *("layerskip/1", "layerskip/2", "layerskip/6"),
    *("hidden_transfer/1", "prompt_ppd/1", "hidden_transfer/figures", "prompt_ppd/2"),
)
PROBE, DRAFTS, BENCH = "probe", "drafts", "bench"
RUNS = "runs"  # the folder of them all
GUESSING = ("medusa", "hidden-transfer", "prompt-tokens", "eagle")  # trained for a model
# Beside what each method does when nothing is set: options without what was trained, or with it.
VARIANTS = {
    "eagle": ("eagle:tree=chain",),
    "ppd": ("ppd:head={heads}",),
}
NEEDED = re.compile(r"--method ([a-z-]+)(:\S*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowcaseAsked:
    """A showcase as its user asked for it; `limit` and `tokens` make it smaller."""

    folder: Path
    model: str
    dtypes: tuple[str, ...]  # tables are made with the first
    limit: int | None = None
    tokens: int | None = None
    threads: int | None = None
    text: str | None = None
    tasks: tuple[str, ...] = ()
    papers: tuple[str, ...] = PAPERS

    @property
    def heads(self) -> str | None:
        """The name of the trained heads of its layers, if any came with it."""
        return self.model if came_with(self.model, "heads") else None

    def place(self, dtype: str) -> Path:
        """The folder of the runs with a type of numbers."""
        return self.folder / RUNS / dtype

    def scale(self, dtype: str) -> RunScale:
        """The options that every step gets."""
        sizes = {"--limit": self.limit, "--max-new-tokens": self.tokens}
        threads = () if self.threads is None else ("--threads", str(self.threads))
        return RunScale(
            model=("--model", self.model, "--dtype", dtype, *threads),
            work=("--data", "builtin", *_given(sizes)),
            passing=() if self.text and self.text.startswith("hub:") else ("--offline",),
            text=self.text,
            heads=self.heads,
        )

    def tasks_words(self) -> str:
        """The tasks as they are typed."""
        return " ".join(f"--task {name}" for name in self.tasks or task_names())


@dataclass(frozen=True, slots=True)
class ShowcaseJob:
    """Steps that are run together, and what is said of them."""

    what: str
    dtype: str
    recipe: TableRecipe


def jobs(asked: ShowcaseAsked) -> list[ShowcaseJob]:
    """Everything that is run, what a reader wants first first and what trains last."""
    first, *others = asked.dtypes
    planned = [
        ShowcaseJob("what every layer knows of the next token", first, (probe(asked),)),
        ShowcaseJob("every method beside greedy and transformers", first, (bench(asked),)),
    ]
    if guesses := drafts(asked):
        planned.append(ShowcaseJob("how often trained guesses are right", first, (guesses,)))
    tables = [
        ShowcaseJob(_named(names), first, recipe) for recipe, names in _by_recipe(asked).items()
    ]
    training = [job for job in tables if _trains(job.recipe)]
    planned += [job for job in tables if job not in training]
    planned += [
        ShowcaseJob("every method beside greedy and transformers", dtype, (bench(asked),))
        for dtype in others
    ]
    return [*planned, *training]


def probe(asked: ShowcaseAsked) -> RecipeStep:
    """Ranks in every layer, with the model's own head and with trained ones."""
    return RecipeStep(PROBE, f"probe {asked.tasks_words()} -k 1,3,5 --head {{heads}}")


def bench(asked: ShowcaseAsked) -> RecipeStep:
    """Every method that runs on the model, and transformers' own ways."""
    methods = " ".join(f"--method {name}" for name in methods_of(asked))
    return RecipeStep(BENCH, f"bench {asked.tasks_words()} --against transformers {methods}")


def drafts(asked: ShowcaseAsked) -> RecipeStep | None:
    """Accuracy of trained guesses by their distance; None where nothing was trained."""
    trained = [name for name in GUESSING if came_with(asked.model, name)]
    methods = " ".join(f"--method {name}" for name in trained)
    return (
        RecipeStep(DRAFTS, f"probe --what drafts {asked.tasks_words()} {methods}")
        if trained
        else None
    )


def methods_of(asked: ShowcaseAsked) -> list[str]:
    """Methods with all parts that the model came with, and beside them some variants."""
    found: list[str] = []
    for choice in every_method(asked.model)[0]:
        found.append(str(choice))
        variants = VARIANTS.get(choice.name, ())
        found += [v.format(heads=asked.heads) for v in variants if asked.heads or "{" not in v]
    return found


def lacking(asked: ShowcaseAsked) -> Iterator[str]:
    """Say what cannot be shown of this model, and what it would take."""
    yield from every_method(asked.model)[1]
    if asked.heads is None:
        yield f"heads of layers: none were trained for {asked.model}; match rates have head N alone"
    for name in asked.papers:
        if why := lacks(name, asked):
            yield f"table {name}: {why}"


def shown(asked: ShowcaseAsked) -> list[str]:
    """The tables that nothing is missing for."""
    return [name for name in asked.papers if lacks(name, asked) is None]


def lacks(name: str, asked: ShowcaseAsked) -> str | None:
    """Say what a table is missing; None if it can be made."""
    recipe = TABLES.get(name).recipe
    named = [found for step in recipe for found in NEEDED.findall(step.command)]
    wanted = dict.fromkeys(m for m, options in named if "addon=" not in options)
    missing = [m for m in wanted if method(m).trained and not came_with(asked.model, m)]
    if missing:
        return f"it takes {', '.join(missing)} trained for {asked.model}"
    if _trains(recipe) and asked.text is None:
        return "it trains; say on what by SHOWCASE_TEXT"
    return None


def _by_recipe(asked: ShowcaseAsked) -> dict[TableRecipe, list[str]]:
    """The tables that can be made, by the steps that several of them may share."""
    found: dict[TableRecipe, list[str]] = {}
    for name in shown(asked):
        found.setdefault(TABLES.get(name).recipe, []).append(name)
    return found


def _named(tables: Sequence[str]) -> str:
    return f"table{'s' if len(tables) > 1 else ''} {', '.join(tables)}"


def _trains(recipe: TableRecipe) -> bool:
    return any("text" in step.names for step in recipe)


def _given(options: dict[str, int | None]) -> Iterator[str]:
    for name, value in options.items():
        if value is not None:
            yield from (name, str(value))
