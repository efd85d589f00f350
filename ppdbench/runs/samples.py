"""Sample lines where they lie: found by their heads, parsed when somebody asks for them.

A run in one process writes `samples.jsonl`, number I of several `samples-I.jsonl`. Read
together they are one run, whoever wrote what: a failure gives way to a result, and the order is
that of one process.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import msgspec

from ppdbench.errors import DataError, counted
from ppdbench.machine.garbage import no_collection
from ppdbench.runs.drawing import GREEDY
from ppdbench.runs.records import (
    KINDS,
    Asked,
    FailedSample,
    Header,
    ProbeHeader,
    Sample,
    SampleHead,
)
from ppdbench.runs.shards import Shard
from ppdbench.runs.validation import Unsound, convert, from_json, is_sealed, sealed, unsealed

Key = tuple[Any, ...]

# What every line begins with, so that a run is put in order without parsing all of it; and what
# follows, whatever kind of sample it is.
HEAD = ("example_id", "task", "method", "target", "verdict", "number")
FRONT = (
    *HEAD,
    *("cut_tokens", "elapsed_ms", "prompt_ids", "references", "turn", "turns"),
    *("peak_memory_bytes", "finish", "output_ids"),
)
_TEXT = rb'"([^"\\]*)"'
_HEAD = re.compile(
    rb'\{"example_id": %b, "task": %b, "method": %b(?:, "target": %b)?, "verdict": (?:%b|null)'
    rb'(?:, "number": (\d+))?[,}]' % ((_TEXT,) * 5)
)
MOST_OPEN = 64  # files at a time
HELD_BYTES = 64 << 20  # lines that are kept parsed; parsed they take about five times that


def sample_key(sample: SampleHead) -> Key:
    """Return the key by which a sample is the only one of its kind in a run."""
    return sample.task, sample.example_id, sample.method, sample.target


def sample_path(folder: Path, shard: Shard) -> Path:
    """Return the file that a process writes to."""
    return folder / ("samples.jsonl" if shard.alone else f"samples-{shard.index}.jsonl")


def sample_paths(folder: Path) -> list[Path]:
    """List all files of samples that there are, in the order of their numbers."""
    found = [path for path in folder.glob("samples*.jsonl") if _number(path) is not None]
    return sorted(found, key=lambda path: _number(path) or 0)


def _number(path: Path) -> int | None:
    """-1 for the file of a single process."""
    name = re.fullmatch(r"samples(?:-(\d+))?\.jsonl", path.name)
    return None if name is None else int(name[1] or -1)


def to_line(sample: Sample) -> bytes:
    """One line of JSON that begins as `HEAD` says and ends with a checksum."""
    plain = msgspec.to_builtins(sample)
    ordered = {name: plain.pop(name) for name in FRONT if name in plain} | plain
    if "processes" in plain:  # last, as it is added last
        ordered["processes"] = ordered.pop("processes")
    return sealed(json.dumps(ordered, ensure_ascii=False, allow_nan=False).encode())


def recorded(kind: str, sample: Sample) -> Sample:
    """A sample that a run of this kind can store, as what it will be read as."""
    form = _form(kind, failed=sample.verdict == "failed")
    try:
        made: Sample = convert(msgspec.to_builtins(sample), form)
    except Unsound as error:
        raise DataError(f"example {sample.example_id} cannot be stored: {error}") from error
    return made


def _form(kind: str, *, failed: bool) -> type[Any]:
    """Return the type of a line of such a run."""
    return FailedSample if failed else KINDS[kind].sample


def count_turns(samples: Iterable[Asked]) -> int:
    """Prompts of one task: each turn of a question has its own."""
    return len({sample.example_id for sample in samples})


def count_examples(samples: Iterable[Asked]) -> int:
    """Examples of one task: a question counts once, however many turns it has."""
    return count_turns(sample for sample in samples if not sample.is_later)


def in_turns(examples: int | str, turns: int | str, unit: str = "") -> str:
    """`8`, or `8 in 16 turns`; `8 examples` where it is said what they are."""
    words = counted(examples, unit) if unit and isinstance(examples, int) else f"{examples}"
    return words if examples == turns else f"{words} in {turns} turns"


def fewest_examples(samples: Iterable[Asked]) -> int:
    """Examples of the task that has the fewest; intervals are only as good as that."""
    examples = {(sample.task, sample.question) for sample in samples}
    return min(Counter(task for task, _ in examples).values())


class SampleId(NamedTuple):
    """The beginning of a sample's line: enough to put the sample in its place."""

    key: Key
    failed: bool
    number: int | None  # of its example; samples of earlier versions have none


class _Whose(msgspec.Struct):
    """The fields that even a line which was cut short could not lack."""

    task: Any
    example_id: Any
    method: Any
    verdict: Any = None


def parse_sample(line: bytes, kind: str) -> Sample:
    """A whole sample of a run of this kind; `Unsound` says what is wrong with a line."""
    if not line.endswith(b"\n"):
        raise Unsound("its end is missing")
    body = unsealed(line)
    head = _HEAD.match(body)
    failed = (head[5] == b"failed") if head else from_json(body, _Whose).verdict == "failed"
    sample: Sample = from_json(body, _form(kind, failed=failed))
    return sample


def head_of(sample: Asked) -> SampleId:
    """The head of a parsed sample."""
    return SampleId(sample_key(sample), sample.verdict == "failed", sample.number)


def _quick_head(line: bytes) -> SampleId | None:
    """The head of a line that looks like those written here."""
    found = _HEAD.match(line)
    if found is None or not line.endswith(b"}\n"):
        return None
    try:
        example, task, method, target, verdict = (
            None if part is None else part.decode() for part in found.groups()[:5]
        )
    except UnicodeDecodeError:
        return None
    number = None if found[6] is None else int(found[6])
    return SampleId((task, example, method, target), verdict == "failed", number)


class SampleLocation(NamedTuple):
    """A sample's place in its file."""

    path: Path
    offset: int
    length: int
    failed: bool
    number: int | None

    def read(self, file: BinaryIO, kind: str) -> Sample:
        """The sample from its open file; only now it shows whether all of it is sound."""
        file.seek(self.offset)
        try:
            return parse_sample(file.read(self.length), kind)
        except Unsound as error:
            file.seek(0)
            line = 1 + file.read(self.offset).count(b"\n")
            raise damaged(self.path, line, error) from error


def damaged(path: Path, line: int, why: Unsound) -> DataError:
    """Return the error about a line that cannot be used."""
    return DataError(
        f"{path} line {line} is damaged: {why}; restore the file, or let --salvage drop such lines"
    )


class SampleFile:
    """One file, read as far as it is sound."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path, self.kind = path, kind
        self.sound = 0  # bytes
        self.lines = 0
        self.unsealed = 0  # of these lines, written by versions that knew no checksums
        self.torn = False  # the last line lacks its end and is left out

    def news(self, *, whole: bool) -> Iterator[tuple[SampleId, SampleLocation, Sample | None]]:
        """Yield what has come since the last look; with `whole` every line is parsed."""
        self.torn = False
        with opened(self.path) as file:
            file.seek(self.sound)
            for line in file:
                if not line.endswith(b"\n"):
                    self.torn = True
                    return
                head, sample = None if whole else _quick_head(line), None
                if head is None:
                    try:
                        sample = parse_sample(line, self.kind)
                    except Unsound as error:
                        raise damaged(self.path, self.lines + 1, error) from error
                    head = head_of(sample)
                self.unsealed += not is_sealed(line)
                yield head, self.place(head, line), sample

    def place(self, head: SampleId, line: bytes) -> SampleLocation:
        """Return the place of the next line."""
        place = SampleLocation(self.path, self.sound, len(line), head.failed, head.number)
        self.sound += len(line)
        self.lines += 1
        return place


def opened(path: Path) -> BinaryIO:
    """A file of samples, to be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; restore it") from error


class Stored(Mapping[Key, Sample]):
    """The samples of a folder by key, in the order in which one process would write them.

    Parsed ones stay in memory while they are few. Keys of a large run fit where its samples
    would not.
    """

    def __init__(self, folder: Path, header: Header, *, hold: int | None = None) -> None:
        self.folder, self.kind = folder, header.kind
        self.hold = HELD_BYTES if hold is None else hold  # bytes of lines that are kept parsed
        self.files: dict[Path, SampleFile] = {}
        targets = header.config.targets if isinstance(header, ProbeHeader) else ()
        self._tasks = frozenset(header.data)
        self._methods = {name: at for at, name in enumerate(header.methods)}
        self._targets = {target.kind: at for at, target in enumerate(targets)}
        self._places: dict[Key, SampleLocation] = {}
        self._order: list[Key] | None = None
        self._held: dict[Key, Sample] | None = {}
        self._held_bytes = 0

    @property
    def torn(self) -> bool:
        """True if a last line was incomplete and is left out."""
        return any(file.torn for file in self.files.values())

    @property
    def unsealed(self) -> int:
        """Lines without a checksum."""
        return sum(file.unsealed for file in self.files.values())

    def look(self, *, whole: bool | None = None) -> None:
        """Take in what has been written since; unless told, small runs are parsed as a whole."""
        paths = sample_paths(self.folder)
        if whole is None:
            whole = sum(path.stat().st_size for path in paths) <= self.hold
        with no_collection():
            for path in paths:
                file = self.files.setdefault(path, SampleFile(path, self.kind))
                for head, place, sample in file.news(whole=whole):
                    self._refuse_foreign(head.key, file)
                    self.add(head, place, sample)

    def _refuse_foreign(self, key: Key, file: SampleFile) -> None:
        """Refuse the line that was read last if it is a sample of another run."""
        task, _, method, target = key
        known = (
            ("task", task, self._tasks),
            ("method", method, self._methods),
            ("target", target or GREEDY, self._targets),
        )
        for what, name, of_run in known:
            # A probe of layers names no methods, and nothing else names targets.
            if of_run and name not in of_run:
                raise DataError(
                    f"{file.path} line {file.lines} is a sample of another run: run.json has no "
                    f"{what} {name!r}; restore the file"
                )

    def add(self, head: SampleId, place: SampleLocation, sample: Sample | None) -> None:
        """Take in one sample; what is held twice is what was tried again."""
        before = self._places.get(head.key)
        if before is not None and head.failed and not before.failed:
            return
        self._places[head.key] = place
        self._order = None
        if self._held is not None:
            self._hold(head.key, place, sample)

    def _hold(self, key: Key, place: SampleLocation, sample: Sample | None) -> None:
        assert self._held is not None
        self._held.pop(key, None)
        if sample is None:
            return
        self._held[key] = sample
        self._held_bytes += place.length
        if self._held_bytes > self.hold:
            self._held = None

    def __getitem__(self, key: Key) -> Sample:
        held = (self._held or {}).get(key)
        if held is not None:
            return held
        place = self._places[key]
        with opened(place.path) as file:
            return place.read(file, self.kind)

    def one_by_one(self, keys: Iterable[Key]) -> Iterator[Sample]:
        """Yield these samples; what is not held is parsed when its turn comes."""
        held = self._held or {}
        files: dict[Path, BinaryIO] = {}
        with ExitStack() as stack:
            for key in keys:
                if (sample := held.get(key)) is not None:
                    yield sample
                    continue
                place = self._places[key]
                if place.path not in files:
                    if len(files) == MOST_OPEN:
                        stack.close()
                        files.clear()
                    files[place.path] = stack.enter_context(opened(place.path))
                yield place.read(files[place.path], self.kind)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Key]:
        if self._order is None:
            self._order = sorted(self._places, key=self._rank)
        return iter(self._order)

    def _rank(self, key: Key) -> tuple[Any, ...]:
        """Order by example, turn, method, target; what has no number keeps its order, in front."""
        number, (_, example, method, target) = self._places[key].number, key
        if number is None:
            return (-1,)
        turn = len(str(example))  # 81, then 81/2
        return (number, turn, self._methods.get(method, 0), self._targets.get(target, 0))

    def __len__(self) -> int:
        return len(self._places)


class InOrder(Sequence[Sample]):
    """The samples of a folder one after the other."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._keys = list(stored)

    @overload
    def __getitem__(self, at: int) -> Sample: ...

    @overload
    def __getitem__(self, at: slice) -> list[Sample]: ...

    def __getitem__(self, at: int | slice) -> Sample | list[Sample]:
        if isinstance(at, slice):
            return list(self._stored.one_by_one(self._keys[at]))
        return self._stored[self._keys[at]]

    def __iter__(self) -> Iterator[Sample]:
        return self._stored.one_by_one(self._keys)

    def __len__(self) -> int:
        return len(self._keys)
