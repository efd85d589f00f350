"""The machine and software that a measurement ran on, and what would spoil its numbers.

`describe` reads everything once into plain data; `warnings` judges such data and reads
nothing itself. No user, host or home folder appears in it.
"""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch

from ppdbench import __version__
from ppdbench.errors import ConfigError, counted
from ppdbench.files.resources import PACKAGE

Description = dict[str, Any]

PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "numpy")
VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "KMP_AFFINITY",
    "GOMP_CPU_AFFINITY",
    "HF_HUB_OFFLINE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
)
# As Linux names them; macOS and Windows do not list theirs.
FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "bf16", "sve")
BF16_FEATURES = {"avx512_bf16", "amx_bf16", "bf16"}

LOW_MEMORY = 0.1
SWAP_BYTES = 64 << 20
FOREIGN_GPU_MEMORY = 0.1
SUBPROCESS_S = 5.0

PROC, SYS = Path("/proc"), Path("/sys")


class DeviceLike(Protocol):
    """A torch.device, or what looks like one."""

    @property
    def type(self) -> str:
        """`cpu` or `cuda`."""


def describe() -> Description:
    """Versions, processors, memory, devices and settings, ready for JSON."""
    features = cpu_features()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "packages": {"ppdbench": __version__, **{name: _version(name) for name in PACKAGES}},
        "git": git_commit(PACKAGE.parent),
        "cpu": {
            "model": cpu_model(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "usable_cores": usable_cores(),
            "quota_cores": quota_cores(),
            "features": features,
            "governor": _read(SYS / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "load_average": _load_average(),
        },
        "memory": _memory(),
        "on_battery": _on_battery(),
        "torch": {
            "threads": torch.get_num_threads(),
            "interop_threads": torch.get_num_interop_threads(),
            "mkldnn": bool(torch.backends.mkldnn.is_available()),  # type: ignore[no-untyped-call]
            "cuda": torch.version.cuda,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "anomaly_detection": torch.is_anomaly_enabled(),
        },
        "devices": _cuda_devices(),
        "dtypes": {"cpu": _cpu_dtypes(features), "cuda": _cuda_dtypes()},
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def usable_cores() -> int:
    """The logical cores this process may run on, with all of its threads."""
    if hasattr(os, "sched_getaffinity"):
        return len(set().union(*cores_by_thread().values()))
    return psutil.cpu_count() or 1


def cores_by_thread() -> dict[int, set[int]]:
    """The cores that each thread of this process may run on, where Linux tells; else this one's."""
    found = {}
    for thread in _threads():
        with suppress(ProcessLookupError):  # it ended meanwhile
            found[thread] = os.sched_getaffinity(thread)
    return found


def _threads() -> list[int]:
    """The threads of this process, those of the matrix kernels included."""
    try:
        return sorted(int(entry.name) for entry in (PROC / "self/task").iterdir())
    except OSError:
        return [0]


def quota_cores() -> float | None:
    """Return the cores' worth of time that the control groups above this process grant it."""
    groups = [line.split(":", 2) for line in (_read(PROC / "self/cgroup") or "").splitlines()]
    limits = []
    for group in groups:
        if len(group) == 3 and (not group[1] or "cpu" in group[1].split(",")):
            base = SYS / "fs/cgroup" if not group[1] else SYS / "fs/cgroup/cpu"
            path = base / group[2].lstrip("/")
            for folder in [path, *path.parents]:
                limits.append(_quota_in(folder))
                if folder == base:
                    break
    known = [limit for limit in limits if limit is not None]
    return min(known, default=None)


def _quota_in(folder: Path) -> float | None:
    """The limit that one control group sets, in either version's files."""
    both = _read(folder / "cpu.max")
    if both is None:
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        both = f"{quota} {period}"
    try:
        limit, period_us = (int(part) for part in both.split())
    except ValueError:
        return None  # "max", or no such file
    return limit / period_us if limit > 0 and period_us > 0 else None


def cpu_model() -> str | None:
    """The processor's name as its maker writes it."""
    listed = re.search(r"^model name\s*:\s*(.+)$", _read(PROC / "cpuinfo") or "", re.MULTILINE)
    if listed:
        return listed[1].strip()
    if sys.platform == "darwin":
        return _output("sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or None


def cpu_features() -> list[str] | None:
    """List the instruction sets that matter here and that the processor has, where it tells."""
    held = instruction_sets()
    return None if held is None else [name for name in FEATURES if name in held]


def instruction_sets() -> frozenset[str] | None:
    """Return all that the processor says of itself, where it tells."""
    pattern = r"^(?:flags|Features)\s*:\s*(.+)$"
    listed = re.search(pattern, _read(PROC / "cpuinfo") or "", re.MULTILINE)
    return None if listed is None else frozenset(listed[1].split())


def git_commit(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout whose top is `folder`; None where it is no checkout of its own.

    An installed copy may lie somewhere inside another project's repository, which says
    nothing about this code.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != folder.resolve():
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if not commit else {"commit": commit, "modified": bool(changes)}


def peak_memory_bytes(device: DeviceLike) -> int:
    """The most memory used so far: by torch on a GPU, else by the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))  # type: ignore[arg-type]
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def forget_peak_memory(device: DeviceLike) -> None:
    """Count the peak from here on, where the system can; else what came before stays in it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # type: ignore[arg-type]
    elif (mark := PROC / "self/clear_refs").exists():
        mark.write_text("5", "utf-8")


def set_threads(n: int | None, processes: int | None = 1) -> None:
    """Give torch `n` threads; None leaves its own choice, or shares the cores out evenly."""
    usable = usable_cores()
    if n is None:
        if processes is not None and processes > 1:
            torch.set_num_threads(max(1, usable // processes))
        return
    if not 1 <= n <= usable:
        raise ConfigError(
            f"--threads {n}, but this process may use {counted(usable, 'core')}; "
            f"use {'1' if usable == 1 else f'1..{usable}'}"
        )
    torch.set_num_threads(n)


def warnings(description: Description) -> list[str]:
    """List what would spoil a measurement under this description, each with a remedy."""
    found = [
        *_processor_warnings(description),
        *_memory_warnings(description),
        *_setting_warnings(description),
    ]
    if description["on_battery"]:
        found.append("running on battery; plug in, clocks are lowered to save it")
    for index, device in enumerate(description["devices"]):
        if device["used_by_others"] and device["used_by_others"] > FOREIGN_GPU_MEMORY:
            found.append(
                f"{device['used_by_others']:.0%} of the memory of GPU {index} is taken by others; "
                "end them or choose another with --device cuda:N"
            )
    return found


def _processor_warnings(description: Description) -> list[str]:
    cpu, threads = description["cpu"], description["torch"]["threads"]
    usable, quota, load = cpu["usable_cores"], cpu["quota_cores"], cpu["load_average"]
    found = []
    if load is not None and load > usable / 2:
        found.append(
            f"load average {load:.1f} on {usable} usable cores; end other programs, "
            "or wait a minute if it was your own last run"
        )
    if threads > usable:
        found.append(
            f"{threads} torch threads on {usable} usable cores; use --threads {usable} or "
            "OMP_NUM_THREADS"
        )
    if quota is not None and quota < threads:
        found.append(
            f"the container grants {quota:g} cores' worth of CPU time to {threads} threads, "
            f"which get stopped in turn; use --threads {max(1, math.floor(quota))} or raise "
            "its CPU limit"
        )
    if cpu["governor"] == "powersave":
        found.append(
            "CPU frequency governor is powersave; set performance "
            "(sudo cpupower frequency-set -g performance)"
        )
    return found


def _memory_warnings(description: Description) -> list[str]:
    memory, found = description["memory"], []
    available, total = memory["available_bytes"], memory["total_bytes"]
    if available < LOW_MEMORY * total:
        found.append(
            f"only {_gib(available)} of {_gib(total)} memory available; end other programs "
            "or use a smaller model"
        )
    if memory["swap_used_bytes"] > SWAP_BYTES:
        found.append(
            f"{_gib(memory['swap_used_bytes'])} of swap in use; free memory, then "
            "sudo swapoff -a && sudo swapon -a"
        )
    return found


def _setting_warnings(description: Description) -> list[str]:
    settings, variables, found = description["torch"], description["variables"], []
    if settings["deterministic"]:
        found.append(
            "torch uses deterministic algorithms, which are slower; call "
            "torch.use_deterministic_algorithms(False)"
        )
    if settings["anomaly_detection"]:
        found.append("torch anomaly detection is on; call torch.autograd.set_detect_anomaly(False)")
    if variables.get("CUDA_LAUNCH_BLOCKING", "0") != "0":
        found.append("CUDA_LAUNCH_BLOCKING waits for every kernel; unset it")
    if variables.get("NVIDIA_TF32_OVERRIDE", "0") != "0":
        found.append("NVIDIA_TF32_OVERRIDE rounds float32 products to TF32; unset it")
    if not settings["mkldnn"] and not description["devices"]:
        found.append("this build of torch has no oneDNN; install the build from pytorch.org")
    return found


def _memory() -> dict[str, int]:
    memory = psutil.virtual_memory()
    return {
        "total_bytes": int(memory.total),
        "available_bytes": int(memory.available),
        "swap_used_bytes": int(psutil.swap_memory().used),
    }


def _load_average() -> float | None:
    """The load of the machine over the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _on_battery() -> bool | None:
    try:
        battery = psutil.sensors_battery()
    except (AttributeError, OSError, NotImplementedError):
        return None
    return None if battery is None else not battery.power_plugged


def _cuda_devices() -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        return []
    driver = _driver_version()
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        ours = torch.cuda.memory_reserved(index)
        # A context of our own takes up to some hundred MB, far below what is warned about.
        found.append(
            {
                "name": facts.name,
                "memory_bytes": int(total),
                "capability": f"{facts.major}.{facts.minor}",
                "driver": driver,
                "used_by_others": round(max(0.0, (total - free - ours) / total), 3),
            }
        )
    return found


def _driver_version() -> str | None:
    listed = re.search(r"\s(\d+(?:\.\d+)+)\s", _read(PROC / "driver/nvidia/version") or "")
    if listed:
        return listed[1]
    out = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return out.splitlines()[0].strip() if out else None


def _cpu_dtypes(features: list[str] | None) -> dict[str, str]:
    """Say which types the CPU multiplies by itself; `emulated` ones are converted on the way."""
    if features is None:
        bf16 = "unknown"
    else:
        bf16 = "fast" if BF16_FEATURES & set(features) else "emulated"
    return {"float32": "fast", "bfloat16": bf16, "float16": "emulated"}


def _cuda_dtypes() -> dict[str, str] | None:
    if not torch.cuda.is_available():
        return None
    has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    bf16 = "fast" if has_bf16 else "emulated"
    return {"float32": "fast", "bfloat16": bf16, "float16": "fast"}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    return _output("git", "-C", str(folder), *arguments)


def _output(*command: str) -> str | None:
    """Return what a program says, or None where it is missing, fails or takes too long."""
    # A GIT_DIR in the environment would name another repository.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment["GIT_OPTIONAL_LOCKS"] = "0"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SUBPROCESS_S,
            check=False,
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
