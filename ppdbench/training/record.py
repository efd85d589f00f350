"""The records that a training run writes of itself, checked on reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from ppdbench.errors import ConfigError, DataError
from ppdbench.runs.validation import Unsound, convert, loads

T = TypeVar("T")

Share = Annotated[float, Meta(ge=0, le=1)]

# NaN and infinities among them: the norm of a step that a scaler skips.
Line = dict[str, float]


class Exit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The quality of one exit on held-out text: a line of `quality.json`."""

    layer: Annotated[int, Meta(ge=1)]
    head: Literal["N", "Y"] = "N"
    loss: Annotated[float, Meta(ge=0)] | None = None
    perplexity: Annotated[float, Meta(ge=1)]
    accuracy: Share
    top1: Share | None = None
    top3: Share | None = None


class Shipped(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The quality of the models that travel with the package, and of one that does not."""

    reference: list[Exit]
    twin: list[Exit]
    heads: list[Exit]
    draft: list[Exit]


class Stamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stamp of a row of tokens on disk: what it was made of, and what has to lie there."""

    sources: list[str]
    split: str
    column: str
    max_documents: int | None
    learn: Literal["answers", "all"] = "all"
    files: list[tuple[str, int, int]]  # name, bytes, when it was changed
    vocab_size: int
    tokenizer: str
    bytes: Annotated[int, Meta(ge=1)]
    checksum: Annotated[str, Meta(pattern="^[0-9a-f]{8}$")]
    marked: bool = False


class _Counted(msgspec.Struct):
    """The fields of every line of the log besides its losses."""

    step: Annotated[int, Meta(ge=0)]
    tokens: Annotated[int, Meta(ge=0)]


def read_state(path: Path) -> dict[str, Any]:
    """Read the options of a training run: the content of `training.json`."""
    try:
        return convert(loads(path.read_bytes()), dict[str, Any])
    except OSError as error:
        raise ConfigError(f"{path.parent} holds no training run, so nothing to resume") from error
    except Unsound as error:
        raise ConfigError(
            f"{path} is damaged: {error}; restore it, or train anew with another --out"
        ) from error


def read_quality(path: Path, form: type[T]) -> T:
    """Read the quality measured after a training: the content of `quality.json`."""
    try:
        return convert(loads(path.read_bytes()), form)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except Unsound as error:
        raise DataError(
            f"{path} is damaged: {error}; move it away to go on without what was measured"
        ) from error


def read_stamp(path: Path) -> Stamp | None:
    """Read what the tokens beside this file were made of, if it says so."""
    try:
        return convert(loads(path.read_bytes()), Stamp)
    except (OSError, Unsound):
        return None  # then they are made anew


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
