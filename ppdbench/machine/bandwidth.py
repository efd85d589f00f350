"""The speed at which this machine reads memory: it bounds decoding one token at a time.

Each kernel reads a buffer far larger than any cache exactly once and writes next to
nothing, as a one-row matrix product does with its weights. The fastest of them, at its
median speed, is the roof that decoding is held against.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil
import torch
from torch import Tensor

from ppdbench.errors import ConfigError
from ppdbench.machine.clock import Clock
from ppdbench.machine.pages import enlarge, span
from ppdbench.stats import median

CPU_BUFFER_BYTES = 1 << 30
CUDA_BUFFER_BYTES = 4 << 30
SMALLEST_BUFFER_BYTES = 16 << 20
COLUMNS = 4096
LEAST_REPEATS = 3

Kernel = Callable[[Tensor], object]


def measure_bandwidth(
    device: torch.device, others: Sequence[Kernel] = (), seconds: float = 1.0
) -> float:
    """Sustained read bandwidth in bytes per second; takes about `seconds`, a buffer's fill aside.

    `others` read the buffer besides torch's kernels. Uses at most a quarter of the memory that is
    available.
    """
    if not seconds > 0:
        raise ValueError(f"seconds={seconds}; use more than 0")
    buffer = torch.ones(_buffer_bytes(device) // (4 * COLUMNS), COLUMNS, device=device)
    if device.type == "cpu":
        enlarge([span(buffer)])  # as weights are
    kernels = [*_kernels(device), *others]
    return max(_speed(kernel, buffer, seconds / len(kernels)) for kernel in kernels)


def _buffer_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        available, wanted = torch.cuda.mem_get_info(device)[0], CUDA_BUFFER_BYTES
    else:
        available, wanted = psutil.virtual_memory().available, CPU_BUFFER_BYTES
    size = min(wanted, available // 4)
    if size < SMALLEST_BUFFER_BYTES:
        raise ConfigError(
            f"only {available >> 20} MiB of memory available on {device}, too little to measure "
            "its bandwidth; end other programs"
        )
    return size


def _kernels(device: torch.device) -> list[Kernel]:
    """List kernels; the machine and its number of threads decide which of them is fastest."""
    common: list[Kernel] = [torch.sum, lambda matrix: matrix.sum(1), torch.amax]
    if device.type == "cuda":
        row = torch.ones(COLUMNS, device=device)
        half = torch.ones(2 * COLUMNS, device=device, dtype=torch.bfloat16)
        common.append(lambda matrix: matrix @ row)
        common.append(lambda matrix: matrix.view(torch.bfloat16) @ half)
    return common


@torch.inference_mode()
def _speed(kernel: Kernel, buffer: Tensor, seconds: float) -> float:
    """Bytes per second at the kernel's median time; the first, cold call does not count."""
    clock = Clock(buffer.device)
    kernel(buffer)
    clock.synchronize()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_REPEATS or time.perf_counter() < end:
        before = clock.now()
        kernel(buffer)
        clock.synchronize()
        times.append(clock.now() - before)
    return buffer.numel() * buffer.element_size() / median(times)
