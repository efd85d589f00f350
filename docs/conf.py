"""The site: `make docs` builds it from the pages as they are, and any broken link ends it.

The repository is the source, so that links between pages, the README and the files beside the code
lead to the same places here as on a code host. What the index lists becomes the navigation.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from ppdbench import __version__

project = "ppdbench"
author = "The ppdbench authors"
copyright = "the ppdbench authors, Apache-2.0"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**.md",
    "ppdbench/*/README.md",
    "results/README.md",
    "results/pipelined/table.md",
    "results/tables/*.md",
]
# Folders without pages, which nobody needs to walk through.
exclude_patterns = ["build", ".venv", ".git", "**/runs", "tests", "benchmarks"]

smartquotes = False  # options and their quotes are shown in tables as they are typed
myst_heading_anchors = 4  # as code hosts name them, so that one link serves both
nitpicky = True
# Exported tables begin at a third heading, and the index need not list every table: a test says
# which pages it must.
suppress_warnings = ["myst.header", "toc.not_included"]

html_theme = "furo"
html_title = f"ppdbench {release}"
html_show_sourcelink = False
html_copy_source = False
html_static_path, html_css_files = ["static"], ["site.css"]
html_extra_path = ["site"]  # sends the top of the site to the index
templates_path: list[str] = []


def contents(index: str) -> str:
    """A table of contents for each heading of the index, of the pages that are listed under it."""
    trees = []
    for section in index.split("\n## ")[1:]:
        caption, _, listed = section.partition("\n")
        pages = re.findall(r"^- \[[^]]+\]\(([\w/.-]+)\.md\)", listed, flags=re.MULTILINE)
        head = f"```{{toctree}}\n:hidden:\n:caption: {caption}\n"
        trees.append("\n".join([head, *pages, "```", ""]))
    return "\n".join(trees)


def add_navigation(_app: Any, page: str, source: list[str]) -> None:
    """Put the contents under the index, where they are read but not shown."""
    if page == root_doc:
        source[0] += "\n" + contents(source[0])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
