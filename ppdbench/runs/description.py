"""`docs/records.md`, made of the types themselves: `python -m ppdbench.runs.description`."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from ppdbench.runs import records
from ppdbench.runs.records import KINDS, FailedSample, Record

PAGE = Path(__file__).parents[2] / "docs" / "records.md"
INTRODUCTION = """# What a run folder holds

Made of `ppdbench/runs/records.py` by `python -m ppdbench.runs.description`; change it there.

A run is a folder with `run.json`, one object that says what was run on what, and
`samples.jsonl`, one object in a line for each example and method (`samples-0.jsonl`,
`samples-1.jsonl`, ... where several processes shared the work). Both are checked when they are
read: a field that is missing, unknown, of another type or out of its limits is an error that
names the file, the line and the field.

Each line ends with `"checksum"`: the CRC-32 of the line as it would be without it (up to the
closing brace, without the line's end), in eight hexadecimal digits. `run.json` has one of its
content, keys sorted, as Python's `json.dumps(content, sort_keys=True)` writes it. Runs of earlier
versions have none and are read; commands say so. Whoever edits a file by hand takes the
checksum out.

Fields marked *optional* are left out where they have their default.
"""


def records_page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    yield "## Kinds of runs\n\n| kind | `run.json` | a line of `samples.jsonl` |\n|---|---|---|"
    for name, kind in KINDS.items():
        yield f"| `{name}` | {_link(kind.header)} | {_link(kind.sample)} |"
    yield f"\nA line whose verdict is `failed` is a {_link(FailedSample)}, in runs of any kind."
    for record in _shown():
        yield f"\n## {record.__name__}\n\n{_one_line(record.__doc__)}\n"
        yield "| field | type | |\n|---|---|---|"
        for field in msgspec.structs.fields(record):
            mark = "" if field.required else ", *optional*"
            told = _one_line(_sentences(record)[field.name])
            yield f"| `{field.name}` | {_type(record, field.name)}{mark} | {told} |"


def _shown() -> list[type[Record]]:
    """List the types of lines and headers, then the types that these hold, each once."""
    tops: list[type[Record]] = [kind.header for kind in KINDS.values()]
    tops += [kind.sample for kind in KINDS.values()] + [FailedSample]
    shown = list(dict.fromkeys(tops))
    for record in shown:  # which grows
        inner = (
            found
            for field in msgspec.structs.fields(record)
            for found in _records_in(field.type)
            if found not in shown
        )
        shown.extend(dict.fromkeys(inner))
    return shown


def _records_in(form: Any) -> Iterator[type[Record]]:
    if isinstance(form, type) and issubclass(form, Record):
        yield form
    for part in getattr(form, "__args__", ()):
        yield from _records_in(part)


def _link(record: type[Record]) -> str:
    return f"[{record.__name__}](#{record.__name__.lower()})"


def _type(record: type[Record], name: str) -> str:
    """The type as it is written in the source."""
    written = (
        _fields(record)[name][0]
        .replace(" | UnsetType", "")
        .replace(" | None", " or null")
        .replace("|", "or")
    )
    return f"`{written}`"


def _sentences(record: type[Record]) -> dict[str, str]:
    return {name: told for name, (_, told) in _fields(record).items()}


@cache
def _fields(record: type[Record]) -> dict[str, tuple[str, str]]:
    """The type and the sentence of each field, its own and those of what it is made of."""
    found: dict[str, tuple[str, str]] = {}
    for base in reversed(record.__mro__):
        found |= _written().get(base.__name__, {})
    return found


@cache
def _written() -> dict[str, dict[str, tuple[str, str]]]:
    """Read what the source says, by class and field."""
    classes = [n for n in ast.parse(inspect.getsource(records)).body if isinstance(n, ast.ClassDef)]
    return {made.name: dict(_of_class(made)) for made in classes}


def _of_class(made: ast.ClassDef) -> Iterator[tuple[str, tuple[str, str]]]:
    for field, told in zip(made.body, made.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            words = told.value if isinstance(told, ast.Expr) else None
            if isinstance(words, ast.Constant) and isinstance(words.value, str):
                yield field.target.id, (ast.unparse(field.annotation), words.value)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    PAGE.write_text(records_page(), "utf-8")
    sys.stderr.write(f"{PAGE}\n")
