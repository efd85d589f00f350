"""JSON files that people keep: what is wrong with one is told in a line, none is torn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdbench.errors import ConfigError
from ppdbench.files.clean import clean
from ppdbench.files.keys import Keys, kind
from ppdbench.files.whole import write_whole


def read_json(path: Path, what: str, missing: str) -> Any:
    """The content of a file; `missing` says how to come by one. A key given twice is an error."""
    where = f"{what} {path}"
    try:
        # Some editors put a mark of the encoding before the text.
        return json.loads(path.read_text("utf-8-sig"), object_pairs_hook=_no_twins)
    except FileNotFoundError:
        raise ConfigError(f"{where} does not exist; {missing}") from None
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON that can be used: {error}") from error


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return made


def read_versioned(
    path: Path, what: str, missing: str, form: str, version: int, *, oldest: int | None = None
) -> Keys:
    """The keys of a file {format, version, ...} of our own, of this format and version.

    With `oldest` they may be of any version from that on.
    """
    versions = range(version if oldest is None else oldest, version + 1)
    content = read_json(path, what, missing)
    if not isinstance(content, dict):
        raise ConfigError(f"{what} {path} must be an object, not {kind(content)}")
    keys = Keys(content, f"{what} {path}")
    found = keys.text("format")
    if found != form:
        raise ConfigError(f"{path} is no {what}: its format is {found!r}, not {form!r}")
    if keys.number("version") not in versions:
        readable = " and ".join(map(str, versions))
        raise keys.error(f"version {content['version']}, but this ppdbench reads {readable}")
    return keys


def write_versioned(path: Path, form: str, version: int, content: Mapping[str, Any]) -> None:
    """Write what `read_versioned` reads: a line for each key, and for each object in a list."""
    everything = {"format": form, "version": version, **content}
    lines = [f"  {json.dumps(key)}: {_value(value)}" for key, value in everything.items()]
    write_whole(path, clean("{\n" + ",\n".join(lines) + "\n}\n", "json"))


def _value(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(f"    {json.dumps(item)}" for item in value) + "\n  ]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
