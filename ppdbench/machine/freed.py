"""Memory that this process frees, kept for what it asks for next.

The C library gives a large block back to the system as soon as it is freed, and for the next one
the system clears every page anew. A training step makes and drops hundreds of blocks of the same
sizes: with a vocabulary of 49,152 words the clearing of pages took a quarter of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


class Scattered:
    """Watches over memory that is kept: where sizes change it lies in pieces that nothing fits.

    Then the process grows with every step, though it uses no more. `look` after each step gives all
    that is free back to the system once that has become much.
    """

    SETTLING = 3  # looks after which a process has what its steps need
    GROWTH, SLACK = 1.5, 1 << 30

    def __init__(self) -> None:
        self._looks, self._usual = 0, 0

    def look(self) -> None:
        """Give back what is free, where the process has grown by half and a gigabyte."""
        held, self._looks = resident_bytes(), self._looks + 1
        if self._looks <= self.SETTLING:
            self._usual = max(self._usual, held)
        elif held > self.GROWTH * self._usual + self.SLACK:
            trim()
            self._looks, self._usual = 0, 0


def resident_bytes() -> int:
    """Memory that this process has in use, as the system sees it; 0 where nobody says."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _set(values: dict[int, int]) -> None:
    if sys.platform != "linux":
        return
    from ppdbench.machine import libc

    with suppress(OSError):
        for setting, value in values.items():
            libc.checked("mallopt", setting, value)
