"""The garbage collector is off for a while, and afterwards as it was."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

from ppdbench.machine.garbage import import_for_good, no_collection


def test_the_collector_is_off_meanwhile_and_on_again_after_an_error() -> None:
    assert gc.isenabled()
    with pytest.raises(ImportError), no_collection():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()


def test_whoever_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_is_imported_for_good_is_never_looked_through_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lasting.py").write_text("import gc\nmade = [[]]\nwas_on = gc.isenabled()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "lasting", raising=False)
    try:
        import_for_good("lasting")
        lasting = sys.modules["lasting"]
        assert not lasting.was_on
        assert gc.isenabled()
        assert not any(thing is lasting.made for thing in gc.get_objects())
    finally:
        gc.unfreeze()


def test_what_is_there_already_freezes_nothing() -> None:
    before = gc.get_freeze_count()
    import_for_good("sys", "gc")
    assert gc.get_freeze_count() == before
