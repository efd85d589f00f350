"""Interrupts: Ctrl-C and being told to end, once for a key that is held down."""

from __future__ import annotations

import signal
import time
from types import FrameType

HELD_S = 0.5  # a key that is held down comes again sooner


class Interrupts:
    """Raises `KeyboardInterrupt`, but not for what comes again at once.

    That would fall into the middle of ending, and end there in a traceback.
    """

    def __init__(self) -> None:
        self._last = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        held, self._last = now - self._last < HELD_S, now
        if not held:
            raise KeyboardInterrupt

    def listen(self, *, to_ignored: bool = False) -> None:
        """Listen from now on; to Ctrl-C where nobody wants it ignored, or in spite of that."""
        signal.signal(signal.SIGTERM, self)
        if to_ignored or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)
