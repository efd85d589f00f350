"""JSON files of our own: read with a reason or not at all, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_json, read_versioned, write_versioned
from ppdbench.files.whole import write_whole


def test_what_is_written_is_read_back_with_a_line_per_key(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    content = {"name": "é", "rows": [1, 2], "parts": [{"a": 1}, {"a": 2}]}
    write_versioned(path, "ours", 1, content)
    assert json.loads(path.read_text("utf-8")) == {"format": "ours", "version": 1, **content}
    assert '  "rows": [1, 2],\n' in path.read_text("utf-8")
    assert '    {"a": 1},\n    {"a": 2}\n' in path.read_text("utf-8")
    assert read_versioned(path, "file", "make one", "ours", 1).text("name") == "é"
    assert [file.name for file in path.parent.iterdir()] == ["a.json"]


BAD = {
    "{": "is not JSON that can be used",
    '{"a": 1, "a": 2}': "'a' stands there twice",
    "[" * 100_000: "is not JSON that can be used",
    "[1]": "must be an object, not a list of 1",
    "{}": "the key format is missing",
    '{"format": "theirs", "version": 1}': "is no thing: its format is 'theirs', not 'ours'",
    '{"format": "ours", "version": 2}': "version 2, but this ppdbench reads 1",
    '{"format": "ours", "version": "1"}': "version must be a whole number",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:24])
def test_what_is_no_file_of_ours_is_told_with_its_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=BAD[text]) as raised:
        read_versioned(path, "thing", "make one", "ours", 1)
    assert "a.json" in str(raised.value)


def test_a_mark_of_the_encoding_before_the_text_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"format": "ours", "version": 1}', "utf-8-sig")
    assert read_versioned(path, "thing", "make one", "ours", 1).number("version") == 1


def test_a_missing_file_is_told_with_a_way_to_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"thing .*a.json does not exist; make one"):
        read_json(tmp_path / "a.json", "thing", "make one")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_json(tmp_path, "thing", "make one")


def test_what_was_there_stays_where_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    (tmp_path / "a.json.part").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*; choose another place"):
        write_whole(path, "new")
    assert path.read_text() == "old"
