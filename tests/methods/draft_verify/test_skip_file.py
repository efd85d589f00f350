"""Files of skipped blocks: what is kept in them, and never lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError
from ppdbench.methods.draft_verify.skip_file import SkipSet, read_skips, save_skips


def test_saved_sets_are_read_back_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "skip_layers.json"
    save_skips(path, "a/b", SkipSet((1, 3), ()))
    save_skips(path, "c", SkipSet((), (2,)))
    save_skips(path, "a/b", SkipSet((0,), (1,)))
    expected = {"a/b": SkipSet((0,), (1,)), "c": SkipSet((), (2,))}
    assert read_skips(path) == expected
    assert json.loads(path.read_text()) == {
        "a/b": {"attention": [0], "mlp": [1]},
        "c": {"attention": [], "mlp": [2]},
    }
    assert [p.name for p in tmp_path.iterdir()] == ["skip_layers.json"]


def test_a_damaged_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "skip_layers.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        save_skips(path, "a", SkipSet((1,)))
    assert path.read_text() == "{"


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write .*; choose another place"):
        save_skips(tmp_path / "file" / "skip_layers.json", "a", SkipSet((1,)))
