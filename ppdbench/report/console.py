"""The way to a terminal: whatever is drawn there passes here last."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ppdbench.files.clean import clean


class Terminal(Console):
    """A console that draws no character that could do more than be seen."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:  # the bar's own
                yield segment
            else:
                yield Segment(clean(segment.text, "terminal"), segment.style)
