"""Bandwidth is a plausible number, measured within the memory there is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ppdbench.errors import ConfigError
from ppdbench.machine import bandwidth

CPU = torch.device("cpu")


def available(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    memory = SimpleNamespace(available=size)
    monkeypatch.setattr(bandwidth.psutil, "virtual_memory", lambda: memory)


def test_bandwidth_is_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 128 << 20)
    assert 1e8 < bandwidth.measure_bandwidth(CPU, seconds=0.02) < 1e13


def test_buffer_takes_a_quarter_of_what_is_available_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    speed = bandwidth._speed

    def spy(kernel: bandwidth.Kernel, buffer: torch.Tensor, seconds: float) -> float:
        seen.append(buffer.numel() * buffer.element_size())
        return speed(kernel, buffer, seconds)

    monkeypatch.setattr(bandwidth, "_speed", spy)
    available(monkeypatch, 100 << 20)
    bandwidth.measure_bandwidth(CPU, seconds=0.01)
    assert set(seen) == {25 << 20}


def test_buffer_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 1 << 40)
    assert bandwidth._buffer_bytes(CPU) == bandwidth.CPU_BUFFER_BYTES


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 20 << 20)
    with pytest.raises(ConfigError, match="only 20 MiB of memory available on cpu"):
        bandwidth.measure_bandwidth(CPU)


def test_the_fastest_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 64 << 20)
    speeds = iter([3.0, 7.0, 5.0])
    monkeypatch.setattr(bandwidth, "_speed", lambda *_: next(speeds))
    assert bandwidth.measure_bandwidth(CPU) == 7.0


def test_other_ways_to_read_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    available(monkeypatch, 64 << 20)
    monkeypatch.setattr(bandwidth, "_speed", lambda kernel, *_: 9.0 if kernel is len else 1.0)
    assert bandwidth.measure_bandwidth(CPU) == 1.0
    assert bandwidth.measure_bandwidth(CPU, [len]) == 9.0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_bandwidth_of_a_gpu_is_above_that_of_any_cpu() -> None:
    assert bandwidth.measure_bandwidth(torch.device("cuda"), seconds=0.2) > 1e11
