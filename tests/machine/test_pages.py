"""Large pages change no number, and memory is given back only where nothing is lost."""

from __future__ import annotations

import ctypes
import errno
import gc
import mmap
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.machine import libc, pages
from ppdbench.machine.pages import LINE, Files, LargePages, enlarge, span, zeros

MIB = 1 << 20
CPU = torch.device("cpu")

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of its pages")


def memory(name: str) -> int:
    """Bytes of this process that are of a kind."""
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def resident(block: Tensor) -> int:
    """Bytes of a block whose pages are in memory; the process around it does what it likes."""
    return resident_at(block.data_ptr(), block.nbytes)


def resident_at(place: int, n_bytes: int) -> int:
    """The same of what lies there."""
    size = mmap.PAGESIZE
    first = place // size * size
    n = -(-(place + n_bytes - first) // size)
    told = (ctypes.c_ubyte * n)()
    known = ctypes.CDLL(None, use_errno=True).mincore
    assert known(ctypes.c_void_p(first), ctypes.c_size_t(n * size), told) == 0
    return size * sum(page & 1 for page in told)


# Large pages


def test_neighbours_become_one_piece_of_memory() -> None:
    far = 10 * pages.GAP
    spans = [(far, far + 5), (0, 10), (20, 30), (25, 28)]
    assert pages._joined(spans) == [(0, 30), (far, far + 5)]


@linux
@pytest.mark.skipif(pages._large_page() is None, reason="this system has no large pages")
def test_weights_end_up_on_large_pages_as_they_were() -> None:
    weights = torch.arange(8 * MIB // 4, dtype=torch.int32)
    before = memory("AnonHugePages")
    enlarge([span(weights)])
    assert torch.equal(weights, torch.arange(8 * MIB // 4, dtype=torch.int32))
    if memory("AnonHugePages") == before:
        pytest.skip("no large page was free")
    assert memory("AnonHugePages") - before >= 4 * MIB


def test_where_an_administrator_said_never_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "enabled").write_text("always madvise [never]\n", "ascii")
    (tmp_path / "hpage_pmd_size").write_text("4096\n", "ascii")
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)
    asked: list[int] = []
    monkeypatch.setattr(libc, "advise", lambda *what: asked.append(what[2]))
    enlarge([(0, 1 << 30)])
    assert asked == []
    (tmp_path / "enabled").write_text("always [madvise] never\n", "ascii")
    enlarge([(1, 3 * 4096)])
    assert asked == [pages.LARGE, pages.NOW]


def test_only_pages_wholly_in_use_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "enabled").write_text("[always]", "ascii")
    (tmp_path / "hpage_pmd_size").write_text("4096", "ascii")
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(libc, "advise", lambda start, size, _: asked.append((start, size)))
    enlarge([(100, 3 * 4096 + 5)])
    enlarge([(pages.GAP + 100, pages.GAP + 4096)])
    assert set(asked) == {(4096, 2 * 4096)}


def test_a_kernel_that_refuses_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError("not this kernel")

    (tmp_path / "enabled").write_text("[always]", "ascii")
    (tmp_path / "hpage_pmd_size").write_text("4096", "ascii")
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)
    monkeypatch.setattr(libc, "advise", refuse)
    enlarge([(0, 1 << 20)])


# Memory that is there when it is written to


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_zeros_are_zero_and_begin_where_the_processor_fetches(dtype: torch.dtype) -> None:
    for size in ((3,), (2, 5, 7), (0, 4), (1, 1)):
        made = zeros(size, dtype, CPU)
        assert made.shape == size
        assert made.dtype == dtype
        assert made.data_ptr() % pages.LINE == 0
        assert not made.any()
    made = zeros((4, 4), dtype, CPU)
    made[1] = 3
    assert int(made.sum()) == 12


@pytest.fixture
def _has_large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "enabled").write_text("always [madvise] never", "ascii")
    (tmp_path / "hpage_pmd_size").write_text(str(2 << 20), "ascii")
    monkeypatch.setattr(pages, "SETTINGS", tmp_path)


@linux
@pytest.mark.usefixtures("_has_large_pages")
def test_weights_on_large_pages_lie_one_behind_another_and_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "CHUNK", MIB)
    room = LargePages()
    asked = [(1000, torch.float32), (33, torch.bfloat16), (MIB // 4 + 8, torch.float32)]
    given = [room.zeros(n, dtype) for n, dtype in [*asked, asked[0]]]
    for number, (piece, (n, dtype)) in enumerate(zip(given, [*asked, asked[0]], strict=True)):
        assert (len(piece), piece.dtype) == (n, dtype)
        assert piece.data_ptr() % LINE == 0
        assert not piece.any()
        piece.fill_(number + 1)
    assert [float(piece.min()) for piece in given] == [1, 2, 3, 4]
    assert [float(piece.max()) for piece in given] == [1, 2, 3, 4]
    assert span(given[1])[0] - span(given[0])[1] < LINE
    assert [piece.untyped_storage().nbytes() for piece in given] == [p.nbytes for p in given]


@linux
@pytest.mark.usefixtures("_has_large_pages")
def test_large_pages_are_given_back_with_the_last_weight_on_them() -> None:
    room = LargePages()
    first, second = (room.zeros(1000, torch.float32) for _ in range(2))
    assert room._chunk is not None
    del first
    gc.collect()
    assert room._chunk() is not None
    second += 1
    del second
    gc.collect()
    assert room._chunk() is None
    assert not room.zeros(1000, torch.float32).any()


@linux
@pytest.mark.usefixtures("_has_large_pages")
def test_where_no_whole_chunk_may_be_set_aside_a_piece_is(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = mmap.mmap, list[int]()

    def within_limit(file: int, n: int, flags: int) -> Any:
        asked.append(n)
        if n > MIB:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return real(file, n, flags)

    monkeypatch.setattr(mmap, "mmap", within_limit)
    room = LargePages()
    made = [room.zeros(n, torch.uint8).fill_(n // 1000) for n in (1000, 2000)]
    assert [int(each.float().mean()) for each in made] == [1, 2]
    assert asked == [pages.CHUNK, 1024, pages.CHUNK, 2048]
    with pytest.raises(OSError, match="Cannot allocate"):
        room.zeros(2 * MIB, torch.uint8)


@linux
@pytest.mark.usefixtures("_has_large_pages")
def test_a_piece_that_is_freed_gives_its_pages_back() -> None:
    room = LargePages()
    first, second, third = (room.zeros(8 * MIB, torch.uint8).fill_(1) for _ in range(3))
    place = second.data_ptr()
    assert resident(second) == 8 * MIB
    del second
    gc.collect()
    assert resident_at(place, 8 * MIB) < MIB
    assert bool(first.all() and third.all())


@linux
@pytest.mark.usefixtures("_has_large_pages")
def test_large_pages_know_what_is_alone_on_them() -> None:
    room = LargePages()
    piece, other = room.zeros(1000, torch.float32), LargePages().zeros(1000, torch.float32)
    assert room.holds_alone(piece)
    assert room.holds_alone(piece.view(10, 100))
    assert not room.holds_alone(piece[:999])
    assert not room.holds_alone(other)
    assert not room.holds_alone(torch.zeros(1000))
    del piece
    gc.collect()
    assert not room._spans


def test_without_large_pages_weights_lie_on_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SETTINGS", tmp_path / "nowhere")
    room = LargePages()
    made = room.zeros(1000, torch.bfloat16)
    assert not made.any()
    assert not room.holds_alone(made)
    assert room._chunk is None


@linux
def test_rows_that_nobody_writes_take_no_memory() -> None:
    # More than an earlier test can have left behind, which would be handed out again.
    block = zeros((32, 16 * MIB), torch.float32, CPU)
    assert resident(block) < 16 * MIB
    block[0].fill_(1)
    assert 48 * MIB < resident(block) < 96 * MIB


# Pages of files


@pytest.fixture
def stored(tmp_path: Path) -> Tensor:
    """16 MiB that are pages of a file."""
    path = str(tmp_path / "model.safetensors")
    save_file({"a": torch.ones(MIB), "w": torch.arange(4 * MIB, dtype=torch.int32)}, path)
    with safe_open(path, framework="pt") as file:
        tensor: Tensor = file.get_tensor("w")
    return tensor


@linux
def test_what_was_read_of_a_file_is_given_back_and_read_again(stored: Tensor) -> None:
    files = Files.behind([stored, torch.ones(3)])
    if not files.spans:
        pytest.skip("this version of safetensors copies")
    assert files.holds(stored)
    total = int(stored.sum())
    before = memory("Rss")
    files.release()
    assert before - memory("Rss") > 12 * MIB
    assert int(stored.sum()) == total


@linux
def test_the_place_of_a_file_stays_its_own_while_it_may_be_given_back(stored: Tensor) -> None:
    files, weights = Files.behind([stored]), [stored]
    if not files.spans:
        pytest.skip("this version of safetensors copies")
    weights[0].data = torch.empty(0)  # as where weights are laid out anew
    assert set(files.spans) <= set(pages._mapped())
    files.release()


@linux
def test_what_was_written_to_is_kept(stored: Tensor) -> None:
    stored[5] = -1
    files = Files.behind([stored])
    assert not files.holds(stored)
    files.release()
    assert stored[4:7].tolist() == [4, -1, 6]


def test_memory_of_no_file_is_left_alone() -> None:
    own = torch.ones(MIB)
    files = Files.behind([own, torch.empty(0), torch.ones(2, device="meta")])
    assert files.spans == ()
    files.release()
    assert bool(own.all())


def test_a_system_that_tells_nothing_of_its_memory_is_left_alone(
    stored: Tensor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "MAPS", tmp_path / "none")
    assert Files.behind([stored]).spans == ()
