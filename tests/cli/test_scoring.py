"""What `ppdbench train layerskip` decodes afterwards: asked for by the options that runs have."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.cli.scoring import Scoring
from ppdbench.errors import ConfigError

ASKED: dict[str, Any] = {
    "tasks": ("gsm8k",),
    "data": None,
    "limit": 4,
    "device": "cpu",
    "chat": "auto",
    "system": None,
    "chat_pairs": (),
}


@pytest.mark.parametrize(
    ("trained", "data", "taken"),
    [
        (None, None, "builtin"),
        ("org/m", None, "hub"),
        ("org/m", "./rows.jsonl", "./rows.jsonl"),
        ("layers=2,hidden=32", None, "hub"),
    ],
)
def test_examples_come_from_where_those_of_runs_do(
    trained: str | None, data: str | None, taken: str
) -> None:
    scoring = Scoring.asked({**ASKED, "data": data}, trained)
    assert scoring is not None
    assert scoring.data == taken


@pytest.mark.parametrize("given", [{"data": "builtin"}, {"limit": 2}, {"system": "Be brief."}])
def test_what_is_said_of_examples_that_nobody_asked_for_is_refused(given: dict[str, Any]) -> None:
    nothing = {**ASKED, "tasks": (), "limit": None}
    assert Scoring.asked(dict(nothing), None) is None
    with pytest.raises(ConfigError, match="add --task"):
        Scoring.asked({**nothing, **given}, None)
