"""The exam of a program: tests in a process that the program never enters."""

from __future__ import annotations

from typing import NamedTuple


class Exam(NamedTuple):
    """Tests as source. They run apart from the program, whose functions they call from afar.

    `given` is source that the program begins with; its definitions serve the tests as they
    stand there, whatever the program makes of them. Only `entry_point` and names that neither
    defines are the program's own.
    """

    source: str = ""
    given: str = ""
    entry_point: str = ""
