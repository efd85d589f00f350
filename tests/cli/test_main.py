"""Warnings on their way to the terminal, and what is wrong before any command."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.cli.main import run, tell_warning
from ppdbench.errors import PpdbenchWarning


def test_own_warnings_are_one_line_and_others_go_their_way(
    capsys: pytest.CaptureFixture[str],
) -> None:
    others: list[tuple[object, ...]] = []

    def otherwise(*told: object) -> None:
        others.append(told)

    tell_warning(PpdbenchWarning("so and so"), PpdbenchWarning, "x.py", 3, otherwise=otherwise)
    assert capsys.readouterr() == ("", "warning: so and so\n")
    assert others == []
    tell_warning("old", DeprecationWarning, "y.py", 4, otherwise=otherwise)
    assert capsys.readouterr() == ("", "")
    assert others == [("old", DeprecationWarning, "y.py", 4)]


def test_a_current_folder_that_has_been_deleted_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(["list", "tasks"]) == 2
    said = "ppdbench: the current folder has been deleted; change to another one\n"
    assert capsys.readouterr() == ("", said)
