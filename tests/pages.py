"""The pages of the documentation, and what a reader is told to type in them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.conftest import ROOT

README = ROOT / "README.md"
DOCS = ROOT / "docs"
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
# What stands on two of them is run for the first.
PAGES = (README, ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md")))
# Everything with links in it that somebody may follow.
LINKED = (
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.glob("*.md")),
    ROOT / "results" / "README.md",
    ROOT / "ppdbench" / "reference" / "README.md",
    ROOT / "ppdbench" / "builtin" / "README.md",
)


def name(page: Path) -> str:
    """The page as tests call it."""
    return page.stem.lower()


@cache
def tokens(page: Path) -> list[Token]:
    """The page, parsed."""
    return MARKDOWN.parse(page.read_text("utf-8"))


def blocks(page: Path, *languages: str) -> list[str]:
    """The contents of fenced blocks in these languages."""
    return [t.content for t in tokens(page) if t.type == "fence" and t.info.strip() in languages]


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


def links(page: Path) -> list[str]:
    """Where links and pictures of a page lead to, as they stand there."""
    inner = [child for token in tokens(page) for child in token.children or ()]
    where = {"link_open": "href", "image": "src"}
    found = [token.attrGet(where[token.type]) for token in inner if token.type in where]
    return [str(link) for link in found if link]
