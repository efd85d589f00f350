"""The house as its imports show it; `make check` holds the order of the packages."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "ppdbench"
MOST_LOOSE = 8


def test_few_modules_lie_loose_beside_the_packages() -> None:
    loose = sorted(path.name for path in PACKAGE.glob("*.py"))
    assert len(loose) <= MOST_LOOSE, loose
