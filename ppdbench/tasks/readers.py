"""Local data files in, one dict per row out; every complaint names file, line and cause."""

from __future__ import annotations

import codecs
import csv
import importlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.keys import kind

Columns = dict[str, object]


def read_rows(path: Path) -> Iterator[Columns]:
    """The file's rows, read only as far as they are asked for where the format allows."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown kind of data file; use {', '.join(READERS)}")
    try:
        empty = True
        for columns in reader(path):
            empty = False
            yield columns
    except FileNotFoundError:
        raise DataError(f"data file {path} does not exist") from None
    except OSError as error:
        raise DataError(f"data file {path} cannot be read: {error.strerror or error}") from error
    if empty:
        raise DataError(f"{path} holds no rows; give a file with at least one")


def _jsonl(path: Path) -> Iterator[Columns]:
    start = 0
    # Bytes, because text mode would also split at \r and lose the byte offsets.
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            # Only a file's very first bytes can be a byte order mark.
            line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
            if line.strip():
                text = _utf8(line, path, start + len(raw) - len(line))
                ends = not raw.endswith(b"\n")  # only there a file can be cut off
                yield _object(_json(text.rstrip(), path, number, ends), f"{path}, line {number}")
            start += len(raw)


def _json(text: str, path: Path, line: int, ends: bool = True) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {line + error.lineno - 1}"
        cut = ends and (error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"))
        hint = "; the file seems to be cut off there" if cut else ""
        raise DataError(
            f"{where}: not valid JSON at column {error.colno}: {error.msg}{hint}"
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep; a number of 5000 digits
        raise DataError(f"{path}, line {line}: not JSON this program can read: {error}") from error


def _json_array(path: Path) -> Iterator[Columns]:
    text = _utf8(path.read_bytes().removeprefix(codecs.BOM_UTF8), path)
    if not text.strip():
        return
    rows = _json(text, path, 1)
    if not isinstance(rows, list):
        raise DataError(f"{path}: a .json data file is one list of objects, not {kind(rows)}")
    for number, row in enumerate(rows):
        yield _object(row, f"{path}, item {number}")


def _csv(path: Path) -> Iterator[Columns]:
    text = _utf8(path.read_bytes().removeprefix(codecs.BOM_UTF8), path)
    # The csv module's 128 KiB limit is global; articles can be longer than that.
    before = csv.field_size_limit(len(text) + 1)
    try:
        yield from list(_csv_rows(text, path))
    finally:
        csv.field_size_limit(before)


def _csv_rows(text: str, path: Path) -> Iterator[Columns]:
    # strict: an unclosed quote is an error instead of one huge last cell.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            if not cells:
                continue
            if not header:
                header = _csv_header(cells, path)
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells, "
                    f"but the header names {len(header)}"
                )
            yield dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from error


def _csv_header(cells: list[str], path: Path) -> list[str]:
    twice = sorted({name for name in cells if cells.count(name) > 1})
    if twice or "" in cells:
        what = f"names {twice[0]!r} twice" if twice and twice[0] else "has a column without a name"
        raise DataError(f"{path}, line 1: the header {what}")
    return cells


def _parquet(path: Path) -> Iterator[Columns]:
    # Comes with `datasets`; imported here because it takes a tenth of a second.
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: not a readable Parquet file: {reason}") from error


READERS: dict[str, Callable[[Path], Iterator[Columns]]] = {
    ".jsonl": _jsonl,
    ".json": _json_array,
    ".csv": _csv,
    ".parquet": _parquet,
}


def _utf8(raw: bytes, path: Path, start: int = 0) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 at byte {start + error.start} ({error.reason}); save it as UTF-8"
        ) from error


def _object(value: object, where: str) -> Columns:
    if not isinstance(value, dict):
        raise DataError(f"{where}: a row is an object with columns, not {kind(value)}")
    return value
