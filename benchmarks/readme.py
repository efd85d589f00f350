"""Tables of the README and of `docs/`, made of what is in `results/readme` and of nothing else.

    python -m benchmarks.readme

A table stands between two comments, which say what it is of: a run's folder, how the title of one
of its tables begins, and whether it is to be Markdown instead of what a terminal shows.

    <!-- results/readme/bench: all tasks -->
    <!-- end -->

In place of a run there may be a file of `benchmarks.curve`, and in place of a title `picture` and
the file that it was drawn into; until it is there, its places say how to measure it. Several such
files, as `results/readme/curve*.json` names them, are shown as one table of all. Files in
`results/faithful` are those of `make sampled`, in `results/batches` of `benchmarks.batches`
and, by how their names begin, of `benchmarks.verdicts` and `benchmarks.batch_steps`; those in
`results/real` are of the module that has their name. Of a file that holds a table as Markdown, as
`make showcase` writes it, the table is shown.

`make measured` makes all of it, the pictures, too. Tests compare every table with what it is of,
and look for measured numbers that stand elsewhere.
"""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks import (
    batch_steps,
    batches,
    busy,
    curve,
    exactness,
    faithful,
    load_check,
    pass_checks,
    plain_answers,
    plain_ranks,
    quality,
    recurrent,
    sampled,
    sampled_cost,
    skipping,
    verdicts,
)
from benchmarks.engines import __main__ as engines
from ppdbench.report.export import to_markdown
from ppdbench.report.outputs import of_run
from ppdbench.report.page.runs import read_runs
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PICTURE = "picture "
SEVERAL = "*"  # in the names of several files
MARKDOWN = ".md"
SAMPLED = ROOT / "results" / "faithful"
BATCHES = ROOT / "results" / "batches"
UNCOUNTED = "Not counted yet: `python -m benchmarks.batches --exact`, which takes hours."
REAL = ROOT / "results" / "real"
SHOWCASE = ROOT / "results" / "showcase"
REAL_SHEETS = {
    "exactness": exactness.sheets,
    "exactness_reference": exactness.sheets,
    "pass_checks": pass_checks.sheets,
    "plain_answers": plain_answers.sheets,
    "plain_ranks": plain_ranks.sheets,
    "quality": quality.sheets,
    "skipping": skipping.sheets,
}
AWAITED = "Not measured yet: `make curve`, on a machine that does nothing else."
MADE_BY = {BATCHES: "batches", SAMPLED: "sampled", SHOWCASE: "showcase"}
UNCHECKED = "Not checked yet: `make smollm2-checks`."
COLUMNS = 90  # as much as pages show beside their margins
BLOCK = re.compile(r"<!-- (results/\S+): (.+?)( as markdown)? -->\n(.*?)<!-- end -->", re.DOTALL)


def rendered(text: str) -> str:
    """A page with each table as its run has it."""
    said: set[str] = set()  # notes that stand under a table already
    return BLOCK.sub(lambda found: _block(found, said), text)


def _block(found: re.Match[str], said: set[str]) -> str:
    run, title, markdown = found[1], found[2], found[3] or ""
    if _is_awaited(ROOT / run):
        return f"<!-- {run}: {title}{markdown} -->\n{_awaited(ROOT / run)}\n<!-- end -->"
    if title.startswith(PICTURE):
        drawn = f"![Time of a pass by its rows]({title.removeprefix(PICTURE)})"
        return f"<!-- {run}: {title} -->\n{drawn}\n<!-- end -->"
    if run.endswith(MARKDOWN):
        shown = _body((ROOT / run).read_text(encoding="utf-8"))
        return f"<!-- {run}: {title}{markdown} -->\n{shown}<!-- end -->"
    sheets = [s for s in _sheets(ROOT / run) if s.title.startswith(title)]
    if len(sheets) != 1:
        raise SystemExit(f"{run} has {len(sheets)} tables whose title begins with {title!r}")
    sheet = replace(sheets[0], notes=tuple(note for note in sheets[0].notes if note not in said))
    said.update(sheet.notes)
    shown = _as_markdown(sheet) if markdown else f"```\n{_drawn(sheet)}```\n"
    return f"<!-- {run}: {title}{markdown} -->\n{shown}<!-- end -->"


def _is_awaited(path: Path) -> bool:
    return path.suffix in (curve.STORED, MARKDOWN) and not _files(path)


def _files(path: Path) -> list[Path]:
    """The files that a name stands for: one, or several that are named alike."""
    return sorted(path.parent.glob(path.name))


def _awaited(path: Path) -> str:
    if path.name.startswith(verdicts.FILES):
        return UNCOUNTED
    if path.parent == REAL:
        return UNCHECKED
    return AWAITED.replace("curve", MADE_BY.get(path.parent, "curve"))


def _sheets(path: Path) -> list[Sheet]:
    """All tables of a run, or of measured curves or batches."""
    if SEVERAL in path.name:
        return [curve.overview([curve.stored(file) for file in _files(path)])]
    if path.parent == BATCHES:
        return _sheets_of_batches(path)
    if path == SAMPLED / "cost.json":
        return sampled_cost.sheets(sampled_cost.stored(path))
    if path.parent == REAL:
        return REAL_SHEETS[path.stem](json.loads(path.read_text(encoding="utf-8")))
    if path.parent == SAMPLED:
        content = json.loads(path.read_text(encoding="utf-8"))
        return faithful.sheets(content) if "planted" in content else sampled.sheets(content)
    if path.name == recurrent.FILE:
        return recurrent.sheets(recurrent.stored(path))
    if path.name == busy.FILE:
        return busy.sheets(busy.stored(path))
    if path.name == load_check.FILE:
        return load_check.sheets(load_check.stored(path))
    if path.name.startswith(engines.FILES):
        return engines.sheets(engines.stored(path))
    if path.suffix == curve.STORED:
        return curve.sheets(curve.stored(path))
    (stored,) = read_runs([path])
    return of_run(stored).sheets


def _sheets_of_batches(path: Path) -> list[Sheet]:
    if path.name.startswith(verdicts.FILES):
        return verdicts.sheets(verdicts.stored(path))
    if path.name.startswith(batch_steps.FILES):
        return batch_steps.sheets(batch_steps.stored(path))
    return batches.sheets(batches.stored(path))


def _as_markdown(sheet: Sheet) -> str:
    return _body(to_markdown([sheet]))


def _body(table: str) -> str:
    """A table without its title, since the text around says what it is of."""
    return table.partition("\n\n")[2]


def _drawn(sheet: Sheet) -> str:
    """A table as a terminal shows it."""
    console = Console(file=io.StringIO(), width=COLUMNS, color_system=None)
    print_sheets([sheet], console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def main() -> None:
    """Write the pages with their tables anew."""
    for page in PAGES:
        page.write_text(rendered(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
