"""The page's building blocks: sections, tables, figures, and words that catch the eye."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ppdbench.report.html import Child, Node, h
from ppdbench.report.page.runs import Run
from ppdbench.report.pictures.drawing import Drawing, svg
from ppdbench.report.sheet import Sheet, marked
from ppdbench.stats import FEW, FEW_EXAMPLES

# Words beside a mark that differs in shape too, so that colour says nothing alone.
MARKS = {"good": "✓", "bad": "✗", "warn": "!", "plain": "·"}


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: where links lead, what it is called, what is in it."""

    anchor: str
    title: str
    body: Sequence[Child]

    @property
    def drawings(self) -> list[Drawing]:
        """The drawings of a section, those of its parts included."""
        return [d for child in self.body if isinstance(child, Gallery) for d in child.drawings]

    def node(self) -> Node:
        """The section, under a heading of the second level."""
        heading = f"{self.anchor}-title"
        return h(
            "section",
            h("h2", self.title, id=heading),
            self.body,
            id=self.anchor,
            aria_labelledby=heading,
        )


def figure(drawing: Drawing) -> Node:
    """A drawing under its title."""
    return h(
        "figure",
        h("figcaption", drawing.title),
        svg(drawing),
        h("p", drawing.description, class_="words"),
    )


@dataclass(frozen=True, slots=True)
class Gallery(Node):
    """Drawings side by side, as many as there is room for."""

    drawings: Sequence[Drawing]


def gallery(drawings: Sequence[Drawing]) -> Gallery | None:
    """A gallery of these drawings, if there are any."""
    figures = tuple(map(figure, drawings))
    return Gallery("div", {"class": "gallery"}, figures, drawings) if drawings else None


def html_table(sheet: Sheet) -> Node:
    """A table that scrolls inside its own box where it is wider than the page."""
    numeric = [sheet.is_number(i) for i in range(len(sheet.header))]
    heads = (
        h("th", name, scope="col", class_=_number(n)) for name, n in _zip(sheet.header, numeric)
    )
    return h(
        "div",
        h(
            "div",
            h(
                "table",
                h("caption", sheet.title),
                h("thead", h("tr", heads)),
                h("tbody", (_row(row, numeric) for row in sheet.text_rows())),
            ),
            class_="scroll",
            tabindex=0,
            role="region",
            aria_label=f"table: {sheet.title}",
        ),
        (h("p", with_code(note), class_="note") for note in sheet.notes),
        class_="sheet",
    )


def _zip(names: Sequence[str], numeric: Sequence[bool]) -> Iterator[tuple[str, bool]]:
    return zip((name.replace("\n", " ") for name in names), numeric, strict=True)


def _row(cells: Sequence[str], numeric: Sequence[bool]) -> Node:
    first, *others = cells
    return h(
        "tr",
        h("th", first, scope="row", class_=_number(numeric[0])),
        (h("td", text, class_=_number(n)) for text, n in _zip(others, numeric[1:])),
    )


def _number(numeric: bool) -> str | None:
    return "n" if numeric else None


def folded(summary: str, *content: Child) -> Node:
    """Fold away what only some readers want to see."""
    return h("details", h("summary", summary), content)


def badge(kind: str, words: str) -> Node:
    """A short verdict: good, bad, warn or plain."""
    mark = h("span", MARKS[kind], aria_hidden="true")
    return h("span", mark, " ", words, class_=f"badge {kind}")


def with_code(words: str) -> list[Child]:
    """Words of which those between backticks are set as code; as they are where one is odd."""
    if words.count("`") % 2:
        return [words]
    return [h("code", part) if i % 2 else part for i, part in enumerate(words.split("`"))]


def definition_list(pairs: Sequence[tuple[str, Child]]) -> Node:
    """Names and what they stand for."""
    return h("dl", ((h("dt", name), h("dd", value)) for name, value in pairs), class_="facts")


def by_run(runs: Sequence[Run], show: Callable[[Run], Sequence[Child]]) -> list[Child]:
    """Show each run, under its name where there are several."""
    body: list[Child] = []
    for run in runs:
        content = show(run)
        body += [h("h3", run.name) if content and len(runs) > 1 else None, *content]
    return body


def few(run: Run) -> list[Node]:
    """Say what a reader has to know of intervals over few examples, and of an unfinished run."""
    words = FEW if run.fewest_examples < FEW_EXAMPLES else ""
    return paragraphs(words, run.unfinished or "", class_="note")


def all_numbers(run: Run, sheets: Sequence[Sheet]) -> Node:
    """Show all tables of a run, out of the way."""
    return folded("All numbers", map(html_table, marked(sheets, run.unfinished)))


def paragraphs(*words: str, class_: str | None = None) -> list[Node]:
    """Make each text a paragraph."""
    return [h("p", text, class_=class_) for text in words if text]
