"""The kernels of this machine, where it has a compiler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ppdbench.engine.flat.library import Unavailable, library
from ppdbench.engine.flat.native import EMULATED_TILES, loaded


@pytest.fixture(scope="session", autouse=True)
def kernels() -> None:
    """Skip, and say so, where there are none."""
    try:
        library()
    except Unavailable as error:
        pytest.skip(str(error))


def ways() -> list[tuple[torch.dtype, int]]:
    """List the types, and the ways to multiply them that can run here: emulated tiles anywhere."""
    try:
        paths = [*loaded().paths, EMULATED_TILES]
    except Unavailable:
        paths = []
    return [(torch.float32, 0), *((torch.bfloat16, path) for path in paths)]


@pytest.fixture(params=ways(), ids=lambda way: f"{str(way[0]).removeprefix('torch.')}-{way[1]}")
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """Each type with each way to multiply it."""
    dtype, path = request.param
    chosen = library().path
    loaded().use(path)
    yield dtype
    loaded().use(chosen)


@pytest.fixture(params=[1, 2, 3], ids="{}-threads".format)
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Numbers of threads, one of them more than some machines have cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
