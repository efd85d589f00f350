"""The garbage collector is off for a while, and afterwards as it was."""

from __future__ import annotations

import gc

import pytest

from ppdbench.garbage import no_collection


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
