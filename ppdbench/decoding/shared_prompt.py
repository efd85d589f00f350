"""A session over one prompt whose outputs are many: the prompt runs once, and so do beginnings.

Outputs of one prompt begin alike again and again. Flat passes compute a row from the text up to it
and from nothing else, bit for bit; so what a row gave once is handed out wherever the same text
comes by, whichever method asks, and only the other passes run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.masks import Step
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.taps import StateTap, Tap

KEPT_BYTES = 256_000_000  # of rows that are kept
Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TextRow:
    """The row of the last token of a text: what it put into the cache, states, and readout."""

    cached: Sequence[Tensor]
    hidden: Tensor  # [hidden]
    taps: dict[int, Tensor]
    reading: Reading  # of one row

    @property
    def nbytes(self) -> int:
        """The bytes of memory that it holds."""
        held = (*self.cached, self.hidden, *self.taps.values(), self.reading.logits)
        return sum(t.numel() * t.element_size() for t in held)


class KnownTexts:
    """Rows by the layers that ran and text; what nobody asked for longest is forgotten first."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[Adapter, Text], TextRow] = OrderedDict()
        self._bytes = 0

    def find(
        self, of: Adapter, texts: Sequence[Text], taps: Collection[int]
    ) -> list[TextRow] | None:
        """The rows of all these texts with the states of these layers, or None."""
        rows = [self._rows.get((of, text)) for text in texts]
        found = [row for row in rows if row is not None and row.taps.keys() >= set(taps)]
        if len(found) < len(rows):
            return None
        for text in texts:
            self._rows.move_to_end((of, text))
        return found

    def keep(self, of: Adapter, text: Text, row: TextRow) -> None:
        """Keep a row, and as many of the others as there is room for."""
        before = self._rows.pop((of, text), None)
        self._rows[of, text] = row
        self._bytes += row.nbytes - (0 if before is None else before.nbytes)
        while self._bytes > KEPT_BYTES:
            self._bytes -= self._rows.popitem(last=False)[1].nbytes


class SharedPrompt(Session):
    """Keeps the rows of a prompt, and what each layer gave for it, for the outputs that follow.

    A row behind the prompt never changes those of the prompt, so that they only have to be
    counted in again. Rows behind it are those of `known` texts, which sessions may share.
    """

    _prompt: list[int] | None = None
    _given: dict[int, Tensor]
    _last: Tensor

    def __init__(self, *given: Any, known: KnownTexts | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        self._known = KnownTexts() if known is None else known

    def run_prompt(self, *, tap: Tap | None = None) -> Tensor:
        """Run the prompt, or hand out again what it gave: [1, 1, hidden] after its last token."""
        if self._prompt != self.tokens:
            self._given = {}
            self._last = super().run_prompt(tap=self._keep)
            self._prompt = list(self.tokens)
        self.cache.hold(len(self._prompt), 0, self.model.n_layers)
        if tap is not None:
            for layer, hidden in self._given.items():
                tap(layer, hidden)
        return self._last

    def wipe(self) -> None:
        """Forget the prompt as well, whose rows are gone."""
        super().wipe()
        self._prompt = None

    def _keep(self, layer: int, hidden: Tensor) -> None:
        self._given[layer] = hidden

    def run_and_read(
        self, tokens: Sequence[int], step: Step | None = None, *, tap: Tap | None = None
    ) -> tuple[Tensor, Reading]:
        """Run all layers over `tokens` and read out each row, or hand it out again."""
        step = self.chain(len(tokens)) if step is None else step
        if not self._is_known_by_text(step, tap):
            return super().run_and_read(tokens, step, tap=tap)
        assert tap is None or isinstance(tap, StateTap)
        begun = self.tokens[: step.start]
        texts = [(*begun, *line) for line in _lines(tokens, step)]
        of, taps = self.model.adapter, frozenset[int]() if tap is None else tap.layers
        rows = self._known.find(of, texts, taps)
        if rows is not None:
            return self._again(rows, step, tap)
        seen = dict[int, Tensor]()
        own = None if tap is None else StateTap(taps, seen)
        hidden, reading = super().run_and_read(tokens, step, tap=own)
        for layer, states in seen.items():
            assert tap is not None
            tap(layer, states)
        for i, text in enumerate(texts):
            row = TextRow(
                self.cache.taken(step.start + i),
                hidden[0, i].clone(),
                {layer: states[0, i].clone() for layer, states in seen.items()},
                reading.part(slice(i, i + 1)).copy(),
            )
            self._known.keep(of, text, row)
        return hidden, reading

    def _is_known_by_text(self, step: Step, tap: Tap | None) -> bool:
        """True for rows that depend on the text alone, if it is known what to keep of them."""
        plain = step.sights is not None or step.contiguous
        return (
            self.model.flat is not None
            and plain
            and not step.given
            and (tap is None or isinstance(tap, StateTap))
        )

    def _again(
        self, rows: Sequence[TextRow], step: Step, tap: StateTap | None
    ) -> tuple[Tensor, Reading]:
        """Hand out rows that are known, as the pass over them would."""
        for i, row in enumerate(rows):
            self.cache.put_back(step.start + i, row.cached)
        self.cache.hold(step.end, 0, self.model.n_layers)
        if tap is not None:
            for layer in sorted(tap.layers):
                tap(layer, torch.stack([row.taps[layer] for row in rows])[None])
        hidden = torch.stack([row.hidden for row in rows])[None]
        return hidden, Reading.joined([row.reading for row in rows])


def _lines(tokens: Sequence[int], step: Step) -> Iterator[list[int]]:
    """The tokens of a pass up to each of its rows, that one included."""
    if step.sights is None:
        for n in range(1, len(tokens) + 1):
            yield list(tokens[:n])
        return
    ends = step.sights.offsets.tolist()
    for first, last in pairwise(ends):
        yield [tokens[row] for row in step.sights.rows[first:last].tolist()]
