"""What a training run has written of itself, checked on reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ppdbench.errors import ConfigError, DataError
from ppdbench.runs.validation import Unsound, convert, loads

# NaN and infinities among them: the norm of a step that a scaler skips.
Line = dict[str, float]


class _Counted(msgspec.Struct):
    """What every line of the log has besides its losses."""

    step: Annotated[int, Meta(ge=0)]
    tokens: Annotated[int, Meta(ge=0)]


def read_state(path: Path) -> dict[str, Any]:
    """What a run was told: the content of `training.json`."""
    try:
        return convert(loads(path.read_bytes()), dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{path.parent} holds no training run, so nothing to resume") from error
    except Unsound as error:
        raise ConfigError(
            f"{path} is damaged: {error}; restore it, or train anew with another --out"
        ) from error


def read_log(path: Path) -> list[Line]:
    """Losses by step; none where there is no log. A line that was cut off is left out."""
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}; move it away to go on") from error
    whole = [line for line in text.splitlines() if line.endswith("}")]
    return [_line(path, number, line) for number, line in enumerate(whole, 1)]


def _line(path: Path, number: int, text: str) -> Line:
    where = f"{path}, line {number}"
    try:
        found: Line = json.loads(text)
        convert(found, _Counted)
        convert(found, Line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON; move the file away to go on without it") from error
    except Unsound as error:
        raise DataError(f"{where}: {error}; move the file away to go on without it") from error
    return found
