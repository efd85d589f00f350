"""The pages of memory that weights lie on: large ones, and no more of a file's than needed.

A pass reads every weight, and for each page of them the processor looks up where it is. Linux
hands out pages of 4 KiB unless told otherwise, and how fast those are read depends on where
they happen to lie: on the virtual machine this was made on from 16 to 25 GB/s between one
process and the next, where pages of 2 MiB gave 32 every time and steps took two thirds as long.

Weights that `from_pretrained` left in their files are pages of those: read when touched, and
kept as long as anything of the file is in use. Once they have been copied into the layout of a
kernel they may go. Elsewhere than on Linux all of this does nothing.
"""

from __future__ import annotations

import math
import mmap
import sys
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")
MAPS = Path("/proc/self/maps")
PAGES = Path("/proc/self/pagemap")
ENTRY = 8  # bytes that say of a page where it is: bits 62 and 63, anywhere; 61, of a file
AT_ONCE = 1 << 20

DROP, LARGE, NOW = 4, 14, 25  # madvise(2): MADV_DONTNEED, MADV_HUGEPAGE, MADV_COLLAPSE

# Memory on large pages is set aside in chunks of so many bytes, or larger ones. It is taken as it
# is written to, by large pages: of the last one of a chunk a part stays unused.
CHUNK = 512 << 20
# Neighbours in memory are apart by what the allocator notes between them, or a small tensor.
GAP = 64 << 10
LINE = 64  # bytes that a processor fetches at once

Span = tuple[int, int]  # first address, and the one behind the last


def enlarge(spans: Iterable[Span]) -> None:
    """Put what lies there on large pages, where the system has them and lets programs ask.

    Costs a copy of it, and no memory beyond: only pages that are wholly in use are joined.
    """
    size = _large_page()
    if size is None:
        return
    from ppdbench.machine import libc

    for start, end in _joined(spans):
        first, last = -(-start // size) * size, end // size * size
        if first < last:
            with suppress(OSError):  # no large page is free, or the kernel is older than 6.1
                libc.advise(first, last - first, LARGE)
                libc.advise(first, last - first, NOW)


def trim() -> None:
    """Give back what the C library keeps of memory that was freed, where it is one that can."""
    if sys.platform == "linux":
        from ppdbench.machine import libc

        with suppress(OSError):
            libc.checked("malloc_trim", 0)


def span(tensor: Tensor) -> Span:
    """Return the span of memory of a CPU tensor's numbers."""
    if tensor.layout == torch.strided:
        start = tensor.data_ptr()
    else:  # laid out for a kernel
        start = torch.ops.mkldnn.data_ptr(tensor)
    return start, start + tensor.numel() * tensor.element_size()


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros; on the CPU, memory is taken as it is written to."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    n = math.prod(size) * dtype.itemsize
    # numpy asks the system for memory that is zero, torch writes zeros.
    room = torch.from_numpy(np.zeros(n + LINE, dtype=np.uint8))
    first = -room.data_ptr() % LINE
    return room[first : first + n].view(dtype).view(size)


class LargePages:
    """Memory on large pages from the first touch on, handed out one piece behind another.

    A weight by itself is smaller than such a page, mostly. Pieces lie in chunks, which are given
    back with the last piece in them.
    """

    def __init__(self) -> None:
        self._chunk: weakref.ref[np.ndarray[Any, Any]] | None = None
        self._used = 0
        self._spans: dict[int, Span] = {}  # of all chunks that are still there

    def zeros(self, n: int, dtype: torch.dtype) -> Tensor:
        """So many zeros, on the CPU; on plain pages where there are no large ones to ask for."""
        n_bytes = -(-n * dtype.itemsize // LINE) * LINE
        chunk = None if self._chunk is None else self._chunk()
        if chunk is None or self._used + n_bytes > len(chunk):
            if _large_page() is None or not hasattr(mmap, "MADV_HUGEPAGE"):
                return zeros((n,), dtype, torch.device("cpu"))
            mapped = _set_aside(n_bytes)
            with suppress(OSError):  # a kernel that was built without
                mapped.madvise(mmap.MADV_HUGEPAGE)
            chunk = np.frombuffer(mapped, np.uint8)
            self._chunk, self._used = weakref.ref(chunk), 0
            self._spans[id(chunk)] = span(torch.from_numpy(chunk))
            weakref.finalize(chunk, self._spans.pop, id(chunk)).atexit = False
        first, self._used = self._used, self._used + n_bytes
        piece = chunk[first : first + n * dtype.itemsize]
        # A storage of its own: who counts what a model holds goes by storages.
        made = torch.from_numpy(piece)
        weakref.finalize(piece, _give_back, span(made)).atexit = False
        return made.view(dtype)

    def holds_alone(self, tensor: Tensor) -> bool:
        """True if a tensor is all of a piece: whoever has it may write there what it likes."""
        start, end = span(tensor)
        whole = tensor.untyped_storage().nbytes() == end - start
        return whole and any(low <= start and end <= high for low, high in self._spans.values())


def _set_aside(n_bytes: int) -> mmap.mmap:
    """Memory for a chunk, or for so many bytes alone where a limit forbids more."""
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory has pages of its own
    try:
        return mmap.mmap(-1, max(CHUNK, n_bytes), private)
    except OSError:
        return mmap.mmap(-1, n_bytes, private)


def _give_back(freed: Span) -> None:
    """Leave what whole pages held; their place in the chunk goes with its last piece."""
    from ppdbench.machine import libc

    first, last = -(-freed[0] // mmap.PAGESIZE), freed[1] // mmap.PAGESIZE
    if first < last:
        libc.advise(first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE, DROP)


large_pages = LargePages()


def room_for_weight(shape: Sequence[int], *, dtype: torch.dtype) -> Tensor:
    """Memory on the CPU; a matrix lies so that kernels can lay it out where it is."""
    if len(shape) < 2:
        return torch.empty(shape, dtype=dtype)
    return large_pages.zeros(math.prod(shape), dtype).view(*shape)


def _large_page() -> int | None:
    """The size of a large page, unless there are none or an administrator said never."""
    try:
        if "[never]" in (SETTINGS / "enabled").read_text("ascii"):
            return None
        return int((SETTINGS / "hpage_pmd_size").read_text("ascii"))
    except (OSError, ValueError):
        return None


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same memory with neighbours as one."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start - joined[-1][1] <= GAP:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


@dataclass(frozen=True, slots=True)
class Files:
    """The parts of this process's memory that are pages of files with weights."""

    spans: tuple[Span, ...] = ()
    held: tuple[Tensor, ...] = ()
    """A tensor of each: without one a file is no longer there, and its place somebody else's."""

    @classmethod
    def behind(cls, tensors: Iterable[Tensor]) -> Files:
        """The files that these tensors are pages of, if they have not been written to since."""
        plain = [t for t in tensors if t.layout == torch.strided and t.device.type == "cpu"]
        places = {t.data_ptr(): t for t in plain if t.numel()}
        found: dict[Span, Tensor] = {}
        for low, high in _mapped():
            of_file = next((t for at, t in places.items() if low <= at < high), None)
            if of_file is not None and _is_unwritten((low, high)):
                found[low, high] = of_file.detach()
        return cls(tuple(found), tuple(found.values()))

    def holds(self, tensor: Tensor) -> bool:
        """True if a tensor is part of a file."""
        return any(start <= tensor.data_ptr() < end for start, end in self.spans)

    def release(self) -> None:
        """Give back the memory that has been read into; whoever needs it reads it again."""
        for start, end in self.spans:
            from ppdbench.machine import libc

            libc.advise(start, end - start, DROP)


def _mapped() -> list[Span]:
    """The private mappings of files that may be written to."""
    found: list[Span] = []
    try:
        lines = MAPS.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:  # 7f00-7f10 rw-p 00000000 fd:01 1234  /path
        where, permissions, _, _, inode, *_ = line.split()
        if permissions == "rw-p" and int(inode) > 0:
            low, _, high = where.partition("-")
            found.append((int(low, 16), int(high, 16)))
    return found


def _is_unwritten(mapped: Span) -> bool:
    """True if no page differs from the file; only then can pages be dropped without a loss.

    Asked page by page (proc(5), pagemap): to sum up the whole process, as smaps does, takes the
    kernel 20 ms each time.
    """
    first, last = (at // mmap.PAGESIZE for at in mapped)
    try:
        with PAGES.open("rb", buffering=0) as file:
            file.seek(first * ENTRY)
            while first < last:
                entries = np.frombuffer(file.read(min(last - first, AT_ONCE) * ENTRY), np.uint64)
                is_there, is_of_file = entries >> 62 != 0, entries >> 61 & 1 != 0
                if not len(entries) or bool((is_there & ~is_of_file).any()):
                    return False
                first += len(entries)
    except OSError:
        return False
    return True
