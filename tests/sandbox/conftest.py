"""The layers that a test of the sandbox runs under."""

from __future__ import annotations

import pytest

from tests.sandbox.made import (
    BARE,
    LEAST,
    NO_NAMESPACES,
    WRAPPED,
    held,
)


@pytest.fixture(
    params=[WRAPPED, BARE, NO_NAMESPACES, LEAST],
    ids=["bubblewrap", "all but it", "no namespaces", "least"],
)
def layers(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """All layers, and what remains where the system offers fewer."""
    chosen: tuple[str, ...] = request.param
    missing = set(chosen) - held(chosen)
    if missing:
        pytest.skip(f"this system has no {', '.join(sorted(missing))}")
    return chosen
