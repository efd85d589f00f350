"""The lock of a folder: who comes second is told, and by which option to go elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError
from ppdbench.files.lock import hold, written_alone


def test_who_comes_second_is_told_which_option_to_choose(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    with (
        written_alone(folder),
        pytest.raises(ConfigError, match=r"there is being written by .* another --states$"),
    ):
        hold(folder, "--states")
    hold(folder, "--states").release()


def test_a_process_holds_a_lock_as_often_as_it_asks_and_until_it_has_dropped_it(
    tmp_path: Path,
) -> None:
    first = hold(tmp_path, "--states", by_process=True)
    again = hold(tmp_path, "--states", by_process=True)
    assert again is first
    del first
    with pytest.raises(ConfigError, match="choose another --out"), written_alone(tmp_path):
        pytest.fail("two came in")
    del again
    with written_alone(tmp_path):
        pass


def test_a_file_in_the_way_is_named_and_so_is_the_option(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine", "utf-8")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        said = rf"cannot write to {re.escape(str(folder))}: .*; choose another --states$"
        with pytest.raises(ConfigError, match=said):
            hold(folder, "--states")
    with pytest.raises(ConfigError, match="taken: it is no folder; choose another"):
        hold(tmp_path / "taken", "--states")
    assert (tmp_path / "taken").read_text("utf-8") == "mine"
