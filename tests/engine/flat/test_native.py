"""How kernels are built and kept, and that wrong ones are found out."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path

import pytest
import torch

from ppdbench.engine.flat import library as kernels_of
from ppdbench.engine.flat import native, ops, weights
from ppdbench.engine.flat.check import Wrong, check
from ppdbench.engine.flat.native import Library, Unavailable, built
from tests.engine.flat.test_weights import drawn, packed

# Small things that are built as kernels are, in a fraction of the time.
PLAIN = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with something small to build, and a cache of its own."""
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "kernels.cpp").write_text(PLAIN, encoding="utf-8")
    return folder


def test_what_is_built_is_kept(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = built(sources)
    monkeypatch.setattr(native, "_compile", None)
    assert built(sources) == path and path.is_file()


def test_changed_sources_are_built_anew(sources: Path) -> None:
    before = built(sources)
    (sources / "kernels.cpp").write_text(PLAIN.replace("42", "43"), encoding="utf-8")
    assert built(sources) != before
    (sources / "more.h").write_text("", encoding="utf-8")
    assert built(sources) != before


@pytest.mark.parametrize("damage", ["cut", "changed", "without digest"])
def test_what_is_damaged_is_built_again(sources: Path, damage: str) -> None:
    path = built(sources)
    whole = path.read_bytes()
    if damage == "without digest":
        path.with_suffix(".sha256").unlink()
    else:
        path.unlink()  # not written over: this process may have it loaded
        path.write_bytes(whole[:99] if damage == "cut" else whole[:-1] + b"x")
    assert built(sources).read_bytes()[:4] == whole[:4]
    assert len(path.read_bytes()) == len(whole)
    assert native._is_whole(path)


def test_two_processes_may_build_at_once(sources: Path) -> None:
    children = []
    for _ in range(2):
        if (child := os.fork()) == 0:
            os._exit(ctypes.CDLL(str(built(sources))).answer())
        children.append(child)
    said = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert said == [42, 42]
    assert len(list((sources.parent / "cache").rglob("*.so"))) == 1


def test_without_a_compiler_there_are_no_kernels_and_the_reason_is_plain(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(Unavailable, match=r"no-such-compiler.*install"):
        built(sources)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler found; install"):
        built(sources)


def test_what_does_not_compile_is_said(sources: Path) -> None:
    (sources / "kernels.cpp").write_text("int broken(", encoding="utf-8")
    with pytest.raises(Unavailable, match=r"cannot build the kernels: .*error"):
        built(sources)
    assert not list((sources.parent / "cache").rglob("*.so"))


def test_a_folder_that_cannot_be_written_to_is_said(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = sources.parent / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("PPDBENCH_CACHE", str(blocked))
    with pytest.raises(Unavailable, match="PPDBENCH_CACHE"):
        built(sources)


# Bugs that somebody could make: the file, what stands there, what would, and the types it spoils.
BUGS = {
    "a wrong tail column": (
        "kernels.cpp",
        "by_vectors(left < BLOCK ? left : BLOCK, [&](int64_t j, int64_t some) {\n"
        "                    Vec x = finished(*product",
        "by_vectors(left < BLOCK ? left - 1 : BLOCK, [&](int64_t j, int64_t some) {\n"
        "                    Vec x = finished(*product",
        (torch.float32, torch.bfloat16),
    ),
    "stale sums of a row": (
        "linear.h",
        "held[i][j] = first ? load(sums + i * BLOCK + j * LANES) : Vec{};",
        "held[i][j] = load(sums + i * BLOCK + j * LANES);",
        (torch.float32, torch.bfloat16),
    ),
    "stale numbers behind a row": (
        "rows.h",
        "for (int64_t i = 0; i < deep; i += LANES)\n        store(to",
        "for (int64_t i = 0; i < width; i += LANES)\n        store(to",
        (torch.bfloat16,),
    ),
    "a missing bias": (
        "kernels.cpp",
        "if (product.bias) sum = sum + load(product.bias + out);",
        "",
        (torch.float32, torch.bfloat16),
    ),
    "a key too few": (
        "attention.h",
        "found.end = found.before + count;",
        "found.end = found.before + count - (count > 0);",
        (torch.float32, torch.bfloat16),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_wrong_kernels_are_found_out(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, right, wrong, spoiled = BUGS[bug]
    folder = tmp_path / "sources"
    shutil.copytree(native.SOURCES, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (folder / file).read_text(encoding="utf-8")
    assert text.count(right) == 1
    (folder / file).write_text(text.replace(right, wrong), encoding="utf-8")
    flags = [flag.replace("-O3", "-O0") for flag in native.FLAGS]  # builds in a quarter of the time
    monkeypatch.setattr(native, "FLAGS", flags)
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path / "cache"))
    library = Library(built(folder))
    for module in (native, ops, weights, kernels_of):
        monkeypatch.setattr(module, "loaded", lambda: library)
    for dtype in spoiled:
        if dtype == torch.bfloat16:
            library.use(library.paths[-1])
        with pytest.raises(Wrong):
            check(dtype)
    if torch.float32 in spoiled:
        with pytest.raises(Unavailable, match="fail their check"):
            kernels_of.library.__wrapped__()


def test_a_way_to_multiply_that_fails_its_check_gives_way_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = native.loaded()
    refused = chosen.paths[0]
    used: list[int] = []

    def use(path: int) -> None:
        used.append(path)

    def checked(dtype: torch.dtype) -> None:
        if dtype == torch.bfloat16 and used[-1] == refused:
            raise Wrong("a product is off")

    monkeypatch.setattr(Library, "paths", [refused, native.VECTORS])
    monkeypatch.setattr(chosen, "use", use, raising=False)
    monkeypatch.setattr(kernels_of, "check", checked)
    found = kernels_of.library.__wrapped__()
    if refused == native.VECTORS:
        pytest.skip("this processor has one way alone")
    assert found.path == native.VECTORS
    assert found.dropped == (f"{kernels_of.NAMES[refused]}: a product is off",)


def test_a_child_process_has_threads_of_its_own() -> None:
    linear, rows = packed((300, 130), torch.float32), drawn(9, 130)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    wanted = linear(rows)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(linear(rows), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(linear(rows), wanted)
    torch.set_num_threads(before)
