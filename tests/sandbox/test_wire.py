"""Lines between two processes, which have an end."""

from __future__ import annotations

import os
import threading

import pytest

from ppdbench.sandbox import wire
from ppdbench.sandbox.wire import TooLong, Wire


def test_a_line_has_an_end() -> None:
    reader, writer = os.pipe()

    def flood() -> None:
        for _ in range(wire.MOST // 10_000 + 2):
            os.write(writer, b"x" * 10_000)

    there = threading.Thread(target=flood, daemon=True)
    there.start()
    with pytest.raises(TooLong):
        Wire(reader, writer).receive()
    while there.is_alive():
        os.read(reader, 1 << 16)
        there.join(0.001)
    os.close(reader)
    os.close(writer)
