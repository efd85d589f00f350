"""Memory that this process frees, kept for what it asks for next.

The C library gives a large block back to the system as soon as it is freed, and for the next one
the system clears every page anew. A training step makes and drops hundreds of blocks of the same
sizes: with a vocabulary of 49,152 words the clearing of pages took a quarter of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ppdbench.machine.pages import trim

# Settings of mallopt(3).
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
NEVER = -1
# The C library's own, as they are where a process has freed large blocks. It adapts them to what
# is freed until one of them is set; from then on they stay.
USUAL = {MMAP_THRESHOLD: 32 << 20, TRIM_THRESHOLD: 64 << 20, MMAP_MAX: 65536}

_keepers = 0


@contextmanager
def reuse_freed() -> Iterator[None]:
    """Keep freed memory within the process meanwhile; afterwards the system gets it back.

    Without the GNU C library nothing changes.
    """
    global _keepers
    if not _keepers:
        _set({MMAP_MAX: 0, TRIM_THRESHOLD: NEVER})
    _keepers += 1
    try:
        yield
    finally:
        _keepers -= 1
        if not _keepers:
            _set(USUAL)
            trim()


def _set(values: dict[int, int]) -> None:
    if sys.platform != "linux":
        return
    from ppdbench.machine import libc

    with suppress(OSError):
        for setting, value in values.items():
            libc.checked("mallopt", setting, value)
