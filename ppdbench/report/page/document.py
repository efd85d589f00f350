"""The page as one file: style, script and data are inside, and its policy forbids all fetches."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ppdbench import __version__
from ppdbench.report.html import Node, Raw, h
from ppdbench.report.page.examples import gathered
from ppdbench.report.page.parts import Section
from ppdbench.report.page.runs import Run
from ppdbench.report.page.sections import (
    acceptance,
    batches,
    downloads,
    explorer,
    latency,
    overview,
    probes,
    setting,
    speed,
    sweep,
    terms,
    theory,
    verdicts,
)
from ppdbench.report.pictures import palette
from ppdbench.report.pictures.drawing import STYLE, Drawing

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Page:
    """The text of the file, and everything drawn in it."""

    text: str
    drawings: tuple[Drawing, ...]


def page(runs: Sequence[Run], first: Sequence[Section] = (), last: Sequence[Section] = ()) -> Page:
    """The report on these runs; `first` and `last` are sections around those of every report."""
    own = [section for part in PARTS if (section := part(runs))]
    sections = [*first, *own, *last]
    drawings = tuple(drawing for section in sections for drawing in section.drawings)
    return Page(_document(runs, sections), drawings)


PARTS: Sequence[Callable[[Sequence[Run]], Section | None]] = (
    setting.section,
    verdicts.section,
    speed.section,
    batches.section,
    sweep.section,
    probes.matches,
    theory.section,
    acceptance.section,
    latency.section,
    probes.drafts,
    probes.similarity,
    lambda runs: explorer.section(gathered(runs)),
    terms.section,
    downloads.section,
)


def _document(runs: Sequence[Run], sections: Sequence[Section]) -> str:
    style, script = _style(), (HERE / "page.js").read_text("utf-8")
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        h("meta", name="generator", content=f"ppdbench {__version__}"),
        h("title", f"{_title(runs)} – ppdbench"),
        h("style", Raw(style)),
    )
    body = h(
        "body",
        h("a", "Skip to the results", href="#main", class_="skip"),
        _header(runs),
        h(
            "nav",
            h("ul", (h("li", h("a", s.title, href=f"#{s.anchor}")) for s in sections)),
            aria_label="Contents",
        ),
        h("main", (section.node() for section in sections), id="main"),
        h(
            "footer",
            h("p", f"Made by ppdbench {__version__} from stored runs; no model was loaded."),
        ),
        h("script", Raw(script)),
    )
    return f"<!doctype html>\n{h('html', head, body, lang='en')}\n"


def _header(runs: Sequence[Run]) -> Node:
    return h(
        "header",
        h("p", "ppdbench report", class_="eyebrow"),
        h("h1", _title(runs)),
        h("p", _lead(runs), class_="lead"),
        overview.tiles(runs),
        h("button", "Dark", type="button", id="theme", hidden=True),
    )


def _title(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(_called(run.header.model.name) for run in runs))


def _called(model: str) -> str:
    """Name a model: of a folder its own name, of the hub's ids all."""
    if not re.match(r"[./~]|\w:\\", model) and model.count("/") < 2:
        return model
    return re.split(r"[/\\]", model.rstrip("/\\"))[-1] or model


def _lead(runs: Sequence[Run]) -> str:
    tasks = list(dict.fromkeys(task for run in runs for task in run.tasks))
    kinds = list(dict.fromkeys(run.kind for run in runs))
    count = "One run" if len(runs) == 1 else f"{len(runs)} runs"
    words = [f"{count} ({', '.join(kinds)}) on {', '.join(tasks)}."]
    if any(run.header.model.synthetic for run in runs):
        words.append("The weights are random: outputs mean nothing, times do.")
    lacking = [run for run in runs if run.unfinished]
    words += [f"{'' if len(runs) == 1 else f'{r.name}: '}{r.unfinished}" for r in lacking]
    return " ".join(words)


def _style() -> str:
    light, dark = palette.variables(dark=False), palette.variables(dark=True)
    themes = (
        f":root{{{light}}}"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}"
        f":root[data-theme=dark]{{{dark}}}"
    )
    return themes + palette.paints() + STYLE + (HERE / "page.css").read_text("utf-8")


def _policy(style: str, script: str) -> str:
    """Return the policy: nothing is fetched, and no style or script but these two takes effect."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"
