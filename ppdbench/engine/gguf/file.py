"""A GGUF file from outside: what it says of itself, and where each of its tensors lies.

The header alone is read, within the bounds of the file: a damaged one ends in one line, never in
a search through what is not there. The `gguf` package knows the types of tensors; its own reader
takes seconds for the words of a tokenizer.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from pathlib import Path
from typing import Any, overload

from ppdbench.errors import ConfigError, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Types of values in the header, as the format numbers them: what struct calls those of one size.
FIXED = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
MOST_SIZES = 8  # dimensions of a tensor that are believed
DTYPES = {0: "float32", 1: "float16", 30: "bfloat16"}  # types of plain numbers
SAMPLED = 4096  # bytes of a tensor that its fingerprint is made of


class StoredTexts(Sequence[str]):
    """Texts in one piece of memory: a tokenizer has a hundred thousand."""

    def __init__(self, texts: Iterable[str]) -> None:
        content, self._ends = bytearray(), array("Q", [0])
        for text in texts:
            content += text.encode()
            self._ends.append(len(content))
        self._content = bytes(content)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...

    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        place = range(len(self))[at]
        return self._content[self._ends[place] : self._ends[place + 1]].decode()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file: its shape as torch has it, its type, and the bytes it lies in."""

    name: str
    shape: tuple[int, ...]
    type: int
    start: int
    n_bytes: int

    @property
    def size(self) -> int:
        """The number of its numbers."""
        return prod(self.shape)

    @property
    def type_name(self) -> str:
        """The name of its type, such as Q4_1."""
        return type_name(self.type)


@dataclass(frozen=True)
class GgufFile:
    """The header of a file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """The family, as llama.cpp calls it."""
        return str(self.metadata["general.architecture"])

    def setting(self, name: str, default: Any = None) -> Any:
        """Return what the file says of its architecture under `name`."""
        return self.metadata.get(f"{self.architecture}.{name}", default)

    @cached_property
    def weights_by_type(self) -> dict[str, int]:
        """The number of weights of each type, most first."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            counts[tensor.type_name] += tensor.size
        return dict(counts.most_common())

    @property
    def dtype(self) -> str:
        """The type of matrices that are not quantised, as torch calls it; of others float32."""
        kinds = {tensor.type for tensor in self.tensors.values() if len(tensor.shape) > 1}
        return DTYPES.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"

    @cached_property
    def quantization(self) -> str:
        """The types of the layers' matrices, most weights first: `Q4_1`, or `Q4_K + Q6_K`."""
        counts: Counter[str] = Counter()
        for tensor in self.tensors.values():
            if len(tensor.shape) > 1 and tensor.name.startswith("blk."):
                counts[tensor.type_name] += tensor.size
        return " + ".join(name for name, _ in counts.most_common()) or next(
            iter(self.weights_by_type), "no weights"
        )

    @cached_property
    def fingerprint(self) -> str:
        """A hash over every tensor's name, shape, type and up to 4,096 evenly spaced bytes.

        It is the file's, whatever type the weights are dequantised into.
        """
        import numpy as np

        digest = hashlib.sha256()
        content = np.memmap(self.path, np.uint8, "r")
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.shape} {tensor.type_name}".encode())
            n = min(SAMPLED, tensor.n_bytes)
            places = tensor.start + np.arange(n) * tensor.n_bytes // n
            digest.update(content[places].tobytes())
        return digest.hexdigest()[:16]


def type_name(number: int) -> str:
    """The name of a type of tensors."""
    from gguf import GGMLQuantizationType

    return str(GGMLQuantizationType(number).name)


def read(path: Path) -> GgufFile:
    """The header of a file, once for as long as the file stays as it is."""
    try:
        about = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, changed: int, size: int) -> GgufFile:
    del changed  # a file that changed is read anew
    with path.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise ConfigError(
                f"{path} is no GGUF file: it does not begin with GGUF; fetch it again"
            )
        try:
            with _mapped(stream.fileno()) as content:
                file = _Header(path, content, size).file()
        except _NotThere as error:
            raise ConfigError(f"{path} is cut off or damaged: {error}; fetch it again") from error
    _check(file)
    return file


def _check(file: GgufFile) -> None:
    parts = file.metadata.get("split.count", 0)
    if parts > 1:
        raise ConfigError(
            f"{file.path} is one of {parts} parts; join them first: llama-gguf-split --merge "
            "FIRST-PART WHOLE.gguf"
        )
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"{file.path} holds no whole model but a part of one: {kind!r}")


class _NotThere(Exception):
    """The header promises something that is not in the file."""


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


class _Header:
    """A reader that moves through the header and never beyond the file."""

    def __init__(self, path: Path, content: mmap.mmap, size: int) -> None:
        self._path, self._content, self._size, self._at = path, content, size, len(MAGIC)

    def file(self) -> GgufFile:
        """Read all of the header."""
        version = self._number("I")
        if version not in VERSIONS:
            turned = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            why = "in big-endian order" if turned else f"version {version}"
            raise UnsupportedModel(
                f"{self._path} is a GGUF file {why}; supported: little-endian, version 2 and 3"
            )
        n_tensors, n_values = self._number("Q"), self._number("Q")
        metadata = dict(self._entry() for _ in range(self._count(n_values, 12, "values")))
        if not isinstance(metadata.get("general.architecture"), str):
            raise _NotThere("general.architecture is missing")
        infos = [self._tensor() for _ in range(self._count(n_tensors, 24, "tensors"))]
        aligned = metadata.get("general.alignment", 32)
        if type(aligned) is not int or not 1 <= aligned <= 1 << 20:
            raise _NotThere(f"general.alignment is {aligned!r}")
        first = -(-self._at // aligned) * aligned
        tensors = {info[0]: self._placed(*info, first) for info in infos}
        if len(tensors) < n_tensors:
            raise _NotThere("two tensors have one name")
        return GgufFile(self._path, metadata, tensors)

    def _take(self, size: int) -> int:
        """Move on by `size` bytes; return where they start."""
        start = self._at
        if size > self._size - start:
            raise _NotThere(f"its header goes on at byte {start + size}, it ends at {self._size}")
        self._at += size
        return start

    def _number(self, kind: str) -> Any:
        size = struct.calcsize(f"<{kind}")
        return struct.unpack_from(f"<{kind}", self._content, self._take(size))[0]

    def _count(self, n: int, least: int, what: str) -> int:
        """Refuse a number of things that take at least `least` bytes each if there is no room."""
        if n * least > self._size - self._at:
            raise _NotThere(f"it promises {n} {what} and has {self._size} bytes")
        return n

    def _text(self) -> str:
        size = self._number("Q")
        start = self._take(size)
        try:
            return self._content[start : start + size].decode("utf-8")
        except UnicodeDecodeError:
            raise _NotThere(f"the text at byte {start} is not UTF-8") from None

    def _entry(self) -> tuple[str, Any]:
        return self._text(), self._value(self._number("I"))

    def _value(self, kind: int) -> Any:
        if kind in FIXED:
            return self._number(FIXED[kind])
        if kind == TEXT:
            return self._text()
        if kind != ARRAY:
            raise _NotThere(f"a value of unknown type {kind}")
        inner, n = self._number("I"), self._number("Q")
        if inner in FIXED:
            size = struct.calcsize(f"<{FIXED[inner]}")
            start = self._take(self._count(n, size, "values") * size)
            return struct.unpack_from(f"<{n}{FIXED[inner]}", self._content, start)
        if inner != TEXT:
            raise _NotThere(f"a list of unknown type {inner}")
        return StoredTexts(self._text() for _ in range(self._count(n, 8, "texts")))

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, n_sizes = self._text(), self._number("I")
        if not 1 <= n_sizes <= MOST_SIZES:
            raise _NotThere(f"tensor {name[:60]} has {n_sizes} dimensions")
        sizes = tuple(self._number("Q") for _ in range(n_sizes))
        kind, offset = self._number("I"), self._number("Q")
        return name, sizes[::-1], kind, offset  # the fastest moving one comes last in torch

    def _placed(
        self, name: str, shape: tuple[int, ...], kind: int, offset: int, first: int
    ) -> StoredTensor:
        n_bytes = prod(shape[:-1]) * _row_bytes(self._path, name, kind, shape[-1])
        if n_bytes < 1 or first + offset + n_bytes > self._size:
            raise _NotThere(
                f"tensor {name[:60]} ends at byte {first + offset + n_bytes}, the file at "
                f"{self._size}"
            )
        return StoredTensor(name, shape, kind, first + offset, n_bytes)


def _row_bytes(path: Path, name: str, kind: int, width: int) -> int:
    """The bytes of a row of `width` numbers; types that cannot be dequantised are refused."""
    known = _readable_types()
    if kind not in known:
        raise UnsupportedModel(
            f"{path}: tensor {name[:60]} is of type {kind}, which cannot be dequantised; "
            f"supported: {', '.join(known[number][0] for number in known)}"
        )
    of_type, numbers, n_bytes = known[kind]
    if width % numbers:
        raise _NotThere(f"rows of {name[:60]} have {width} numbers, {of_type} packs {numbers}")
    return width // numbers * n_bytes


@lru_cache(maxsize=1)
def _readable_types() -> dict[int, tuple[str, int, int]]:
    """Name, numbers and bytes of a block of each type that `gguf` dequantises."""
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    found = {}
    for kind in GGMLQuantizationType:
        numbers, n_bytes = GGML_QUANT_SIZES[kind]
        try:
            dequantize(np.zeros((1, n_bytes), np.uint8), kind)
        except NotImplementedError:
            continue
        found[int(kind)] = (str(kind.name), numbers, n_bytes)
    return found
