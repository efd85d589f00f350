"""Two pipes between the program's process and that of its tests, one line of JSON at a time."""

from __future__ import annotations

import json
import os
from typing import Any

MOST = 1 << 22  # of one line: more than any test compares


class TooLong(Exception):
    """An error: more came than anyone reads."""


class Wire:
    """One end of it."""

    def __init__(self, inlet: int, outlet: int) -> None:
        self._inlet, self._outlet = inlet, outlet
        self._read = bytearray()

    def send(self, what: dict[str, Any]) -> None:
        """Write one line; OSError where nobody reads any more."""
        left = memoryview(json.dumps(what).encode() + b"\n")
        while left:
            left = left[os.write(self._outlet, left) :]

    def receive(self) -> dict[str, Any] | None:
        """The next line; None at the end, ValueError for anything but an object."""
        while (end := self._read.find(b"\n")) < 0:
            if len(self._read) > MOST:
                raise TooLong
            data = os.read(self._inlet, 1 << 16)
            if not data:
                return None
            self._read += data
        line = bytes(self._read[:end])
        del self._read[: end + 1]
        try:
            content = json.loads(line)
        except RecursionError:
            content = None
        if not isinstance(content, dict):
            raise ValueError("no object")
        return content
