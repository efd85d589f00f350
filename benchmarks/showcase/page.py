"""The page of a showcase: what came out on top, the report on its runs, the papers' tables below.

Everything is made of stored runs, so that the page of an unfinished showcase is of what is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.showcase.plan import BENCH, DRAFTS, GUESSING, PROBE, ShowcaseAsked, lacking, shown
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.files import papers
from ppdbench.files.resources import came_with, trained_part
from ppdbench.files.whole import write_whole
from ppdbench.methods import METHODS
from ppdbench.report import decode_tables, evidence
from ppdbench.report.export import write
from ppdbench.report.html import Child, h
from ppdbench.report.page.document import page
from ppdbench.report.page.parts import (
    Section,
    definition_list,
    folded,
    gallery,
    html_table,
    paragraphs,
    with_code,
)
from ppdbench.report.page.runs import Run, read_runs
from ppdbench.report.page.sections.setting import told_of
from ppdbench.report.page.sections.speed import losses
from ppdbench.report.pictures.drawing import Drawing, side_by_side
from ppdbench.report.pictures.files import save_picture
from ppdbench.report.pictures.probes import match_curves
from ppdbench.report.probe_tables import label
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.tables import TABLES
from ppdbench.tables.steps import missing_steps, stored_runs

Summary = Mapping[str, Any]
PAGE, MAIN, PICTURE = "showcase.html", "showcase", "match-rates.png"
PICTURED = ("gsm8k", "xsum")  # a task each where much is repeated, and where little is
ABOUT = ("Model", "Numbers", "Ran on", "Tasks", "Prompts")  # facts that stand on top
WORDS = (
    "Speedup: the time that greedy decoding takes, over the time that the method takes, for the "
    "same examples of the same run, all tasks together. Above 1 is a gain, below 1 a loss; both "
    "stand here. Greedy decoding is this package's own; rows of transformers say how its "
    "generate() compares, so that no method shines beside a slow baseline."
)
OF_PAPERS = (
    "Each table as its paper has it: ours, and the paper's number in brackets. The papers measured "
    "models of billions of parameters on GPUs; what compares is the shape of a table, not its "
    "numbers. Both settings stand above each."
)
INLINE = (
    "{labels} ran what is meant for several units in turn in one process, so that its time says "
    "nothing; units of their own stand in table ppd/3."
)


def make(asked: ShowcaseAsked, failed: Sequence[str]) -> Path:
    """Write the page, the main table and the papers' tables; where the page lies."""
    runs = read_runs(_folders(asked))
    benches = [run for run in runs if run.kind == "bench"]
    tables = Section("papers", "The papers’ tables", [*paragraphs(OF_PAPERS), *_papers(asked)])
    first = [_front(asked, benches, failed)]
    path = asked.folder / PAGE
    write_whole(path, page(runs, first, [tables]).text)
    _draw_match_rates(runs, asked.folder / PICTURE)
    if benches:
        sheet = main_table(benches)
        rows = [dict(zip(sheet.header, row, strict=True)) for row in sheet.rows]
        for suffix in (".md", ".json"):
            write(asked.folder / f"{MAIN}{suffix}", [sheet], rows)
    return path


def _folders(asked: ShowcaseAsked) -> list[Path]:
    """The runs that the report is about: those that have finished any example."""
    places = [
        asked.place(dtype) / name for name in (PROBE, DRAFTS, BENCH) for dtype in asked.dtypes
    ]
    there = [place for place in places if _has_samples(place)]
    if not there:
        raise ConfigError(f"{asked.folder} holds no run yet; run the showcase without --page")
    return there


def _draw_match_rates(runs: Sequence[Run], path: Path) -> None:
    """Draw what each layer knows in two of the tasks, of the first run that says it."""
    for run in runs:
        rates = [rate for rate in run.rates if rate.task in PICTURED] if run.is_probe else []
        if rates:
            save_picture(side_by_side(match_curves("probe", rates), label(run.header)), path)
            return


def _has_samples(place: Path) -> bool:
    return any(file.stat().st_size for file in place.glob("samples*.jsonl"))


def _front(asked: ShowcaseAsked, benches: Sequence[Run], failed: Sequence[str]) -> Section:
    """Build the section that a reader sees first."""
    body: list[Child] = []
    if benches:
        about = [(name, told) for name, told in told_of(benches[0]) if name in ABOUT and told]
        body += [definition_list(about), *paragraphs(WORDS), html_table(main_table(benches))]
        for run in benches:
            told = losses(run.overall)
            body += [h("h3", f"Losses, {run.header.model.dtype}"), *told[1:]] if told else []
    if (trained := trained_parts(asked.model)) is not None:
        body.append(html_table(trained))
    absent = [*lacking(asked), *(f"failed: {why}" for why in failed), *_unfinished(asked)]
    if absent:
        reasons = (h("li", with_code(why)) for why in absent)
        body += [h("h3", "What is not here, and why"), h("ul", reasons)]
    return Section("front", "What came out", body)


def _unfinished(asked: ShowcaseAsked) -> Iterator[str]:
    for name in shown(asked):
        if steps := missing_steps(TABLES.get(name).recipe, asked.place(asked.dtypes[0])):
            yield f"table {name}: not run yet: {', '.join(step.name for step in steps)}"


def main_table(benches: Sequence[Run]) -> Sheet:
    """Every method over all tasks, a gain or a loss in each type of numbers."""
    by_type = {run.header.model.dtype: {s["label"]: s for s in run.overall} for run in benches}
    first = next(iter(by_type.values()))
    labels = sorted(
        dict.fromkeys(label for of in by_type.values() for label in of), key=_rank(first)
    )
    rows = tuple(_row(label, by_type) for label in labels)
    about = benches[0].overall
    heads = [(f"speedup, {t}", f"95%, {t}", f"output, {t}") for t in by_type]
    notes = dict.fromkeys(note for run in benches for note in _notes(run))
    return Sheet(
        f"{len(benches[0].tasks)} tasks together: {evidence.sized(about)}, {about[0]['model']}",
        ("method", "trained", *(name for head in heads for name in head), "per step", "accepted"),
        rows,
        notes=(decode_tables.PER_STEP, decode_tables.ACCEPTED, *notes),
        digits={"per step": 2, "accepted": 0},
        percent=frozenset({"accepted"}),
    )


def _rank(first: Mapping[str, Summary]) -> Any:
    """Order labels by speedup, greedy above all, what gives other outputs than greedy below."""

    def rank(label: str) -> tuple[bool, bool, float]:
        summary = first.get(label)
        if summary is None:
            return True, True, 0.0
        return label != "greedy", not summary["exact"], -(summary["speedup"] or 0.0)

    return rank


def _row(label: str, by_type: Mapping[str, Mapping[str, Summary]]) -> tuple[Cell, ...]:
    known = [of[label] for of in by_type.values() if label in of]
    name = known[0]["method"]
    cells: list[Cell] = [label, "yes" if METHODS.get(name).trained or "head=" in label else ""]
    for of in by_type.values():
        summary = of.get(label)
        cells += (
            [*evidence.speedup_cells(summary), decode_tables.verdict_text(summary)]
            if summary
            else [None] * 3
        )
    return (*cells, known[0]["committed_per_step"], known[0]["accepted_per_proposed"])


def _notes(run: Run) -> Iterator[str]:
    """Yield what must be known of a run's times, whatever was measured."""
    dtype = run.header.model.dtype
    why = {evidence.why_no_gain(summary) for summary in run.overall}
    for note in evidence.notes_on(run.overall):
        if note not in why and note != evidence.PAIRED:
            yield f"{dtype}: {note}"
    if inline := [s["label"] for s in run.overall if s.get("form") == "inline"]:
        yield INLINE.format(labels=", ".join(inline))
    if run.unfinished:
        yield f"{dtype}: {run.unfinished}"


def trained_parts(model: str) -> Sheet | None:
    """List what was trained for the model and came with it, by size."""
    parts = [name for name in ("heads", *GUESSING) if came_with(model, name)]
    rows = tuple((name, _size(trained_part(model, name)) / 1e3) for name in parts)
    title = f"What was trained for {model} and used here"
    return Sheet(title, ("part", "kB"), rows, digits={"kB": 0}) if rows else None


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))


def _papers(asked: ShowcaseAsked) -> Iterator[Child]:
    """Each table that has runs, folded away under its title, its figure beside it."""
    place = asked.place(asked.dtypes[0])
    for name in shown(asked):
        made = TABLES.get(name)
        stored = [run for run in stored_runs(made.recipe, place) if run.samples]
        if not stored:
            continue
        try:
            laid = made.build(stored)
        except PpdbenchError as error:  # of runs that are not finished yet
            yield h("p", f"{name}: {error}", class_="note")
            continue
        write(asked.folder / "tables" / f"{name.replace('/', '-')}.md", laid.shown, None)
        paper = papers.paper_of(name)
        yield h("h3", f"{name}: {laid.data.title}")
        yield h("p", h("a", paper.title, href=paper.link), class_="note")
        if made.draw is not None:
            drawing: Drawing = made.picture(stored)
            yield gallery([drawing])
        settings = paragraphs(*laid.shown[0].lead, class_="note")
        yield folded(
            f"The table, {len(laid.data.rows)} rows", settings, map(html_table, laid.shown)
        )
