"""Interrupts: Ctrl-C and being told to end, once for a key that is held down."""

from __future__ import annotations

import signal
import time
from types import FrameType

HELD_S = 2.0  # in which a command ends: what comes again meanwhile is the same interrupt


class Interrupts:
    """Raises `KeyboardInterrupt`, but not for what comes again at once.

    That would fall into the middle of ending, and end there in a traceback. What comes later is
    raised again: a library may have dropped the first.
    """

    def __init__(self) -> None:
        self._raised = float("-inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._raised >= HELD_S:
            self._raised = now
            raise KeyboardInterrupt

    def listen(self, *, to_ignored: bool = False) -> None:
        """Listen from now on; to Ctrl-C where nobody wants it ignored, or in spite of that."""
        signal.signal(signal.SIGTERM, self)
        if to_ignored or signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self)
