"""x"""

from __future__ import annotations

import pytest

from ppdbench.errors import ConfigError
from ppdbench.tasks import Template

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
