"""Names of folders that results go into: refused where nothing can come to lie there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_folder, check_writable


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("kept")
    return path


def test_folders_may_be_there_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_folder("--out", str(tmp_path)) == tmp_path
    assert check_folder("--out", str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    monkeypatch.chdir(tmp_path)
    assert check_folder("--out", "a/b") == Path("a/b")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_no_folder_nor_is_there_any_below_it(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out .*notes\.txt is a file; give a folder"):
        check_folder("--out", str(file))
    with pytest.raises(ConfigError, match=r"--states .*lies below a file, .*notes\.txt; give"):
        check_folder("--states", str(file / "a" / "b"))
    assert file.read_text() == "kept"


def test_an_empty_name_is_no_folder() -> None:
    with pytest.raises(ConfigError, match="--out is empty; give a folder"):
        check_folder("--out", " ")


def test_nothing_is_written_below_a_file(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"notes\.txt is not a writable folder"):
        check_writable(file / "a" / "b.json")
    assert check_writable(file.parent / "a" / "b.json") == file.parent / "a" / "b.json"
