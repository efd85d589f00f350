"""What a benchmark measured is kept where somebody asked, and read back as it was."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.measured import keep


class Found(msgspec.Struct, frozen=True):
    ms: float
    of: str


def test_a_file_holds_what_was_measured_a_field_a_line(tmp_path: Path) -> None:
    found, path = Found(1.5, "é"), tmp_path / "new" / "found.json"
    keep(found, None)
    assert not list(tmp_path.iterdir()), "nobody asked for a file"
    keep(found, path)
    assert path.read_text("utf-8") == '{\n  "ms": 1.5,\n  "of": "é"\n}\n'
    assert msgspec.json.decode(path.read_bytes(), type=Found) == found
