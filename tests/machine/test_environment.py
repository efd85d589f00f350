"""Descriptions are plain and anonymous; warnings follow from them alone."""

from __future__ import annotations

import copy
import getpass
import json
import mmap
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.errors import ConfigError
from ppdbench.machine import environment

CALM: dict[str, Any] = {
    "cpu": {"usable_cores": 8, "quota_cores": None, "governor": "performance", "load_average": 0.5},
    "memory": {"total_bytes": 16 << 30, "available_bytes": 12 << 30, "swap_used_bytes": 0},
    "on_battery": False,
    "torch": {"threads": 8, "deterministic": False, "anomaly_detection": False, "mkldnn": True},
    "devices": [],
    "variables": {},
}


def changed(**changes: dict[str, Any] | Any) -> dict[str, Any]:
    description = copy.deepcopy(CALM)
    for key, value in changes.items():
        if isinstance(value, dict):
            description[key].update(value)
        else:
            description[key] = value
    return description


def test_a_calm_machine_raises_no_warning() -> None:
    assert environment.warnings(CALM) == []


@pytest.mark.parametrize(
    ("changes", "trouble", "remedy"),
    [
        ({"cpu": {"load_average": 4.1}}, "load average 4.1 on 8", "end other programs"),
        ({"torch": {"threads": 9}}, "9 torch threads on 8", "--threads 8"),
        ({"cpu": {"quota_cores": 2.5}}, "grants 2.5 cores", "--threads 2 "),
        ({"cpu": {"quota_cores": 0.5}}, "grants 0.5 cores", "--threads 1 "),
        ({"cpu": {"governor": "powersave"}}, "powersave", "cpupower"),
        ({"memory": {"available_bytes": 1 << 30}}, "only 1.0 GiB of 16.0 GiB", "smaller model"),
        ({"memory": {"swap_used_bytes": 2 << 30}}, "2.0 GiB of swap", "swapoff"),
        ({"on_battery": True}, "battery", "plug in"),
        (
            {"torch": {"deterministic": True}},
            "deterministic",
            "use_deterministic_algorithms(False)",
        ),
        ({"torch": {"anomaly_detection": True}}, "anomaly", "set_detect_anomaly(False)"),
        ({"variables": {"CUDA_LAUNCH_BLOCKING": "1"}}, "waits for every kernel", "unset"),
        ({"variables": {"NVIDIA_TF32_OVERRIDE": "1"}}, "products to TF32", "unset"),
        ({"torch": {"mkldnn": False}}, "oneDNN", "install"),
        ({"devices": [{"used_by_others": 0.5}]}, "50% of the memory of GPU 0", "--device cuda:N"),
    ],
)
def test_each_trouble_is_told_with_its_remedy(
    changes: dict[str, Any], trouble: str, remedy: str
) -> None:
    (warning,) = environment.warnings(changed(**changes))
    assert trouble in warning
    assert remedy in warning


def test_unknown_facts_raise_no_warning() -> None:
    unknown = changed(
        cpu={"governor": None, "load_average": None, "quota_cores": None}, on_battery=None
    )
    assert environment.warnings(unknown) == []


def test_a_quota_of_all_threads_is_no_trouble() -> None:
    assert environment.warnings(changed(cpu={"quota_cores": 8.0})) == []


def test_description_is_json_and_holds_the_facts() -> None:
    description = environment.describe()
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    assert description["packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert 1 <= description["cpu"]["usable_cores"] <= description["cpu"]["logical_cores"]
    memory = description["memory"]
    assert 0 < memory["available_bytes"] <= memory["total_bytes"]
    assert description["dtypes"]["cpu"]["bfloat16"] in ("fast", "emulated", "unknown")
    assert isinstance(environment.warnings(description), list)


def test_description_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    description = environment.describe()
    text = json.dumps(description)
    assert description["variables"]["HF_HUB_OFFLINE"] == "1"
    assert "somebody" not in text
    assert str(Path.cwd()) not in text
    for name in {platform.node(), getpass.getuser()} - {"", "localhost", "root"}:
        assert f'"{name}"' not in text


Tree = Callable[[dict[str, str]], None]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Stand-ins for /proc and /sys, filled from paths to contents."""
    monkeypatch.setattr(environment, "PROC", tmp_path / "proc")
    monkeypatch.setattr(environment, "SYS", tmp_path / "sys")

    def fill(files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return fill


def test_no_control_group_is_no_quota(tree: Tree) -> None:
    assert environment.quota_cores() is None


def test_quota_of_version_2_is_the_tightest_on_the_way_up(tree: Tree) -> None:
    tree(
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/cpu.max": "400000 100000\n",
        }
    )
    assert environment.quota_cores() == 1.5


def test_quota_inside_a_container_is_found_at_the_mount(tree: Tree) -> None:
    tree({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000"})
    assert environment.quota_cores() == 0.5


@pytest.mark.parametrize(("quota", "cores"), [("200000", 2.0), ("-1", None)])
def test_quota_of_version_1(tree: Tree, quota: str, cores: float | None) -> None:
    tree(
        {
            "proc/self/cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n0::/box\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": quota,
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
        }
    )
    assert environment.quota_cores() == cores


def test_processor_facts_come_from_the_kernels_list(tree: Tree) -> None:
    tree({"proc/cpuinfo": "model name\t: Some CPU 9000\nflags\t\t: fpu avx2 avx512_bf16 sse\n"})
    assert environment.cpu_model() == "Some CPU 9000"
    assert environment.cpu_features() == ["avx2", "avx512_bf16"]


def test_features_are_unknown_where_nothing_lists_them(tree: Tree) -> None:
    assert environment.cpu_features() is None


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_commit_is_that_of_the_folder_itself(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    found = environment.git_commit(tmp_path)
    assert found is not None
    assert (len(found["commit"]), found["modified"]) == (40, False)
    (tmp_path / "file").write_text("two")
    changed_now = environment.git_commit(tmp_path)
    assert changed_now is not None and changed_now["modified"]


def test_an_installed_copy_inside_another_repository_has_no_commit(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "theirs")
    inner = tmp_path / "site-packages"
    inner.mkdir()
    assert environment.git_commit(inner) is None


def test_no_git_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.git_commit(tmp_path) is None


def test_peak_memory_is_that_of_a_process_with_torch_in_it() -> None:
    peak = environment.peak_memory_bytes(torch.device("cpu"))
    assert 50 << 20 < peak < 1 << 40
    held = torch.ones(64 << 20, dtype=torch.uint8)
    assert environment.peak_memory_bytes(torch.device("cpu")) >= max(peak, held.numel())


def test_threads_are_set_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    try:
        environment.set_threads(1)
        assert torch.get_num_threads() == 1
        environment.set_threads(None)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("n", [0, -1, 3])
def test_impossible_threads_are_refused_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.setattr(environment, "usable_cores", lambda: 2)
    with pytest.raises(ConfigError, match=rf"--threads {n}, .* 2 cores; use 1\.\.2"):
        environment.set_threads(n)


@pytest.mark.skipif(not environment.PROC.is_dir(), reason="Linux tells its high-water mark")
def test_a_peak_that_was_forgotten_does_not_count() -> None:
    device = torch.device("cpu")
    large = mmap.mmap(-1, 256 << 20)  # which the system has back as soon as it is closed
    for page in range(0, len(large), mmap.PAGESIZE):
        large[page] = 1
    before = environment.peak_memory_bytes(device)
    large.close()
    environment.forget_peak_memory(device)
    assert environment.peak_memory_bytes(device) < before - (128 << 20)
