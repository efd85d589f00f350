"""Word of a unit's death at once, whatever this process is doing: a baseline can take minutes.

The system sends a signal when a child has died. Nothing is asked in between, so that nothing is
timed besides.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

Look = Callable[[], None]

_looks: list[Look] = []
_before: Any = None  # what the signal did until the first of them
_owner = 0  # the process that has the children; copies of it have none


def set_alarm(look: Look) -> None:
    """Call this when a child has died; where it raises, the work of the main thread ends.

    Only the main thread gets signals; elsewhere units are looked at when they are waited for.
    """
    global _before, _owner
    if not hasattr(signal, "SIGCHLD") or threading.current_thread() is not threading.main_thread():
        return
    if not _looks:
        _owner = os.getpid()
        _before = signal.signal(signal.SIGCHLD, _ring)
        signal.siginterrupt(signal.SIGCHLD, False)  # nobody else's calls are cut short
    _looks.append(look)


def drop_alarm(look: Look) -> None:
    """Stop calling it when a child dies."""
    if look not in _looks:
        return
    _looks.remove(look)
    if not _looks and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, _before or signal.SIG_DFL)


def _ring(*_: object) -> None:
    if os.getpid() == _owner:
        for look in _looks:
            look()
