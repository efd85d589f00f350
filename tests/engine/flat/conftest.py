"""The kernels of this machine, where it has a compiler."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ppdbench.engine.flat import check, native, ops, stored, weights
from ppdbench.engine.flat import library as kernels_of
from ppdbench.engine.flat.library import Unavailable, library
from ppdbench.engine.flat.native import EMULATED_TILES, Library, built, loaded

Planted = Callable[[str, str, str], Library]


def compiler_works(folder: Path) -> bool:
    """True if something here compiles C++ for this processor: then it must compile the kernels."""
    empty = folder / "empty.cpp"
    empty.write_text("#include <thread>\nint main() {}\n", encoding="utf-8")
    try:
        compilers = native._compilers()
    except Unavailable:
        return False
    commands = [[*words, *native.FLAGS, "-fsyntax-only", str(empty)] for words in compilers]
    return any(subprocess.run(words, check=False).returncode == 0 for words in commands)


@pytest.fixture(scope="session", autouse=True)
def kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip, and say so, where there is no compiler; kernels that it refuses or wrong ones fail."""
    try:
        for dtype in (torch.float32, torch.bfloat16):
            library(dtype)
    except Unavailable as error:
        if compiler_works(tmp_path_factory.mktemp("compiler")):
            raise
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
    chosen = library(torch.bfloat16).path
    assert chosen is not None
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


def put_in_place(library: Library, patch: pytest.MonkeyPatch) -> None:
    """Have a library used where this machine's would be."""
    for module in (native, ops, stored, weights, check, kernels_of):
        patch.setattr(module, "loaded", lambda: library)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Kernels with a bug, in the place of this machine's: in a file something wrong for right."""

    def plant(file: str, right: str, wrong: str) -> Library:
        folder = tmp_path / "sources"
        ignored = shutil.ignore_patterns("*.py", "__pycache__")
        shutil.copytree(native.SOURCES, folder, ignore=ignored)
        text = (folder / file).read_text(encoding="utf-8")
        assert text.count(right) == 1
        (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
        quick = [flag.replace("-O3", "-O0") for flag in native.FLAGS]  # takes a quarter of the time
        monkeypatch.setattr(native, "FLAGS", quick)
        monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path / "cache"))
        library = Library(built(folder))
        put_in_place(library, monkeypatch)
        return library

    return plant
