"""The clock that decoding is timed with; tests put a scripted one in its place."""

from __future__ import annotations

import time

import torch


class Clock:
    """Wall time in seconds, read when the device has caught up."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self) -> None:
        """Wait for everything queued on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def now(self) -> float:
        """Seconds. A step reads its token first, so the device is idle by then."""
        return time.perf_counter()
