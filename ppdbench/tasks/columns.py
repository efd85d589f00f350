"""Getting texts out of a row by dotted column paths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

from ppdbench.errors import DataError
from ppdbench.files.keys import kind
from ppdbench.tasks.spec import Columns, Task


class _Missing:
    """The sign that there is no such column (a column holding null is something else)."""


MISSING = _Missing()
MOST_NAMED = 12  # columns of a row that lacks one


def value_at(row: Mapping[str, object], path: str) -> object:
    """The value at `path`: `answers.text` in nested rows, or a column of that very name."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        head = ".".join(parts[:cut])
        if head in row:
            return _walk(row[head], parts[cut:])
    return MISSING


def _walk(value: object, parts: list[str]) -> object:
    for part in parts:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return MISSING
    return value


def find_first(row: Mapping[str, object], columns: Columns) -> tuple[str, object]:
    """The first of the alternatives that the row has, with its path."""
    for path in columns:
        if path is not None:
            value = value_at(row, path)
            if not isinstance(value, _Missing):
                return path, value
    return "", MISSING


def text_at(row: Mapping[str, object], columns: Columns, where: str) -> str:
    """The text in a column; missing, empty and anything else are refused."""
    path, value = find_first(row, columns)
    if isinstance(value, _Missing):
        if None in columns:
            return ""
        raise missing_column(row, columns, where)
    if isinstance(value, str) and not value and None in columns:
        return ""
    return _text(value, f"{where}: column {path!r}")


def texts_at(
    row: Mapping[str, object], columns: Columns, where: str, *, may_be_empty: bool = False
) -> tuple[str, ...]:
    """The texts in a column that holds one text or a list of them.

    With `may_be_empty`, empty texts stay in a list: their places mean something.
    """
    path, value = find_first(row, columns)
    if isinstance(value, _Missing):
        raise missing_column(row, columns, where)
    if not isinstance(value, list):
        only = f"{where}: column {path!r}"
        return () if may_be_empty and value == "" else (_text(value, only),)
    return tuple(
        "" if may_be_empty and item == "" else _text(item, f"{where}: column {path!r}, item {i}")
        for i, item in enumerate(value)
    )


def any_texts_at(row: Mapping[str, object], columns: Columns, where: str) -> tuple[str, ...]:
    """The texts in a column that may be absent or null, and whose lists may hold lists."""
    path, value = find_first(row, columns)
    if value is MISSING or value is None:
        return ()
    found = _flat(value) if isinstance(value, list) else value
    return texts_at({path: found}, (path,), where, may_be_empty=True)


def _flat(values: list[object]) -> list[object]:
    flat, left = list[object](), values[::-1]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left.extend(item[::-1])
        else:
            flat.append(item)
    return flat


def missing_column(row: Mapping[str, object], columns: Columns, where: str) -> DataError:
    """The complaint about a column that is not there."""
    wanted = " or ".join(repr(path) for path in columns if path is not None)
    there, more = [str(name) for name in row][:MOST_NAMED], len(row) - MOST_NAMED
    named = ", ".join(there) + (f" and {more} more" if more > 0 else "")
    return DataError(f"{where}: no column {wanted}; the row has: {named}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where} must be text that is not empty, not {kind(value)}")
    refuse_halves(value, where)
    return value


def refuse_halves(text: str, where: str) -> None:
    """Refuse what JSON can hold and UTF-8 cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where} holds half a surrogate pair at character {error.start}, which is no text"
        ) from error


def decode_cells(rows: Iterable[dict[str, object]], task: Task) -> Iterator[dict[str, object]]:
    """Parse the cells that a task has nested, of the rows of a CSV file, which are read twice.

    Only those: a text that happens to look like JSON must stay the text it is. References are
    lists in conversations, one per turn, and elsewhere if they are in all rows of the file.
    """
    columns = [*task.fields.values(), task.id, task.reference, task.turns]
    paths = {path for alternatives in columns for path in alternatives if path is not None}
    nested = {path.split(".")[0] for path in paths if "." in path} - paths
    plain = {path for path in (*task.reference, *task.turns) if path is not None}
    lists = {name for name in plain if task.turns or _holds_lists(rows, name)}
    for row in rows:
        found = {name: _decoded(row[name]) for name in row.keys() & (nested | lists)}
        yield row | {
            name: value
            for name, value in found.items()
            if _is_texts(value) or (name in nested and isinstance(value, list | dict))
        }


def _holds_lists(rows: Iterable[dict[str, object]], name: str) -> bool:
    return all(_is_texts(_decoded(row[name])) for row in rows if row.get(name))


def _is_texts(value: object) -> bool:
    """True for a list of texts, in lists or not."""
    return isinstance(value, list) and all(isinstance(item, str) for item in _flat(value))


def _decoded(cell: object) -> object:
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError):
        return cell
