"""Threads are where they were put, and what a process may use is known all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from ppdbench.cli.main import run
from ppdbench.errors import ConfigError
from ppdbench.machine import cores

LINUX = hasattr(os, "sched_setaffinity")
needs_two = pytest.mark.skipif(
    not LINUX or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two cores"
)

PINNED = """
import json, os, torch
from ppdbench.engine.flat.weights import pack
from ppdbench.machine.environment import cores_by_thread, set_threads, usable_cores
from ppdbench.machine.cores import pin
set_threads(2)
before = usable_cores()
pin()
alone = [held for held in cores_by_thread().values() if len(held) == 1]
out = torch.ones(600, 600) @ torch.ones(600, 600)
there = cores_by_thread()
flat = pack(torch.ones(600, 600))(torch.ones(9, 600))
new = [held for thread, held in cores_by_thread().items() if thread not in there]
cores, ours = (sorted(sum(map(list, each), [])) for each in (alone, new))
print(json.dumps([before, usable_cores(), cores, ours, float(out.mean()), float(flat.mean())]))
"""


@needs_two
def test_two_threads_get_a_core_each_and_the_process_keeps_all() -> None:
    done = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, check=True)
    before, after, torchs, ours, *products = json.loads(done.stdout)
    assert after == before
    assert torchs == sorted(os.sched_getaffinity(0))[:2]
    assert ours == torchs[1:], "the first one is the one that calls"
    assert products == [600, 600]


def test_threads_are_not_pinned_where_a_container_has_less_time_than_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cores, "quota_cores", lambda: 1.5)
    monkeypatch.setattr(cores.torch, "get_num_threads", lambda: 4)
    with pytest.raises(ConfigError, match=r"1\.5 cores' worth .* use --threads 1 or leave --pin"):
        cores.pin()


def test_units_of_ppd_are_not_pinned_twice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["decode", "--method", "ppd", "--set", "form=split", "--pin", "--limit", "1"]
    assert run([*words, "--model", "synthetic:layers=4,hidden=64"]) == 2
    assert "--pin: the units of ppd have cores of their own" in capsys.readouterr().err
