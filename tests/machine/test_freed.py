"""Memory that is freed serves again while that is asked for, and then is the system's."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from ppdbench.machine import freed
from ppdbench.machine.freed import MMAP_MAX, USUAL, reuse_freed

gnu = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library can be told"
)

BLOCK = 64 << 20
COUNTED = f"""
import resource
from pathlib import Path
import torch
from ppdbench.machine.freed import reuse_freed

def made(n):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n):
        torch.ones({BLOCK} // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

torch.ones(8)
before = held()
print(made(16))
with reuse_freed():
    with reuse_freed():
        made(1)
    print(made(16), held() - before)
print(held() - before)
"""


@gnu
def test_blocks_of_one_size_take_their_pages_once_and_give_them_back_in_the_end() -> None:
    """In a process of its own: what is kept is kept of everything that a process frees."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True, timeout=120
    )
    without, meanwhile, kept, afterwards = map(int, done.stdout.split())
    # A fault takes a page, of 2 MiB where the system hands out such.
    assert without >= 16 * BLOCK / (2 << 20)
    # Now and then something that stays comes to lie behind a block, which then cannot serve again.
    assert meanwhile < without / 2
    # The process lets go of some pages of its own meanwhile.
    assert kept > 0.9 * BLOCK
    assert afterwards < 0.1 * BLOCK


LOOKED = f"""
import torch
from ppdbench.machine.freed import Scattered, resident_bytes, reuse_freed

torch.ones(8)
kept = Scattered()
with reuse_freed():
    torch.ones({BLOCK} // 4)
    for _ in range(kept.SETTLING):
        kept.look()
    small = resident_bytes()
    torch.ones(24 * {BLOCK} // 4)
    large = resident_bytes()
    kept.look()
    print(small, large, resident_bytes())
"""


@gnu
def test_a_process_that_grew_by_what_is_free_gives_it_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKED], capture_output=True, text=True, check=True, timeout=120
    )
    small, large, afterwards = map(int, done.stdout.split())
    assert large > small + 20 * BLOCK
    assert afterwards < small + BLOCK


def test_what_every_step_needs_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    held = iter([4, 5, 6, 9, 9, 9.9, 10.1, 3, 6, 6, 6])
    gigabytes = 1 << 30
    monkeypatch.setattr(freed, "resident_bytes", lambda: int(next(held) * gigabytes))
    kept = freed.Scattered()
    monkeypatch.setattr(freed, "trim", lambda: trimmed.append(kept._looks))
    for _ in range(11):
        kept.look()
    assert trimmed == [7]  # at the seventh look, beyond 1.5 x 6 + 1, and not again


def test_what_goes_wrong_meanwhile_goes_on_and_memory_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr("ppdbench.machine.libc.checked", lambda *words: told.append(words) or 0)
    with pytest.raises(ZeroDivisionError), reuse_freed():
        1 / 0  # noqa: B018
    if sys.platform == "linux":
        assert told[0] == ("mallopt", MMAP_MAX, 0)
        assert told[-2:] == [("mallopt", MMAP_MAX, USUAL[MMAP_MAX]), ("malloc_trim", 0)]


def test_elsewhere_it_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another C library does not know the settings."""

    def unknown(name: str, *_: object) -> int:
        raise OSError(f"this system has no {name}")

    monkeypatch.setattr("ppdbench.machine.libc.checked", unknown)
    with reuse_freed():
        made = [bytes(1 << 20) for _ in range(3)]
    assert len(made) == 3
