"""Bytes of JSON to typed records, and what is wrong with them in words.

Lines and headers end with a checksum of what stands before it, so that damage which leaves
them readable is found. What earlier versions wrote has none and is read as it is.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")

CHECKSUM = "checksum"
_SEAL = re.compile(rb', "checksum": "([0-9a-f]{8})"\}(?:\r?\n)?\Z')
_SEAL_BYTES = len(b', "checksum": "01234567"}\r\n')  # as copies for other systems end their lines
_PLACE = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)
_NAMED = re.compile(r"Object (missing required field|contains unknown field) `(.*)`")


class Unsound(Exception):
    """Something stored that is wrong, and how."""


def sealed(line: bytes) -> bytes:
    """A JSON object in a line with a checksum behind its last field."""
    body = line.rstrip(b"\n")
    return b'%b, "checksum": "%08x"}\n' % (body[:-1], zlib.crc32(body))


def is_sealed(line: bytes) -> bool:
    """True if the line ends with a checksum, which need not fit."""
    return _SEAL.search(line, max(0, len(line) - _SEAL_BYTES)) is not None


def unsealed(line: bytes) -> bytes:
    """The line without its checksum, which must fit; one that has none stays as it is."""
    seal = _SEAL.search(line, max(0, len(line) - _SEAL_BYTES))
    if seal is None:
        return line
    body = line[: seal.start()] + b"}"
    if zlib.crc32(body) != int(seal[1], 16):
        raise Unsound("its checksum does not fit, so something in it was changed")
    return body


def seal_of(content: Mapping[str, Any]) -> str:
    """The checksum of an object that may be laid out in any way."""
    plain = {name: value for name, value in content.items() if name != CHECKSUM}
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def check_seal(content: Mapping[str, Any]) -> None:
    """Refuse an object whose checksum does not fit; one that has none is let through."""
    if CHECKSUM in content and content[CHECKSUM] != seal_of(content):
        raise Unsound(
            "its checksum does not fit, so something in it was changed (whoever changes it by hand "
            "takes the checksum out)"
        )


def from_json(content: bytes, form: type[T]) -> T:
    """JSON as a record of this type."""
    try:
        found: T = _decoders(form).decode(content)
        return found
    except msgspec.ValidationError as error:
        raise Unsound(_complaint(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Earlier versions wrote halves of surrogate pairs, which only the slow reader takes.
        return convert(loads(content), form)


def convert(content: Any, form: type[T]) -> T:
    """Plain data as a record of this type."""
    try:
        return msgspec.convert(content, form)
    except msgspec.ValidationError as error:
        raise Unsound(_complaint(error)) from error


def loads(content: bytes) -> Any:
    """JSON as plain data; NaN and infinities are none."""
    try:
        return json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Unsound("it is not JSON") from error


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


_decoders: Callable[[Any], msgspec.json.Decoder[Any]] = cache(msgspec.json.Decoder)


def _complaint(error: msgspec.ValidationError) -> str:
    """`config.limit: expected int, got str`, whatever msgspec says."""
    found = _PLACE.fullmatch(str(error))
    assert found is not None
    said, place = found[1].strip(), found[2] or ""
    if named := _NAMED.fullmatch(said):
        field = f"{place}.{named[2]}" if place else named[2]
        missing = named[1].startswith("missing")
        return f"{field} is missing" if missing else f"{field} is no field that is known here"
    said = said.replace("`", "")
    said = said[:1].lower() + said[1:]
    return f"{place}: {said}" if place else said
