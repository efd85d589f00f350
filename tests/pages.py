"""The pages of the documentation, and what a reader is told to type in them."""

from __future__ import annotations

import re
from pathlib import Path

from markdown_it import MarkdownIt

from tests.conftest import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
# The order in which they are read: what stands on two of them is run for the first.
PAGES = (
    README,
    *sorted(DOCS.glob("*.md")),
    *(p for p in [ROOT / "CONTRIBUTING.md"] if p.is_file()),
)


def name(page: Path) -> str:
    """The page as tests call it."""
    return page.stem.lower()


def blocks(page: Path, *languages: str) -> list[str]:
    """The contents of fenced blocks in these languages."""
    tokens = MARKDOWN.parse(page.read_text("utf-8"))
    return [t.content for t in tokens if t.type == "fence" and t.info.strip() in languages]


def commands(page: Path) -> list[str]:
    """Every line that a reader is told to type."""
    return [line for block in blocks(page, "sh") for line in block.splitlines()]


def scripts(page: Path) -> list[str]:
    """Commands inside what is not typed: job scripts, workflows, launches over machines."""
    joined = re.sub(r"\\\n\s*", "", "\n".join(blocks(page, "", "bash", "yaml")))
    folded = re.sub(r"\n\s+(?=--)", " ", joined)
    found = re.findall(r"(?<![-\w])ppdbench (?=[a-z])[^>\n]*", folded)
    # A command in quotes, as ssh takes it, ends with one of them.
    return [c.strip().rstrip('"') if c.count('"') % 2 else c.strip() for c in found]
