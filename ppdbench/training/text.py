"""From text to blocks of tokens: read in a stream, packed without padding, found by number.

Documents are tokenized one after another, each followed by the end-of-sequence token, into
one long row of ids on disk. A block is a slice of it, and which blocks a step trains on
follows from the seed and the step alone: so a run resumes exactly, without reading anything
twice.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from filecmp import cmp
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError, DataError, one_line
from ppdbench.files.whole import replacing, write_whole
from ppdbench.training.marks import marked, plain_ids
from ppdbench.training.record import Stamp, read_stamp

SPLITS = ("blank-line", "file")
ANSWERS, EVERYTHING = LEARN = ("answers", "all")
PROMPT = "prompt_chars"  # of a line of .jsonl: how far its prompt goes
BATCH = 512  # documents tokenized at once
CHUNK = 1 << 24  # bytes of tokens that are checked at once
HUB = "hub:"
MARKED = np.dtype(np.int32)  # of ids some of which are not learned from


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec:
    """The source of text: files, folders of .txt and .jsonl, or hub:ID[:CONFIG[:SPLIT]].

    `split` says what a document is: a paragraph between blank lines, or a whole file. Lines
    of .jsonl are documents of their own, with the text in `column`. `learn`: from answers alone,
    where lines say how far their prompt goes, or from all.
    """

    sources: tuple[str, ...]
    split: str = "blank-line"
    column: str = "text"
    max_documents: int | None = None
    offline: bool = False
    learn: str = EVERYTHING

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("no text to train on; give --text a file, a folder or hub:ID")
        if self.split not in SPLITS:
            raise ConfigError(f"--split-by {self.split!r}: use {' or '.join(SPLITS)}")
        if self.learn not in LEARN:
            raise ConfigError(f"--learn-from {self.learn!r}: use {' or '.join(LEARN)}")
        if self.max_documents is not None and self.max_documents < 1:
            raise ConfigError(f"--max-documents {self.max_documents}: use 1 or more")


class Document(NamedTuple):
    """A text, the first characters of which may be a prompt."""

    text: str
    prompt: int = 0


def check_sources(spec: TextSpec) -> None:
    """Refuse text that is not there, before anything is loaded for it."""
    for source in spec.sources:
        if not source.startswith(HUB):
            _files(source)
        elif spec.offline:
            raise _off_limits(source)


def in_both(one: TextSpec, other: TextSpec) -> list[str]:
    """Text of the first that is in the second too: the same data set, or a file byte for byte."""
    hub = [s for s in one.sources if s.startswith(HUB) and s in other.sources]
    ours, theirs = map(_local, (one, other))
    return hub + [str(file) for file in ours if any(cmp(file, same, False) for same in theirs)]


def _local(spec: TextSpec) -> list[Path]:
    sources = [source for source in spec.sources if not source.startswith(HUB)]
    return [file for source in sources for file in _files(source)]


def documents(spec: TextSpec) -> Iterator[str]:
    """Yield the text of every document of every source, in a fixed order."""
    yield from (document.text for document in _documents(spec))


def _documents(spec: TextSpec) -> Iterator[Document]:
    count = 0
    for source in spec.sources:
        for document in _of_source(source, spec):
            if document.text.strip():
                if count == spec.max_documents:
                    return
                count += 1
                yield document


def _of_source(source: str, spec: TextSpec) -> Iterator[Document]:
    if source.startswith(HUB):
        yield from map(Document, _of_hub(source, spec))
        return
    for file in _files(source):
        yield from _of_file(file, spec)


def _files(source: str) -> list[Path]:
    if not source.strip():
        raise DataError("--text or --held-out is empty; give a file, a folder or hub:ID")
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"text {source} is neither a file nor a folder")
    files = sorted(p for p in path.iterdir() if p.suffix in (".txt", ".jsonl"))
    if not files:
        raise DataError(f"{path} holds no .txt or .jsonl file")
    return files


def _off_limits(source: str) -> DataError:
    return DataError(f"{source} needs the hub, which --offline forbids; give local files")


def _of_file(path: Path, spec: TextSpec) -> Iterator[Document]:
    try:
        with path.open(encoding="utf-8-sig") as lines:
            if path.suffix == ".jsonl":
                yield from _of_jsonl(path, lines, spec.column)
            elif spec.split == "file":
                yield Document(lines.read())
            else:
                yield from map(Document, _paragraphs(lines))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: byte {_bad_byte(path)} cannot be read") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _bad_byte(path: Path) -> int:
    """Find the byte where the file stops being UTF-8; a stream counts from its last chunk."""
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        if line.strip():
            held.append(line)
        elif held:
            yield "".join(held).rstrip("\n")
            held = []
    if held:
        yield "".join(held).rstrip("\n")


def _of_jsonl(path: Path, lines: Iterable[str], column: str) -> Iterator[Document]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {number} is not valid JSON") from error
        if not isinstance(row, dict) or not isinstance(row.get(column), str):
            found = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            raise DataError(f"{path} line {number} has no text in {column!r}; found: {found}")
        text, prompt = row[column], row.get(PROMPT, 0)
        if type(prompt) is not int or not 0 <= prompt <= len(text):
            raise DataError(f"{path} line {number}: {PROMPT} is {prompt!r}; use 0..{len(text)}")
        yield Document(text, prompt)


def _of_hub(source: str, spec: TextSpec) -> Iterator[str]:
    from datasets import load_dataset

    name, config, split, *_ = [*source.removeprefix(HUB).split(":"), "", "", ""]
    if spec.offline:
        raise _off_limits(source)
    try:
        rows = load_dataset(name, config or None, split=split or "train", streaming=True)
        for row in rows:
            if not isinstance(row.get(spec.column), str):
                raise DataError(f"{source} has no text in {spec.column!r}; found: {', '.join(row)}")
            yield row[spec.column]
    except (OSError, ValueError) as error:
        raise DataError(f"{source} cannot be read: {one_line(error)}") from error


class TokenBlocks:
    """Blocks of `length` tokens over a row of ids on disk, less those with nothing to learn."""

    def __init__(self, ids: npt.NDArray[Any], length: int, seed: int) -> None:
        if len(ids) < length:
            raise DataError(
                f"the text has {len(ids)} tokens, fewer than one block of {length}; give more "
                "text or a smaller --sequence"
            )
        self.ids = ids
        self.length = length
        self.seed = seed
        rows = ids[: len(ids) // length * length].reshape(-1, length)
        self._useful = np.flatnonzero((rows >= 0).any(1)) if ids.dtype == MARKED else None
        self.count = len(rows) if self._useful is None else len(self._useful)
        if not self.count:
            raise DataError("the text has prompts alone and no answers; use --learn-from all")
        self._held: tuple[int, npt.NDArray[np.int64]] | None = None  # an epoch and its order

    def batch(self, step: int, size: int) -> npt.NDArray[np.int64]:
        """The blocks [size, length] of a step: every block once per epoch, in seeded order."""
        first = step * size
        return np.stack([self._block(first + i) for i in range(size)])

    def _block(self, place: int) -> npt.NDArray[np.int64]:
        epoch, index = divmod(place, self.count)
        number = int(self._order(epoch)[index])
        start = (number if self._useful is None else int(self._useful[number])) * self.length
        return self.ids[start : start + self.length].astype(np.int64)

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        if self._held is None or self._held[0] != epoch:
            order = np.random.default_rng((self.seed, epoch)).permutation(self.count)
            self._held = (epoch, order)
        return self._held[1]


def tokenized(spec: TextSpec, tokenizer: Any, vocab_size: int, path: Path) -> npt.NDArray[Any]:
    """Return all tokens of the text, written to `path` once and mapped into memory from then on.

    Those that are not learned from are marked as such (see `marks`).
    """
    kind = np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    stamp = path.with_suffix(".json")
    made_of, found = _identity(spec, tokenizer, vocab_size), read_stamp(stamp)
    if found is None or _without_content(found) != made_of or not path.is_file():
        # First the stamp: tokens of another text must not be left with one.
        stamp.unlink(missing_ok=True)
        kind = _write_tokens(spec, tokenizer, path, kind)
        content = {"bytes": path.stat().st_size, "checksum": _checksum(path)}
        content["marked"] = kind == MARKED
        write_whole(stamp, json.dumps({**made_of, **content}))
    else:
        _check_tokens(path, stamp, found)
        kind = MARKED if found.marked else kind
    return np.memmap(path, dtype=kind, mode="r")


def _without_content(stamp: Stamp) -> dict[str, Any]:
    """Return what tokens were made of, as `_identity` tells it, without the content."""
    told = msgspec.structs.asdict(stamp)
    return {name: told[name] for name in told if name not in ("bytes", "checksum", "marked")}


def _check_tokens(path: Path, stamp: Path, told: Stamp) -> None:
    """Refuse tokens that are not those that were written."""
    size, again = path.stat().st_size, f"remove {stamp} to have it made anew"
    if size != told.bytes:
        raise DataError(f"{path} is damaged: it has {size} bytes, not {told.bytes}; {again}")
    if _checksum(path) != told.checksum:
        raise DataError(f"{path} is damaged: its checksum does not fit; {again}")


def _checksum(path: Path) -> str:
    found = 0
    with path.open("rb") as file:
        while part := file.read(CHUNK):
            found = zlib.crc32(part, found)
    return f"{found:08x}"


class _HasPrompts(Exception):
    """Says that a text has prompts, which its plain tokens could not be told from."""


def _write_tokens(spec: TextSpec, tokenizer: Any, path: Path, kind: np.dtype[Any]) -> np.dtype[Any]:
    """Write the tokens of a text, plain ones of this type if it has no prompts; their type."""
    made = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial, partial.open("wb") as out:
            try:
                for ids in _token_rows(_plain_documents(spec), tokenizer, mark=False):
                    out.write(np.asarray(ids, dtype=kind).tobytes())
            except _HasPrompts:  # its first document tells, as a rule
                kind = MARKED
                out.seek(0)
                out.truncate()
                for ids in _token_rows(_documents(spec), tokenizer, mark=True):
                    out.write(np.asarray(ids, dtype=kind).tobytes())
            if out.tell() == 0:
                raise DataError(f"the text holds no words: {', '.join(spec.sources)}")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from error
    except DataError:
        if made:
            path.parent.rmdir()
        raise
    return kind


def _plain_documents(spec: TextSpec) -> Iterator[Document]:
    """Yield the documents of a text until one has a prompt that is not to be learned from."""
    for document in _documents(spec):
        if document.prompt and spec.learn == ANSWERS:
            raise _HasPrompts
        yield document


def _token_rows(
    texts: Iterable[Document], tokenizer: Any, *, mark: bool
) -> Iterator[Sequence[int]]:
    """Yield the ids of each document, the end behind them; prompts marked if so asked.

    A prompt is tokenized by itself, as it is where its answer is decoded.
    """
    eos = tokenizer.eos_token_id
    ending = [] if eos is None else [eos]

    def ids(held: Sequence[str]) -> Iterable[list[int]]:
        # verbose=False: documents are cut into blocks, so their length is no concern.
        found: Iterable[list[int]] = tokenizer(held, add_special_tokens=False, verbose=False)[
            "input_ids"
        ]
        return found

    texts = iter(texts)
    while held := list(islice(texts, BATCH)):
        if not mark:
            yield from ([*row, *ending] for row in ids([document.text for document in held]))
            continue
        prompts = ids([document.text[: document.prompt] for document in held])
        answers = ids([document.text[document.prompt :] for document in held])
        for prompt, answer in zip(prompts, answers, strict=True):
            yield marked(prompt, [*answer, *ending])


def commonest(ids: npt.NDArray[Any], size: int, vocab: int) -> Tensor:
    """The tokens that occur most often in a text, in rising order.

    Those that are learned from come first; where these are too few, the others fill up.
    """
    if size > vocab:
        raise ConfigError(
            f"--draft-vocab {size}, but this model has {vocab} tokens; use 1..{vocab}, or 0"
        )
    everywhere = np.bincount(plain_ids(ids), minlength=vocab)
    learned = np.bincount(ids[ids >= 0], minlength=vocab)
    order = np.lexsort((-everywhere, -learned))  # stable: by id where both counts are the same
    return torch.from_numpy(order[:size].copy()).sort().values


def _identity(spec: TextSpec, tokenizer: Any, vocab_size: int) -> dict[str, Any]:
    """Identify what the tokens depend on; changed content is noticed by size and time."""
    files = []
    for source in spec.sources:
        path = Path(source).expanduser()
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file():
                status = file.stat()
                files.append((file.name, status.st_size, status.st_mtime_ns))
    return {
        "sources": list(spec.sources),
        "split": spec.split,
        "column": spec.column,
        "max_documents": spec.max_documents,
        "learn": spec.learn,
        "files": files,
        "vocab_size": vocab_size,
        "tokenizer": vocabulary_hash(tokenizer),
    }
