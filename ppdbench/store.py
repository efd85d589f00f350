"""Run folders: one header, one line per finished sample, appended and flushed.

`run.json` says what was run, `samples.jsonl` what came out. Nothing is rewritten, so a run
that dies keeps everything it finished; a torn last line is cut off and done again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ppdbench.errors import ConfigError, DataError, Interrupted

SCHEMA_VERSION = 1
HEADER, SAMPLES, LOCK = "run.json", "samples.jsonl", ".lock"
KEY = ("task", "example_id", "method", "target")
NEEDED = {"task", "example_id", "method"}
# Settings that change how samples are read, not what they are.
VIEWS = {("config", "ks"), ("config", "bucket")}


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as read back."""

    path: Path
    header: dict[str, Any]
    samples: list[dict[str, Any]]
    torn: bool = False  # the last line was incomplete and is left out


def sample_key(sample: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a sample the only one of its kind in a run."""
    return tuple(sample.get(name) for name in KEY)


def read_run(path: str | Path) -> StoredRun:
    """Read a run folder, the work of an interrupted run included."""
    folder = Path(path)
    header = _read_header(folder)
    samples, torn, _ = _read_samples(folder / SAMPLES)
    latest = {sample_key(sample): sample for sample in samples}  # a failure may be tried again
    return StoredRun(folder, header, list(latest.values()), torn)


def _read_header(folder: Path) -> dict[str, Any]:
    if not (folder / HEADER).is_file():
        raise DataError(f"{folder} is no run folder: it has no {HEADER}")
    try:
        header: dict[str, Any] = json.loads((folder / HEADER).read_text("utf-8"))
        version = header["schema_version"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / HEADER} is damaged; restore it or start a new run") from error
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{folder} was written with schema version {version}, this ppdbench reads "
            f"{SCHEMA_VERSION}; run it again or use a matching ppdbench"
        )
    return header


def _read_samples(path: Path) -> tuple[list[dict[str, Any]], bool, int]:
    """The samples, whether the last line is torn, and the bytes that are sound."""
    if not path.exists():
        return [], False, 0
    samples: list[dict[str, Any]] = []
    sound = 0
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        try:
            sample = json.loads(line)
            whole = line.endswith(b"\n") and isinstance(sample, dict) and sample.keys() >= NEEDED
        except ValueError:
            whole = False
        if not whole:
            if number == len(lines):
                return samples, True, sound
            raise DataError(f"{path} line {number} is damaged; restore the file or run again")
        samples.append(sample)
        sound += len(line)
    return samples, False, sound


def check_target(path: Path, *, resume: bool) -> None:
    """Refuse a folder that a run cannot go into, before anything is loaded for it."""
    if (path / HEADER).exists():
        if not resume:
            raise ConfigError(
                f"{path} already holds a run; continue it with --resume or choose another --out"
            )
    elif (path / SAMPLES).exists():
        raise ConfigError(
            f"{path} holds {SAMPLES} but no {HEADER}; restore it or choose another --out"
        )
    elif resume:
        raise ConfigError(f"{path} holds no run, so there is nothing to resume; drop --resume")


class RunFolder:
    """A run being written. One process at a time; the second is refused."""

    def __init__(self, path: Path, header: dict[str, Any], *, resume: bool) -> None:
        check_target(path, resume=resume)
        self.path = path
        self.torn = False
        self.done: dict[tuple[Any, ...], dict[str, Any]] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / LOCK).open("w")
        except OSError as error:
            raise ConfigError(f"cannot write to {path}: {error.strerror}; choose --out") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(f"{path} is being written by another process") from None
        try:
            self._open(header)
        except BaseException:
            self._lock.close()
            raise

    def _open(self, header: dict[str, Any]) -> None:
        sound = 0
        if (self.path / HEADER).exists():
            _check_same(_read_header(self.path), header)
            samples, self.torn, sound = _read_samples(self.path / SAMPLES)
            self.done = {sample_key(sample): sample for sample in samples}
        else:
            self._write_header(header)
        try:
            # Unbuffered: after a failed write nothing may be left that close() would repeat.
            self._file = (self.path / SAMPLES).open("ab", buffering=0)
            self._file.truncate(sound)
            self._file.seek(sound)
        except OSError as error:
            raise _writing_failed(self.path, error) from error
        self._sound = sound

    def _write_header(self, header: dict[str, Any]) -> None:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **header}, indent=2) + "\n"
        partial = self.path / f"{HEADER}.part"
        try:
            partial.write_text(text, "utf-8")
            partial.replace(self.path / HEADER)
        except OSError as error:
            raise _writing_failed(self.path, error) from error

    def append(self, sample: dict[str, Any]) -> None:
        """Add one finished sample; it survives whatever happens next."""
        line = json.dumps(sample, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            self._drop_partial_line()
            raise _writing_failed(self.path, error) from error
        self._sound += len(line)
        self.done[sample_key(sample)] = sample

    def _drop_partial_line(self) -> None:
        os.truncate(self.path / SAMPLES, self._sound)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        self._lock.close()
        if kind is KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; {len(self.done)} finished samples are kept in {self.path}, "
                "continue with --resume"
            ) from error


def _writing_failed(path: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DataError(
            f"disk full while writing to {path}; finished examples are kept, make room and "
            "continue with --resume"
        )
    return DataError(f"cannot write to {path}: {error.strerror}")


def _check_same(stored: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to mix two configurations in one run."""
    asked = json.loads(json.dumps(asked))
    differing = [
        f"{part}.{name}" if name else part
        for part in ("kind", "config", "model", "data", "methods")
        for name in _differing(stored.get(part), asked.get(part))
        if (part, name) not in VIEWS
    ]
    if differing:
        raise ConfigError(
            f"cannot resume: {', '.join(differing)} differs from the stored run; repeat its "
            "options or choose another --out"
        )


def _differing(stored: Any, asked: Any) -> list[str]:
    if isinstance(stored, dict) and isinstance(asked, dict):
        return [
            f"{name}.{inner}" if inner else name
            for name in sorted(stored.keys() | asked.keys())
            for inner in _differing(stored.get(name), asked.get(name))
        ]
    return [] if stored == asked else [""]
