"""Where optional things lie, and models that many tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ppdbench.bench import claims
from ppdbench.engine import packing
from ppdbench.engine.flat import native

# Tiny models are faster on one thread, and files run side by side (pytest -n).
torch.set_num_threads(1)

# Their matrices are far below the size from which packing pays; packed they are all the same,
# or the kernels that real models run on would go untested.
packing.PAYS_FROM = dict.fromkeys(packing.PAYS_FROM, 1)

# Matrix tiles are tested on every processor; programs that tests start build what users do.
native.FLAGS += ("-DFLAT_EMULATED_TILES",)

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Hold each test to leaving one thread: copies of this process cannot compute with more."""
    yield
    left = torch.get_num_threads()
    torch.set_num_threads(1)
    assert left == 1, f"{left} threads are left to the tests behind this one"


@pytest.fixture(scope="session")
def real_rows() -> Path:
    """Real evaluation rows, where they are at hand."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no real data beside the project")
    return SHARED / "data"


@pytest.fixture(scope="session")
def sandboxed() -> None:
    """Generated programs, where this machine can hold them."""
    from ppdbench.errors import ConfigError
    from ppdbench.sandbox.outside import check_held

    try:
        check_held()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def stories() -> Path:
    """A small real model, where it is at hand."""
    folder = SHARED / "models" / "stories260K"
    if not folder.is_dir():
        pytest.skip("no real model beside the project")
    return folder


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stdout as a terminal of 80 columns, without codes."""
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def undoubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speedups whatever the machine puts between two steps: else they are withheld for it."""
    monkeypatch.setattr(claims, "closes", lambda samples: True)
