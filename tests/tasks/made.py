"""Templates that are refused, and rows that are read or not."""

from __future__ import annotations

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks import (
    Template,
    load_rows,
    load_task,
)

NAMES = frozenset({"text", "more"})
VALUES = {"text": "hello", "more": "{{ text }} <&>"}


def refused(source: str) -> str:
    """Checked and rendered as a task would, the template must end in a ConfigError."""
    template = Template("t.jinja", source)
    with pytest.raises(ConfigError) as caught:
        template.check(NAMES)
        template.render(VALUES)
    message = str(caught.value)
    assert "\n" not in message
    assert "t.jinja" in message
    return message


def rows_of(data, task="squad", limit=None, split=None, seed=None):
    return load_rows(load_task(task), str(data), split=split, limit=limit, offline=True, seed=seed)


def data_fails(data, *parts: str, error=DataError, **options):
    with pytest.raises(error) as caught:
        rows_of(data, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


SQUAD = [
    {
        "id": f"q{i}",
        "title": "T",
        "context": f"Para {i},\nwith a newline, a comma and “quotes”\u2028.",
        "question": f'Who is "{i}"?',
        "answers": {"text": ["me", "you\nthere"], "answer_start": [0, 5]},
    }
    for i in range(5)
]
