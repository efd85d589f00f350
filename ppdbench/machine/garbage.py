"""Work that makes hundreds of thousands of objects which all stay, such as large imports."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def no_collection() -> Iterator[None]:
    """Stop the search for garbage: it would go through all that is there again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def import_for_good(*modules: str) -> None:
    """Import modules with no search for garbage meanwhile, and none through them ever after.

    Where all of them are there, nothing happens: what has been made since may become garbage.
    """
    if all(name in sys.modules for name in modules):
        return
    with no_collection():
        for name in modules:
            import_module(name)
        gc.freeze()
