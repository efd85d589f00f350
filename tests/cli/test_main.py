"""Warnings on their way to the terminal."""

from __future__ import annotations

import pytest

from ppdbench.cli.main import tell_warning
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
