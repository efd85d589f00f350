"""Methods in batches, in turns with greedy decoding in batches of the same size.

What takes turns is a stream: some examples, decoded by one method with so many places, each of
which the next example takes as soon as it is free. Each output is compared with greedy decoding
of its prompt alone, by one sequence in a session of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from ppdbench.bench.full_batches import Place, Seated, places
from ppdbench.bench.interleaved import BASELINE, ExampleResult, Interleaved, PreparedMethod
from ppdbench.bench.labels import label_alone
from ppdbench.decoding.batch import Batch, Finished
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Padding
from ppdbench.decoding.identity import Evidence, as_watched, judge, one_row_logits
from ppdbench.decoding.stock_check import FIRST, MethodOutput
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.errors import ExactnessError, NumericalError, PpdbenchError
from ppdbench.machine.environment import forget_peak_memory, peak_memory_bytes
from ppdbench.runs.samples import Key
from ppdbench.runs.workload import Item

Stream = Sequence[Seated | str]  # outputs, or what went wrong
Watches = Mapping[int, LogitWatch]  # by place in the stream


@dataclass(frozen=True, slots=True)
class Answers:
    """The outcomes of a stream of examples, by label and example."""

    streams: Mapping[str, Stream]
    places: Mapping[str, Sequence[Place | None]]
    peaks: Mapping[str, int]


class Batched:
    """Every method with so many places and the baseline, one stream at a time."""

    def __init__(
        self,
        alone: Interleaved,
        batch: Batch,
        greedy: Sequence[Decoder],
        methods: Sequence[PreparedMethod],
        size: int,
    ) -> None:
        self.alone, self.batch, self.methods, self.size = alone, batch, methods, size
        self._greedy = greedy
        self._references: dict[tuple[Key, int], Decoded] = {}

    def hold(self, items: Sequence[Item]) -> None:
        """Run some examples untimed and refuse to go on if they are not what the stock model gives.

        A method whose output is a mismatch already is judged by that, and the others go on.
        """
        watches = {label: LogitWatch(range(FIRST)) for label in (BASELINE[0], *self._labels)}
        outcomes = self.run(items, turn=0, watches=watches)[0]
        exact = {BASELINE[0]} | {m.label for m in self.methods if m.exact}
        self.alone.hold_outputs(
            items[0],
            [
                MethodOutput(label, decoded, watch, self.alone.target.greedy and label in exact)
                for label, watch in watches.items()
                if outcomes[label].verdict != "mismatch"
                and (decoded := outcomes[label].decoded) is not None
            ],
        )

    @property
    def _labels(self) -> list[str]:
        return [method.label for method in self.methods]

    def run(
        self,
        items: Sequence[Item],
        *,
        turn: int,
        methods: Sequence[PreparedMethod] | None = None,
        watches: Mapping[str, LogitWatch] | None = None,
    ) -> list[dict[str, ExampleResult]]:
        """Decode each example with every method; outcomes by label. `turn` decides who goes first.

        With `methods` the others rest. `watches` see the first example of each.
        """
        taking_part = self.methods if methods is None else methods
        by_label = {method.label: method for method in taking_part}
        entries = [*BASELINE, *by_label]
        start = turn % len(entries)
        streams: dict[str, Stream] = {}
        peaks: dict[str, int] = {}
        device = self.alone.loaded.staged.device
        for label in entries[start:] + entries[:start]:
            forget_peak_memory(device)
            seen = {0: watches[label]} if watches and label in watches else {}
            streams[label] = self._stream(items, by_label.get(label), label, seen)
            peaks[label] = peak_memory_bytes(device)
        self._check(items, streams)
        answers = Answers(streams, {n: self._places(s) for n, s in streams.items()}, peaks)
        found = [self._results(items, at, by_label, answers) for at in range(len(items))]
        self.alone.forget_truth()
        return found

    def _places(self, stream: Stream) -> list[Place | None]:
        """The time that counts of each output; those that failed left their places to others."""
        seated = [each for each in stream if not isinstance(each, str)]
        told = iter(places(seated, self.size))
        return [None if isinstance(each, str) else next(told) for each in stream]

    def _check(self, items: Sequence[Item], streams: Mapping[str, Stream]) -> None:
        """Refuse a baseline that failed, and outputs that do not end where they should."""
        for at, item in enumerate(items):
            made: dict[str, Decoded] = {}
            for label, stream in streams.items():
                one = stream[at]
                if isinstance(one, Seated):
                    made[label] = one.decoded
                elif label in BASELINE:
                    raise NumericalError(f"example {item.example.id}: {one}")
            self.alone.check(item, made)

    def _results(
        self,
        items: Sequence[Item],
        at: int,
        by_label: Mapping[str, PreparedMethod],
        answers: Answers,
    ) -> dict[str, ExampleResult]:
        """The outcomes of one example of a stream."""
        item, found = items[at], dict[str, ExampleResult]()
        alone = self._reference(item)
        for label, stream in answers.streams.items():
            one = stream[at]
            ours = one.decoded if isinstance(one, Seated) else one
            if label in BASELINE:
                assert isinstance(ours, Decoded)
                self._hold_baseline(items, at, ours, alone)
                found[label] = ExampleResult("identical", ours, alone)
            else:
                again = partial(self._made_again, items, at, by_label[label], ours)
                found[label] = self.alone.judged(item, by_label[label], ours, alone, again)
            found[label] = replace(
                found[label],
                place=answers.places[label][at],
                alone=alone,
                peak_memory_bytes=answers.peaks[label],
            )
        return found

    def _reference(self, item: Item) -> Decoded:
        """Greedy decoding of a prompt alone, done once for all that is compared with it."""
        key = item.key(BASELINE[0]), item.max_new_tokens
        if key not in self._references:
            self._references[key] = self.alone.reference(item)
        return self._references[key]

    def _hold_baseline(self, items: Sequence[Item], at: int, ours: Decoded, alone: Decoded) -> None:
        """Refuse a baseline that is not greedy decoding: its times would be of something else."""
        if not self.alone.target.greedy or ours.output_ids == alone.output_ids:
            return
        item = items[at]
        evidence = Evidence(
            one_row=partial(one_row_logits, self.alone.session, list(item.ids), alone),
            as_run=partial(self._made_again, items, at, None, ours),
            truth=self.alone.stock,
            noise=self.alone.noise,
        )
        if judge(ours, alone, item.ids, evidence).verdict == "mismatch":
            raise ExactnessError(
                f"greedy decoding in a batch of {self.size} gives another output for example "
                f"{item.example.id} than alone; nothing this run would measure holds"
            )

    def _made_again(
        self,
        items: Sequence[Item],
        at: int,
        method: PreparedMethod | None,
        ours: Decoded | str,
        position: int,
    ) -> Tensor | None:
        """The logits that chose a token, from the same stream decoded once more."""
        assert isinstance(ours, Decoded)

        def run(watch: LogitWatch) -> Decoded | None:
            label = BASELINE[0] if method is None else method.label
            again = self._stream(items, method, label, {at: watch})[at]
            return again.decoded if isinstance(again, Seated) else None

        return as_watched(run, ours, position)

    def _stream(
        self,
        items: Sequence[Item],
        method: PreparedMethod | None,
        label: str,
        watches: Watches,
    ) -> Stream:
        """The outputs of some examples that one method, or greedy decoding, decodes together."""
        if method is not None and isinstance(method.decoder, Padding):
            return self._padded(items, method.decoder, watches)
        slots = self._greedy if method is None else method.slots
        alone = label_alone(label, self.size)
        requests = [
            (at, replace(self.alone.request(item, alone), watch=watches.get(at)))
            for at, item in enumerate(items)
        ]
        found: dict[int, Seated | str] = {}
        for one in self.batch.decode(slots, requests, self.alone.clock()):
            found[one.key] = _seated(one)
        return [found[at] for at in range(len(items))]

    def _padded(self, items: Sequence[Item], decoder: Padding, watches: Watches) -> Stream:
        """The outputs of an engine that takes as many prompts at once and then as many more."""
        clock, found = self.alone.clock(), list[Seated | str]()
        for at in range(0, len(items), self.size):
            requests = [self.alone.request(i, BASELINE[0]) for i in items[at : at + self.size]]
            own = [watches.get(at + row) for row in range(len(requests))]
            began_ms = 1e3 * clock.now()
            try:
                made = decoder.decode_together(requests, own)
            except PpdbenchError as error:
                found += [str(error)] * len(requests)
                continue
            found += [Seated(decoded, began_ms) for decoded in made]
        return found


def _seated(one: Finished[int]) -> Seated | str:
    """An output with its time as seen from outside, or what went wrong."""
    if one.decoded is None:
        expected = isinstance(one.error, PpdbenchError)
        return str(one.error) if expected else f"{type(one.error).__name__}: {one.error}"
    return Seated(replace(one.decoded, wall_ms=one.ended_ms - one.began_ms), one.began_ms)
