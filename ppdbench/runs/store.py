"""Run folders: one header, one line per finished sample, appended and flushed.

`run.json` says what was run, `samples.jsonl` what came out, or a file like it from each of
several processes. Nothing is rewritten, so a run that dies keeps everything it finished; a
torn last line is cut off and done again.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from msgspec import to_builtins
from msgspec.structs import replace

from ppdbench.errors import ConfigError, DataError, Interrupted
from ppdbench.files.lock import unwritable, written_by_others
from ppdbench.files.whole import replacing
from ppdbench.runs.prompting import other_prompts
from ppdbench.runs.records import (
    KINDS,
    SCHEMA_VERSION,
    DecodeHeader,
    DecodingHeader,
    Environment,
    Header,
    Sample,
    Source,
)
from ppdbench.runs.samples import (
    InOrder,
    SampleFile,
    Stored,
    head_of,
    recorded,
    sample_key,
    sample_path,
    sample_paths,
    to_line,
)
from ppdbench.runs.shards import ALONE, Shard
from ppdbench.runs.validation import CHECKSUM, Unsound, check_seal, convert, loads, seal_of
from ppdbench.runs.writers import (
    DELAY_S,
    PATIENCE_S,
    Companions,
    LockContent,
    claim_turn,
    lock_run,
    take,
)

__all__ = [
    "SCHEMA_VERSION",
    "RunFolder",
    "StoredRun",
    "check_target",
    "read_run",
    "read_whole",
    "sample_key",
]

T = TypeVar("T")
Decodes = TypeVar("Decodes", bound=DecodingHeader)

HEADER = "run.json"
SHOWN, WIDTH = 6, 60  # differences told, and characters of each value
# The source of the first so many examples of a task, as the header of a run has it of all.
FirstExamples = Callable[[str, int], Source]
# What it says besides of its examples that their prompts do not decide.
BESIDE_PROMPTS = ("unscored", "tests_sha256")
# Settings that change how samples are read, not what they are.
VIEWS = {("config", "ks"), ("config", "bucket"), ("config", "model.family_check")}
METHODS, TYPED = "methods", ("config", "methods")
# What a method that is added to a run must find as it was.
MACHINE: Mapping[str, Callable[[Environment], Any]] = {
    "the processor": lambda environment: environment.cpu.model,
    "the number of threads": lambda environment: environment.torch.threads,
    "the version of torch": lambda environment: environment.packages.get("torch"),
    "the version of transformers": lambda environment: environment.packages.get("transformers"),
    "the GPUs": lambda environment: [device.name for device in environment.devices],
}
CHOSEN = "chosen"  # by methods, of what was left to them
CHOICE = "chat"  # of prompts in `config`; the header's `chat` says what came of it


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as read back."""

    path: Path
    header: Header
    samples: Sequence[Sample]
    torn: bool = False  # a last line was incomplete and is left out
    unsealed: int = 0  # lines without a checksum, so that damage in them may not show


def read_run(path: str | Path) -> StoredRun:
    """Read a run folder, the work of an interrupted run included."""
    return _read(path, InOrder)


def read_whole(path: str | Path) -> StoredRun:
    """The same with all samples in memory, for who goes through them more than once."""
    return _read(path, lambda stored: list(InOrder(stored)), hold=sys.maxsize)


def read_once(path: str | Path) -> StoredRun:
    """The same with no sample in memory, for who goes through them once and keeps less."""
    return _read(path, InOrder, hold=0)


def _read(
    path: str | Path, samples: Callable[[Stored], Sequence[Sample]], hold: int | None = None
) -> StoredRun:
    folder = Path(path)
    header = read_run_header(folder)
    stored = Stored(folder, header, hold=hold)
    stored.look()
    return StoredRun(folder, header, samples(stored), stored.torn, stored.unsealed)


def read_run_header(folder: Path) -> Header:
    """Read `run.json`."""
    path = folder / HEADER
    if not path.is_file():
        raise DataError(f"{folder} is no run folder: it has no {HEADER}")
    try:
        content = loads(path.read_bytes())
        if isinstance(content, dict):
            version = content.get("schema_version", SCHEMA_VERSION)
            if version != SCHEMA_VERSION:
                raise _of_another_version(folder, version)
        return as_header(content)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; restore it") from error
    except Unsound as error:
        raise DataError(f"{path} is damaged: {error}; restore it or start a new run") from error


def as_header(content: Any) -> Header:
    """The header that the content of a `run.json` stands for."""
    if not isinstance(content, dict):
        raise Unsound("it is no JSON object")
    check_seal(content)
    kind = content.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        known = ", ".join(KINDS)
        raise Unsound("kind is missing" if kind is None else f"kind: {kind!r} is none of {known}")
    return convert({k: v for k, v in content.items() if k != CHECKSUM}, KINDS[kind].header)


def _of_another_version(folder: Path, version: Any) -> DataError:
    return DataError(
        f"{folder} was written with schema version {version}, this ppdbench reads "
        f"{SCHEMA_VERSION}; run it again or use a matching ppdbench"
    )


def check_target(path: Path, *, resume: bool, shard: Shard = ALONE) -> None:
    """Refuse a folder that a run cannot go into, before anything is loaded for it.

    A job finds what jobs before it wrote; only what it did itself is to be resumed, and all share
    the examples among as many. For ranks the first one decides.
    """
    if shard.follows:
        return
    if (path / HEADER).exists():
        if shard.is_job:
            _check_parts(path, shard)
        begun = sample_path(path, shard).exists() if shard.is_job else True
        if begun and not resume:
            mine = f"shard {shard.index + 1}/{shard.count} of a run" if shard.is_job else "a run"
            raise ConfigError(
                f"{path} already holds {mine}; continue it with --resume or choose another --out"
            )
    elif found := sample_paths(path):
        raise ConfigError(
            f"{path} holds {found[0].name} but no {HEADER}; restore it or choose another --out"
        )
    elif resume and not shard.is_job:
        raise ConfigError(f"{path} holds no run, so there is nothing to resume; drop --resume")


def _check_parts(path: Path, shard: Shard) -> None:
    """Refuse a job whose part is one of another number of parts than the folder's."""
    there = read_run_header(path).shards
    if there not in (None, shard.count):
        raise ConfigError(
            f"{path} holds shards of {there}, so {shard.index + 1}/{shard.count} would share its "
            f"examples in another way; use --shard I/{there}, finish the run with --resume and "
            "no --shard, or choose another --out"
        )


def begun_header(path: Path, shard: Shard = ALONE) -> Header | None:
    """The header of a run that was begun before this process came; ranks wait for the first.

    What was decided once for a run, and not by its options, holds for all who work on it.
    """
    there = (path / HEADER).exists
    _wait_for_first(path, lambda: not shard.follows or there())
    return read_run_header(path) if there() else None


def _wait_for_first(path: Path, begun: Callable[[], bool]) -> None:
    """Give the first rank time to begin to write."""
    until = time.monotonic() + PATIENCE_S
    while not begun():
        if time.monotonic() > until:
            raise DataError(f"the first rank did not begin to write to {path}; see its errors")
        time.sleep(DELAY_S)


class RunFolder:
    """A run being written: by one process, or by the ranks or jobs that share its examples.

    `done` is what the folder held when this process came in, and what it added since; `header`
    what the folder says of the run, which is that of whoever began it.
    """

    header: Header
    done: Stored

    def __init__(
        self,
        path: Path,
        header: Header,
        *,
        resume: bool,
        shard: Shard = ALONE,
        first: FirstExamples | None = None,
        check: Callable[[Header], None] | None = None,
    ) -> None:
        """`check` may refuse to go on with what is stored, before anything is written."""
        check_target(path, resume=resume, shard=shard)
        self.path, self.shard, self._first, self._check = path, shard, first, check
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, error) from error
        _wait_for_first(path, lambda: self._enter(header, resume))
        self._companions = Companions(path, shard)

    def _enter(self, header: Header, resume: bool) -> bool:
        """Begin to write, unless it is too early to."""
        with lock_run(self.path) as content:
            if not claim_turn(self.path, self.shard, content):
                return False
            check_target(self.path, resume=resume, shard=self.shard)
            if (self.path / HEADER).exists():
                self._go_on(read_run_header(self.path), header)
            else:
                self._write_header(self._shared(header))
            self.done = Stored(self.path, self.header)
            self.done.look(whole=True)
            self._found = len(self.done)
            self._open(content)
        return True

    def _go_on(self, stored: Header, asked: Header) -> None:
        """Refuse another configuration; say what could not run before and can now."""
        # Of several shards one may lack what another has.
        known = _with_added(_with_late(stored, asked), asked) if self.shard.alone else stored
        if self.shard.alone and self._first is not None:
            known = _with_more(known, asked, self._first)
        _check_same(known, asked)
        if self._check is not None:
            self._check(stored)
        known = self._shared(known)
        self.header = known
        if known is not stored:
            self._write_header(known)

    def _shared(self, header: Header) -> Header:
        """The header with the number of jobs among which this one shares the run."""
        if not self.shard.is_job or header.shards is not None:
            return header
        return replace(header, shards=self.shard.count)

    def _open(self, content: LockContent) -> None:
        """Take the file of this process; who comes in first cuts what is torn in all of them."""
        own = sample_path(self.path, self.shard)
        cut: list[Path] = []
        try:
            for path, file in self.done.files.items():
                if file.torn and (path == own or len(content.met) == 1):
                    os.truncate(path, file.sound)
                    cut.append(path)
            # Unbuffered: after a failed write nothing may be left that close() would repeat.
            self._file = own.open("ab", buffering=0)
        except OSError as error:
            raise _writing_failed(self.path, error) from error
        if not take(self._file):
            self._file.close()
            raise written_by_others(self.path)
        # What is torn in another job's file is that one's to do.
        self._to_redo = [path for path in cut if path == own or not self.shard.is_job]
        self._cut = cut
        self._own = self.done.files.setdefault(own, SampleFile(own, self.done.kind))

    def _write_header(self, header: Header) -> None:
        content = _plain(header)
        as_header(content)
        text = json.dumps({**content, CHECKSUM: seal_of(content)}, indent=2) + "\n"
        try:
            with replacing(self.path / HEADER) as partial:
                partial.write_text(text, "utf-8")
        except OSError as error:
            raise _writing_failed(self.path, error) from error
        self.header = header

    def append(self, sample: Sample) -> None:
        """Add one finished sample; it survives whatever happens next."""
        told = replace(sample, processes=self.shard.on_machine)
        line = to_line(told)
        record = recorded(self.done.kind, told)
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            os.truncate(self._own.path, self._own.sound)
            raise _writing_failed(self.path, error) from error
        head = head_of(record)
        self.done.add(head, self._own.place(head, line), record)

    @property
    def redone(self) -> bool:
        """True if a torn last line was cut off and samples that were missing have come since."""
        return bool(self._to_redo) and len(self.done) > self._found

    @property
    def cut_off(self) -> Sequence[Path]:
        """The files of which a torn last line was cut off, and nothing was done again for it."""
        if not self.redone:
            return self._cut
        return [path for path in self._cut if path not in self._to_redo]

    def amend(self, **parts: Any) -> None:
        """Write into the header what was decided on the way, for who goes on with the run."""
        with lock_run(self.path):
            self._write_header(replace(read_run_header(self.path), **parts))

    def meet(self) -> None:
        """Wait until all ranks have come as far, and take in what they have stored."""
        if self.shard.launch is not None:
            self._companions.meet()
            self.done.look()

    def gather(self) -> Sequence[Sample]:
        """Return the folder's samples; the first of several ranks waits for the others' ends."""
        if self.shard.leads:
            self._companions.wait_for_ends()
        if not self.shard.alone:
            self.done.look()
        return InOrder(self.done)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is KeyboardInterrupt:
            raise Interrupted(f"interrupted; {self._kept}; {_go_on(self.path)}") from error

    @property
    def _kept(self) -> str:
        """The finished samples, and where they are."""
        if not self.shard.alone:
            return f"all finished samples are kept in {self.path}"
        if n := len(self.done):
            return f"{n} finished sample{'s are' if n > 1 else ' is'} kept in {self.path}"
        return f"{self.path} was begun, no sample is finished"


def _go_on(path: Path) -> str:
    """Say how to resume: the same command may have chosen another folder for itself."""
    return f"continue with --out {shlex.quote(str(path))} --resume"


def _writing_failed(path: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(
            f"disk full while writing to {path}; finished examples are kept, make room and "
            + _go_on(path)
        )
    return DataError(f"cannot write to {path}: {error.strerror}")


def _plain(header: Header) -> dict[str, Any]:
    """A header as it is written."""
    content: dict[str, Any] = json.loads(json.dumps(to_builtins(header)))
    return content


def _with_late(stored: Header, asked: Header) -> Header:
    """The stored header with what is known of methods that could not run when it was written."""
    if not (isinstance(stored, DecodingHeader) and isinstance(asked, DecodingHeader)):
        return stored
    late = (stored.not_run.keys() & asked.methods.keys()) - asked.not_run.keys()
    return _taking_in(late, stored, asked) if late else stored


def _with_added(stored: Header, asked: Header) -> Header:
    """The stored header with further methods, where all that it has are asked for again.

    Each is decoded beside greedy decoding of its own turn, as every method of a run is.
    """
    if not (isinstance(stored, DecodeHeader) and isinstance(asked, DecodeHeader)):
        return stored
    added = asked.methods.keys() - stored.methods.keys()
    if not added or stored.methods.keys() - asked.methods.keys():
        return stored
    _check_same_machine(stored, asked)
    known = _taking_in(added, stored, asked)
    return replace(
        known,
        command=[word for word in asked.command if word != "--resume"],  # makes all of it anew
        config=replace(stored.config, methods=asked.config.methods),
        methods={label: known.methods[label] for label in asked.methods},
        left_out=asked.left_out,
        added={**(stored.added or {}), **dict.fromkeys(sorted(added), asked.started)},
        compilation=asked.compilation,
        pass_model=stored.pass_model or asked.pass_model,
    )


def _check_same_machine(stored: Header, asked: Header) -> None:
    """Refuse methods from another machine or with other libraries: a run tells of one of each."""
    for what, read in MACHINE.items():
        before, now = read(stored.environment), read(asked.environment)
        if before != now:
            raise ConfigError(
                f"cannot add methods: {what} differs from the stored run's "
                f"({_shown(before)} there, {_shown(now)} here); choose another --out"
            )


def _taking_in(labels: Set[str], stored: Decodes, asked: DecodingHeader) -> Decodes:
    """The stored header with what another says of some methods."""

    def joined(before: Mapping[str, T], now: Mapping[str, T]) -> dict[str, T]:
        kept = {n: of for n, of in before.items() if n not in labels or n in now}
        return {**kept, **{label: of for label, of in now.items() if label in labels}}

    known = replace(
        stored,
        methods=joined(stored.methods, asked.methods),
        facts=joined(stored.facts, asked.facts),
        used=joined(stored.used or {}, asked.used or {}),
        chosen=joined(stored.chosen or {}, asked.chosen or {}),
        not_run=joined(stored.not_run, asked.not_run),
    )
    if stored.memory is None or asked.memory is None:
        return known
    methods = joined(stored.memory.methods, asked.memory.methods)
    return replace(known, memory=replace(stored.memory, methods=methods))


def _with_more(stored: Header, asked: Header, first: FirstExamples) -> Header:
    """The stored header for a higher --limit, where the stored examples are the first of these.

    With several tasks the examples of all but the first would change their places.
    """
    one_task = len(stored.data) == 1 and stored.data.keys() == asked.data.keys()
    if not (one_task and _is_raised(stored, asked)):
        return stored
    ((task, about),) = stored.data.items()
    same, now = first(task, about.examples), asked.data[task]
    if same.sha256 != about.sha256:
        return stored
    # What is another of the stored examples stays, and is refused by its name.
    known = {n: getattr(now, n) for n in BESIDE_PROMPTS if getattr(same, n) == getattr(about, n)}
    more = replace(about, examples=now.examples, sha256=now.sha256, turns=now.turns, **known)
    config = replace(stored.config, limit=asked.config.limit)
    return replace(stored, config=config, data={task: more})


def _is_raised(stored: Header, asked: Header) -> bool:
    before, now = stored.config.limit, asked.config.limit
    return before is not None and (now is None or now > before)


def _check_same(stored: Header, asked: Header) -> None:
    """Refuse to mix two configurations in one run."""
    if stored.kind != asked.kind:
        raise ConfigError(
            f"cannot resume: a {stored.kind} run is stored there, and this is a {asked.kind} run; "
            "choose another --out"
        )
    there, here = _plain(stored), _plain(asked)
    there[CHOSEN], here[CHOSEN] = _of_both(there.get(CHOSEN), here.get(CHOSEN))
    differing = list(_only_in_one(there, here))
    for part in (METHODS, "config", "model", "data", "heads", CHOSEN):
        for name, before, now in _differing(_alike(part, there), _alike(part, here)):
            # What was typed of methods says no more than how they differ.
            if (part, name) not in VIEWS and not ((part, name) == TYPED and differing):
                what = f"{part}.{name}" if name else part
                differing.append(f"{what} ({before} there, {now} here)")
    if prompts := other_prompts(stored, asked):
        differing.append(prompts)
    if differing:
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        differ = "differs" if len(differing) == 1 else "differ"
        raise ConfigError(
            f"cannot resume: {', '.join(differing[:SHOWN])}{more} {differ} from the stored run; "
            f"{_remedy(stored, asked)}"
        )


def _remedy(stored: Header, asked: Header) -> str:
    if _is_raised(stored, asked) and len(stored.data) > 1:
        return "a larger --limit goes on only in runs of one task, so choose another --out"
    there, here = stored.methods.keys(), asked.methods.keys()
    if isinstance(stored, DecodeHeader) and there - here and here - there:
        return "name its methods beside the new ones or choose another --out"
    return "repeat its options or choose another --out"


def _only_in_one(there: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """Name the methods that one of two headers lacks, and leave them out of the other's."""
    ours, theirs = here.get(METHODS) or {}, there.get(METHODS) or {}
    for held, others, where in ((theirs, ours, "there"), (ours, theirs, "here")):
        for label in held.keys() - others.keys():
            del held[label]
            yield f"method {label} (only {where})"


def _of_both(stored: Any, asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Numbers of methods that chose some in both headers; earlier versions did not say."""
    labels = (stored or {}).keys() & (asked or {}).keys()
    return {label: stored[label] for label in labels}, {label: asked[label] for label in labels}


def _alike(part: str, header: Mapping[str, Any]) -> Any:
    """A part of a header, less what follows from the rest and which of equal devices was used."""
    content = header.get(part)
    if part == "data" and isinstance(content, dict):
        said = {"turns": None, "in_place_of": None}  # by later versions
        return {task: {**of, **said} for task, of in content.items()}
    if part == "config" and isinstance(content, dict):
        return {name: value for name, value in content.items() if name != CHOICE}
    if part == "model" and isinstance(content, dict) and "device" in content:
        return {**content, "device": str(content["device"]).partition(":")[0]}
    return content


def _differing(stored: Any, asked: Any) -> list[tuple[str, str, str]]:
    """The dotted names of what is not the same, each with both values as they are shown."""
    if isinstance(stored, dict) and isinstance(asked, dict):
        return [
            (f"{name}.{inner}" if inner else name, before, now)
            for name in sorted(stored.keys() | asked.keys())
            for inner, before, now in _differing(stored.get(name), asked.get(name))
        ]
    return [] if stored == asked else [("", _shown(stored), _shown(asked))]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."
