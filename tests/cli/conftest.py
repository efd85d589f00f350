"""Methods and sweeps that are made for a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from tests.cli.swept import Drafting
from tests.report.made import GRID, SPEEDS
from tests.sweeps import cells, header, write
from tests.training.conftest import home as home


@pytest.fixture
def odd() -> Iterator[list[str]]:
    """A method with good cells and bad ones; which were closed, in order."""
    closed: list[str] = []

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd:
        how: str = "works"
        n: int = 0

        def prepare(self, setup: Setup) -> Proposer:
            if self.how == "absent":
                raise ConfigError("odd: no weights at hand")
            decoder = Drafting(self.how)
            decoder.close = lambda: closed.append(f"{self.how}{self.n}")  # type: ignore[method-assign]
            return decoder

    METHODS.add("odd", Method("odd", Odd, True, False, "Odd."))
    yield closed
    del METHODS._items["odd"]


@pytest.fixture
def stored() -> str:
    write(Path("stored"), header(GRID, 4), cells(SPEEDS))
    return "stored"
