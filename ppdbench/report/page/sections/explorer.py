"""Single examples, drawn by the page's script from the data that come with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ppdbench.files.clean import cleaned
from ppdbench.report.html import Node, Raw, h
from ppdbench.report.page.parts import Section

# What would end a script element is written as escapes of JSON.
ESCAPES = {c: f"\\u{ord(c):04x}" for c in "<>&"}


def section(examples: Sequence[dict[str, Any]]) -> Section | None:
    """Boxes to choose from, and a place for what was chosen."""
    if not examples:
        return None
    boxes = [("run", "Run"), ("kind", "Verdict"), ("example", "Example"), ("method", "Method")]
    controls = h(
        "div",
        (h("label", words, h("select", id=f"pick-{name}")) for name, words in boxes),
        h("button", "← Previous", type="button", id="previous"),
        h("button", "Next →", type="button", id="next"),
        class_="controls",
    )
    explorer = h(
        "div",
        controls,
        h("p", id="left-out", class_="note"),
        h("div", id="view", aria_live="polite"),
        id="explorer",
        hidden=True,
    )
    no_script = h("noscript", h("p", "Looking into examples needs JavaScript; all else does not."))
    return Section("examples", "Examples", (explorer, no_script, examples_data(examples)))


def examples_data(examples: Sequence[dict[str, Any]]) -> Node:
    """Data for the script, in which nothing can end the element that holds it."""
    shown = cleaned(examples, "script")
    text = json.dumps(shown, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return h("script", Raw(text), type="application/json", id="examples-data")
