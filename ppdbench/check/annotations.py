"""A comparison as the lines that GitHub Actions turns into annotations of a job."""

from __future__ import annotations

from collections.abc import Iterator

from ppdbench.check.comparison import Comparison
from ppdbench.files.clean import clean


def to_github(comparison: Comparison) -> Iterator[str]:
    """An error for each failed check, a warning for each example that did not run."""
    for check in comparison.failed:
        yield _line("error", check.name, check.sentence)
    for text in comparison.unfinished:
        yield _line("warning", "example not run", text)


def _line(level: str, title: str, text: str) -> str:
    return f"::{level} title={clean(title, 'github title')}::{clean(text, 'github')}"
