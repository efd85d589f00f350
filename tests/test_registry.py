"""Named things: known before they are imported, and never overwritten by accident."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ppdbench.errors import UnknownName
from ppdbench.registry import Registry

THINGS: Registry[str] = Registry("thing")


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[str]:
    """A registry that knows where `late` is registered, and has not been there."""
    code = "from tests.test_registry import THINGS\nTHINGS.add('late', 'here it is')\n"
    (tmp_path / "late_thing.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "late_thing", raising=False)
    monkeypatch.setattr(THINGS, "_items", {})
    THINGS.later("late", "late_thing")
    return THINGS


def test_what_comes_later_is_imported_when_it_is_asked_for(late: Registry[str]) -> None:
    late.add("early", "there already")
    assert late.names() == ["late", "early"]
    assert "late" in late
    assert "late_thing" not in sys.modules
    assert late.get("late") == late.get("late") == "here it is"
    assert late.names() == ["late", "early"]


def test_nobody_else_takes_a_name_whether_it_is_imported_or_not(late: Registry[str]) -> None:
    for _ in range(2):
        for take in (lambda: late.add("late", "mine"), lambda: late.later("late", "os")):
            with pytest.raises(ValueError, match="thing 'late' is already registered"):
                take()
        assert late.get("late") == "here it is"


def test_near_names_are_suggested() -> None:
    found: Registry[int] = Registry("thing")
    found.add("layerskip", 1)
    with pytest.raises(UnknownName, match="did you mean layerskip"):
        found.get("layerskp")


def test_names_far_from_the_nearest_one_are_not_suggested() -> None:
    found: Registry[int] = Registry("task")
    for name in ("gsm8k", "xsum"):
        found.add(name, 1)
    with pytest.raises(UnknownName, match=r"did you mean gsm8k\?"):
        found.get("gsm8")
    with pytest.raises(UnknownName, match=r"did you mean xsum\?"):
        found.get("sum")
