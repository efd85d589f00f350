"""Speeds beside busy programs: programs that run when they should, and the table of both."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from benchmarks import busy
from benchmarks.measured import keep


def test_programs_run_only_when_they_are_let() -> None:
    with busy.programs(2) as held:
        seen = [psutil.Process(each.pid) for each in held]

        def states() -> set[str]:
            return {each.status() for each in seen}

        with busy.running(held):
            assert psutil.STATUS_STOPPED not in states()
        _until(lambda: states() == {psutil.STATUS_STOPPED})
    assert all(each.returncode is not None for each in held)


def _until(true: object) -> None:
    for _ in range(1000):
        if true():  # type: ignore[operator]
            return
    pytest.fail("it did not happen")


def test_what_is_kept_of_a_speed_is_compared_round_by_round(tmp_path: Path) -> None:
    rounds = [
        busy.BusyRound(
            greedy_alone=alone, greedy_beside=beside, generate_alone=10.0, generate_beside=1.0
        )
        for alone, beside in ((100.0, 50.0), (200.0, 60.0), (300.0, 30.0))
    ]
    model = busy.BusyModel(model="tiny", dtype="float32", passes="flat", rounds=rounds)
    found = busy.MeasuredBusy(machine="a machine", threads=2, programs=4, models=[model])
    (sheet,) = busy.sheets(found)
    assert sheet.rows == (
        ("tiny", "float32", "greedy, flat", 200.0, 50.0, 0.3),
        ("tiny", "float32", "generate()", 10.0, 1.0, 0.1),
    )
    keep(found, tmp_path / busy.FILE)
    assert busy.stored(tmp_path / busy.FILE) == found


def test_it_measures_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / busy.FILE
    words = ["--dtype", "float32", "--programs", "1", "--rounds", "1", "--tokens", "2"]
    assert busy.main([*words, "--save", str(path)]) == 0
    assert "beside 1 programs" in " ".join(capsys.readouterr().out.split())
    (model,) = busy.stored(path).models
    (each,) = model.rounds
    assert min(each.greedy_alone, each.greedy_beside, each.generate_alone) > 0
