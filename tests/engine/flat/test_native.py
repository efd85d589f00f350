"""How kernels are built and kept, and that wrong ones are found out."""

from __future__ import annotations

import ctypes
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ppdbench.engine.flat import native
from ppdbench.engine.flat.native import Unavailable, built
from ppdbench.machine.environment import cores_by_thread
from tests.engine.flat.conftest import Planted
from tests.engine.flat.test_weights import drawn, packed
from tests.machine.test_cores import needs_two

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
    for absent in ("no-such-compiler", "no-such-compiler -m64", "'no-such-compiler"):
        monkeypatch.setenv("CXX", absent)
        with pytest.raises(Unavailable, match=r"no-such-compiler.*install"):
            built(sources)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unavailable, match=r"no C\+\+ compiler found; install"):
        built(sources)


def test_where_one_compiler_fails_the_next_one_builds(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, folder = "#!/bin/sh\necho 'error: broken' >&2\nexit 1\n", sources.parent / "bin"
    folder.mkdir()
    (folder / "g++").write_text(broken, encoding="utf-8")
    (folder / "g++").chmod(0o755)
    works = next(path for name in native.COMPILERS if (path := shutil.which(name)))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(native, "COMPILERS", ("g++", works))
    assert ctypes.CDLL(str(built(sources))).answer() == 42
    monkeypatch.setattr(native, "COMPILERS", ("g++",))
    with pytest.raises(Unavailable, match="g\\+\\+ cannot build the kernels: error: broken"):
        built(sources)


def test_a_compiler_may_be_called_with_words_of_its_own(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = next(name for name in native.COMPILERS if shutil.which(name))
    monkeypatch.setenv("CXX", f"env LANG=C {works}")
    assert ctypes.CDLL(str(built(sources))).answer() == 42


def test_what_cannot_be_loaded_is_said(sources: Path) -> None:
    path = sources.parent / "kernels.so"
    path.write_bytes(b"no library")
    with pytest.raises(Unavailable, match=r"cannot load the compiled kernels: .* PPDBENCH_CACHE"):
        native.Library(path)


def test_several_files_make_one_library(sources: Path) -> None:
    (sources / "kernels.cpp").write_text(f"int other();\n{PLAIN.replace('42', 'other() + 1')}")
    (sources / "other.cpp").write_text("int other() { return 41; }\n")
    assert ctypes.CDLL(str(built(sources))).answer() == 42


@pytest.mark.parametrize("file", ["kernels.cpp", "other.cpp"])
def test_what_does_not_compile_is_said(sources: Path, file: str) -> None:
    (sources / file).write_text("int broken(", encoding="utf-8")
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


def test_fewer_threads_compute_where_the_system_grants_no_more(planted: Planted) -> None:
    wanted = packed((300, 130), torch.float32)(rows := drawn(9, 130))
    starts = "others_.emplace_back([this, i] { stay(i); });"
    refuses = "if (i > 1) throw std::system_error(EAGAIN, std::generic_category());"
    planted("pool.h", starts, f"{{ {refuses} {starts} }}")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    linear = packed((300, 130), torch.float32)
    for _ in range(2):  # nor are they asked for again
        assert torch.equal(linear(rows), wanted)
    torch.set_num_threads(before)


@needs_two
def test_threads_run_elsewhere_than_the_one_that_gives_them_work() -> None:
    everywhere = os.sched_getaffinity(0)
    linear, rows = packed((300, 130), torch.float32), drawn(9, 130)
    before, older = torch.get_num_threads(), cores_by_thread().keys()
    try:
        for count in (3, 2):  # threads that are there may have been moved before
            torch.set_num_threads(count)
            wanted = linear(rows)
        (ours,) = cores_by_thread().keys() - older
        for here in sorted(everywhere)[:2]:
            os.sched_setaffinity(0, {here})  # it stays there if it may leave again at once
            os.sched_setaffinity(0, everywhere)
            assert torch.equal(linear(rows), wanted)
            assert len(everywhere - os.sched_getaffinity(ours)) == 1
        assert os.sched_getaffinity(0) == everywhere
    finally:
        os.sched_setaffinity(0, everywhere)
        torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 31, 32, 1 << 16, (1 << 16) + 100, 3 << 16])
@pytest.mark.parametrize("count", [1, 3])
def test_all_numbers_are_read(n: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = drawn(n, dtype=torch.float32)
    monkeypatch.setattr(native, "threads", SimpleNamespace(count=count))
    sums = native.loaded().sum(numbers), native.loaded().sum(numbers.abs())
    exact = numbers.double().sum().item(), numbers.double().abs().sum().item()
    assert sums == pytest.approx(exact, rel=1e-5, abs=1e-2)
