"""The examples a reader can look into, as compact data; the page's script draws them.

What is out of the ordinary comes first: failures, mismatches, ties, inexact outputs. Then
examples follow in their order until the room is used up; the page says how many are left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence, Set
from typing import Any

from ppdbench.report.page.runs import FLAGGED, Run
from ppdbench.report.page.tokens import Texts, texts_of
from ppdbench.runs.records import DecodedSample, FailedSample, ProbedSample, Sample

ROOM = 1_800_000  # bytes, for the examples of all runs
LONGEST_TEXT = 1200  # characters of a prompt or reference; the middle is left out
# A rank is one character, 0-9 and a-z; what is lower down counts as the last.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
# Of a decoding sample, what the page shows: its name there, its name in samples.
KEPT = {
    "accepted": "accepted",
    "proposed": "proposed",
    "matches": "matches",
    "prefill": "prefill_ms",
    "at": "first_difference",
    "margin": "margin",
    "discrepancy": "discrepancy",
    "error": "error",
    "finish": "finish",
}


class Gathered:
    """Examples of one run, with the outputs and texts that they share."""

    def __init__(self, run: Run, texts: Texts | None) -> None:
        self.run, self.texts = run, texts
        self.outputs: dict[tuple[int, ...], int] = {}
        self.words: dict[int, str] = {}
        self.examples: list[dict[str, Any]] = []
        self.size = 0  # bytes of all this in the page, to within a few per cent

    def add(self, samples: Sequence[Sample]) -> None:
        """One example with all its methods."""
        example = self._example(samples)
        self.examples.append(example)
        self.size += len(json.dumps(example, separators=(",", ":")))

    def _example(self, samples: Sequence[Sample]) -> dict[str, Any]:
        first = samples[0]
        example: dict[str, Any] = {
            "task": first.task,
            "id": first.example_id,
            "entries": [self._entry(sample) for sample in samples],
        }
        if first.cut_tokens:
            example["cut"] = first.cut_tokens
        if self.texts is not None:
            example["prompt"] = without_middle(self.texts.joined(first.prompt_ids))
        if isinstance(first, DecodedSample | FailedSample) and first.references:
            example["reference"] = without_middle(first.references[0])
        return example

    def _entry(self, sample: Sample) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "method": sample.method,
            "verdict": sample.verdict or sample.target,
            "output": self._output(sample.output_ids),
        }
        kept = {name: getattr(sample, field, None) for name, field in KEPT.items()}
        entry |= {name: value for name, value in kept.items() if value not in (None, [])}
        if isinstance(sample, DecodedSample):
            if sample.step_ms:
                entry["steps"] = round(sum(sample.step_ms), 1)
            if sample.baseline_ids:
                entry["greedy"] = self._output(sample.baseline_ids)
        if isinstance(sample, ProbedSample):
            entry |= self._layers(sample)
        return entry

    def _layers(self, sample: ProbedSample) -> dict[str, Any]:
        """Ranks by layer, for each head, and what each layer would have said itself."""
        found: dict[str, Any] = {"target": sample.target or "greedy"}
        for name, of in (("ranks", sample.ranks), ("trained", sample.head_ranks)):
            if of:
                found[name] = {n: rank_characters(ranks) for n, ranks in of.items()}
        if sample.predictions:
            found["own"] = {n: self._output(ids) for n, ids in sample.predictions.items()}
        return found

    def _output(self, ids: Sequence[int]) -> int:
        """The number of an output among those kept; equal ones are kept once."""
        output = tuple(ids)
        if output not in self.outputs:
            self.outputs[output] = len(self.outputs)
            self.size += len(str(output))
            self._name(output)
        return self.outputs[output]

    def _name(self, ids: Iterable[int]) -> None:
        if self.texts is None:
            return
        for token in ids:
            if token not in self.words:
                self.words[token] = self.texts.of(token)
                self.size += len(json.dumps(self.words[token])) + 8

    def content(self, total: int) -> dict[str, Any]:
        """Return the data for the page's script."""
        return {
            "name": self.run.name,
            "probe": self.run.is_probe,
            "total": total,
            "texts": self.texts is not None,
            "words": self.words,
            "outputs": [list(ids) for ids in self.outputs],
            "examples": self.examples,
        }


def rank_characters(ranks: Sequence[int]) -> str:
    """Ranks as a text of one character each."""
    last = len(DIGITS) - 1
    return "".join(DIGITS[min(rank, last)] for rank in ranks)


def without_middle(text: str) -> str:
    """A text without its middle, if it is long."""
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]} […] {text[-half:]}"


def gathered(runs: Sequence[Run], room: int = ROOM) -> list[dict[str, Any]]:
    """The examples of runs with outputs to look into, each run with its share of the room."""
    shown = [run for run in runs if run.is_decode or run.is_probe]
    return [_of_run(run, room // len(shown)) for run in shown]


def _of_run(run: Run, room: int) -> dict[str, Any]:
    groups: dict[tuple[str, str], list[int]] = {}
    for at, sample in enumerate(run.samples):
        groups.setdefault((sample.task, sample.example_id), []).append(at)
    verdicts = [sample.verdict for sample in run.samples]
    # Stable: else in their own order.
    ordered = sorted(groups.values(), key=lambda group: _urgency({verdicts[at] for at in group}))
    whole = run.stored.samples
    found = Gathered(run, texts_of(run.header, whole))
    for group in ordered:
        if found.size > room:
            break
        found.add([whole[at] for at in group])
    return found.content(len(groups))


def _urgency(verdicts: Set[str | None]) -> int:
    return next((i for i, flag in enumerate(FLAGGED) if flag in verdicts), len(FLAGGED))
