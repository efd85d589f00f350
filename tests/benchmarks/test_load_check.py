"""The check's share of loading: loads in processes of their own, and the table of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import load_check
from benchmarks.load_check import LoadedModel, LoadRound, MeasuredLoads, Seconds
from benchmarks.measured import keep

TINY = "synthetic:layers=3,hidden=64"


def test_shares_are_taken_load_by_load(tmp_path: Path) -> None:
    rounds = [
        LoadRound(
            without=Seconds(wall=1.0, cpu=1.0),
            beside=Seconds(wall=wall, cpu=cpu),
            check=Seconds(wall=0.4, cpu=0.1),
        )
        for wall, cpu in ((4.0, 1.0), (8.0, 2.0), (40.0, 5.0))
    ]
    model = LoadedModel(
        model="tiny", dtype="float32", passes="flat", layers=4, compared=2, rounds=rounds
    )
    found = MeasuredLoads(machine="a machine", threads=1, models=[model])
    (sheet,) = load_check.sheets(found)
    (row,) = sheet.rows
    assert row[:4] == ("tiny", "float32", "2 of 4", 2.0)
    assert row[4:] == pytest.approx((100.0, 0.05, 0.05, 2.0))
    assert "a machine" in sheet.notes
    keep(found, tmp_path / load_check.FILE)
    assert load_check.stored(tmp_path / load_check.FILE) == found


def test_it_measures_a_folder_of_random_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / load_check.FILE
    words = ["--models", TINY, "--dtype", "float32", "--rounds", "1", "--save", str(path)]
    assert load_check.main(words) == 0
    assert "3 of 3" in capsys.readouterr().out
    (model,) = load_check.stored(path).models
    (each,) = model.rounds
    assert 0 < each.check.cpu < each.beside.cpu
    assert 0 < each.check.wall < each.beside.wall
    assert each.without.cpu > 0


def test_without_the_check_none_of_it_runs() -> None:
    found = load_check.apart(load_check.one_load, TINY, "float32", False)
    assert found.check == Seconds(wall=0.0, cpu=0.0)
    assert found.compared == 0
    assert found.whole.cpu > 0
