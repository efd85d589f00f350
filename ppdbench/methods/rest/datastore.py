"""A text that can be searched for what followed: tokens, and where every suffix sorts.

A folder with `datastore.json` (the header), `tokens.bin` (documents one after another, each
ended by the end-of-sequence token) and `suffixes.bin` (a suffix array, Manber and Myers 1993:
all positions, ordered by the tokens that stand there). Only the first `depth` tokens count for
the order, which bounds the work and is all that a lookup of so many tokens needs. Both rows
are mapped into memory, so opening a large text reads next to nothing.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError, DataError
from ppdbench.files.lock import writing_to
from ppdbench.files.whole import replacing, write_whole
from ppdbench.runs.workload import Report, silent
from ppdbench.training.text import TextSpec, tokenized

FORMAT, VERSION = "ppdbench-datastore", 1
HEADER, TOKENS, SUFFIXES = "datastore.json", "tokens.bin", "suffixes.bin"
DEPTH = 16
MOST_TOKENS = 2**31 - 1
SAMPLED = 4096  # values per file that the header's hash covers
KEY_BITS = 63

Ids = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DatastoreHeader:
    """The facts in `datastore.json` besides format and version."""

    tokenizer: str
    vocab_size: int
    eos: int | None
    tokens: int
    token_bytes: int
    depth: int
    sources: list[str]
    sample: str

    def __post_init__(self) -> None:
        for name in ("vocab_size", "tokens", "token_bytes", "depth"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}")
        if self.token_bytes not in (2, 4):
            raise ValueError(f"token_bytes is {self.token_bytes}")
        for name in ("tokenizer", "sample"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is {getattr(self, name)!r:.40}")
        if not isinstance(self.sources, list) or not all(isinstance(s, str) for s in self.sources):
            raise ValueError(f"sources is {self.sources!r:.40}")
        if self.eos is not None and type(self.eos) is not int:
            raise ValueError(f"eos is {self.eos!r}")


class Datastore:
    """Tokens [n] and the order of their suffixes [n], as files that are read where needed."""

    def __init__(self, header: DatastoreHeader, tokens: Ids, suffixes: Ids) -> None:
        self.header = header
        # Views: what a memmap hands out is slower, and it is asked for single values.
        self.tokens = tokens.view(np.ndarray)
        self.suffixes = suffixes.view(np.ndarray)

    def span(self, wanted: list[int]) -> range:
        """Find the places of the suffix array that begin with `wanted`; at most `depth` tokens."""
        n = len(wanted)

        def head(place: Any) -> list[int]:
            found: list[int] = self.tokens[int(place) : int(place) + n].tolist()
            return found

        first = bisect_left(self.suffixes, wanted, key=head)
        return range(first, bisect_right(self.suffixes, wanted, lo=first, key=head))

    def longest(self, tokens: Sequence[int], limit: int) -> tuple[int, range]:
        """Find how many of the last `limit` tokens occur together in the text, and the places."""
        tail = self._of_one_document(tokens[-limit:])
        known, above, found = 0, len(tail) + 1, range(0)
        # Where a suffix occurs every shorter one does too, so its length can be halved in on.
        while above - known > 1:
            n = (known + above) // 2
            span = self.span(tail[-n:])
            if span:
                known, found = n, span
            else:
                above = n
        return known, found

    def _of_one_document(self, tokens: Sequence[int]) -> list[int]:
        """Return what stands after the last end of a document."""
        tail = list(tokens)
        if self.header.eos in tail:
            tail = tail[len(tail) - tail[::-1].index(self.header.eos) :]
        return tail

    def positions(self, places: range, limit: int) -> npt.NDArray[np.int64]:
        """Return the suffixes' places in the text; of more than `limit` so many, evenly spread."""
        take = min(limit, len(places))
        picked = places.start + np.arange(take) * len(places) // max(take, 1)
        return self.suffixes[picked].astype(np.int64)

    def following(
        self, positions: npt.NDArray[np.int64], limit: int
    ) -> list[tuple[int, npt.NDArray[np.int64]]]:
        """The tokens at these positions, the `limit` most frequent, each with its positions."""
        inside = positions[positions < len(self.tokens)]
        found = self.tokens[inside]
        order = found.argsort(kind="stable")
        kinds, starts, counts = np.unique(found[order], return_index=True, return_counts=True)
        first = (-counts).argsort(kind="stable")[:limit]
        return [(int(kinds[i]), inside[order[starts[i] : starts[i] + counts[i]]]) for i in first]

    def check(self, tokenizer: Any, vocab_size: int, folder: Path) -> None:
        """Refuse a model whose token ids mean something else."""
        for name, ours in (("tokenizer", vocabulary_hash(tokenizer)), ("vocab_size", vocab_size)):
            theirs = getattr(self.header, name)
            if theirs != ours:
                raise ConfigError(
                    f"the datastore {folder} was built with another tokenizer: its {name} is "
                    f"{theirs}, this model's is {ours}; build one with this --model"
                )


# Reading


def load_datastore(folder: Path) -> Datastore:
    """The datastore in `folder`; its files must be whole and belong together."""
    header = _header(folder)
    tokens = _mapped(folder / TOKENS, np.dtype(f"u{header.token_bytes}"), header.tokens)
    suffixes = _mapped(folder / SUFFIXES, np.dtype(np.uint32), header.tokens)
    if _sample(tokens, suffixes) != header.sample:
        raise ConfigError(
            f"{folder}: {TOKENS} or {SUFFIXES} is not the one that {HEADER} describes; build the "
            "datastore again"
        )
    return Datastore(header, tokens, suffixes)


def _header(folder: Path) -> DatastoreHeader:
    path = folder / HEADER
    try:
        values = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{folder} holds no datastore: {HEADER} cannot be read; give a folder that "
            "`ppdbench datastore` wrote"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid JSON; build the datastore again") from error
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise ConfigError(f"{path} does not describe a datastore")
    if values.get("version") != VERSION:
        raise ConfigError(
            f"{path} has version {values.get('version')}, this ppdbench reads {VERSION}; build "
            "the datastore again"
        )
    try:
        return DatastoreHeader(
            **{field.name: values[field.name] for field in fields(DatastoreHeader)}
        )
    except KeyError as error:
        raise ConfigError(f"{path} lacks {error}; build the datastore again") from error
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; build the datastore again") from error


def _mapped(path: Path, kind: np.dtype[Any], n: int) -> Ids:
    try:
        found = path.stat().st_size
        if found != n * kind.itemsize:
            raise ConfigError(
                f"{path} has {found} bytes, its header asks for {n * kind.itemsize}; build the "
                "datastore again"
            )
        return np.memmap(path, dtype=kind, mode="r")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _sample(*rows: Ids) -> str:
    """A hash over evenly spaced values, which notices a file from elsewhere in no time."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row[:: -(-len(row) // SAMPLED)].tobytes())
    return digest.hexdigest()[:16]


# Building


def build_datastore(
    text: TextSpec,
    tokenizer: Any,
    vocab_size: int,
    folder: Path,
    *,
    depth: int = DEPTH,
    report: Report = silent,
) -> Datastore:
    """Tokenize a text, order its suffixes and write both to `folder`, the header last."""
    if depth < 1:
        raise ConfigError(f"--depth {depth}: use 1 or more")
    with _claimed(folder):
        report("tokenizing", 0, None)
        tokens = tokenized(text, tokenizer, vocab_size, folder / TOKENS)
        _check_tokens(tokens, vocab_size)
    suffixes = suffix_array(tokens, depth, report)
    header = DatastoreHeader(
        tokenizer=vocabulary_hash(tokenizer),
        vocab_size=vocab_size,
        eos=tokenizer.eos_token_id,
        tokens=len(tokens),
        token_bytes=tokens.dtype.itemsize,
        depth=depth,
        sources=list(text.sources),
        sample=_sample(tokens, suffixes),
    )
    said = {"format": FORMAT, "version": VERSION, **asdict(header)}
    with writing_to(folder):
        with replacing(folder / SUFFIXES) as partial:
            partial.write_bytes(suffixes.tobytes())
        write_whole(folder / HEADER, json.dumps(said, indent=2) + "\n")
    return Datastore(header, tokens, suffixes)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The folder for a datastore; where nothing could be written to it, it is not left behind."""
    with writing_to(folder):
        if (folder / HEADER).exists():
            raise ConfigError(f"{folder} holds a datastore already; give --out another folder")
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # what it holds already is the user's, or serves the next try
            folder.rmdir()
        raise


def _check_tokens(tokens: Ids, vocab_size: int) -> None:
    if len(tokens) > MOST_TOKENS:
        raise DataError(
            f"the text has {len(tokens)} tokens; a datastore holds {MOST_TOKENS}, so use "
            "--max-documents"
        )
    largest = int(tokens.max())
    if largest >= vocab_size:
        raise DataError(
            f"the text has a token {largest} that the model, with a vocabulary of {vocab_size}, "
            "cannot write"
        )


def suffix_array(tokens: Ids, depth: int, report: Report = silent) -> npt.NDArray[np.uint32]:
    """Sort all positions by `depth` tokens or more from there on, then by position.

    Prefix doubling: the first sort packs as many tokens as fit into a number, each further
    one joins the ranks of two halves. About 40 bytes of memory per token.
    """
    n = len(tokens)
    bits = (int(tokens.max()) + 1).bit_length()  # 0 stands for the end of the text
    width = min(depth, KEY_BITS // bits)
    keys = np.zeros(n, np.int64)
    for ahead in range(min(width, n)):
        keys[: n - ahead] |= (tokens[ahead:].astype(np.int64) + 1) << bits * (width - 1 - ahead)
    while True:
        report("sorting", width, max(width, depth))
        order = keys.argsort(kind="stable")
        if width >= depth:
            break
        ranks = _ranks(keys, order)
        np.multiply(ranks, n + 1, out=keys)
        keys[: max(0, n - width)] += ranks[width:]
        width *= 2
    return order.astype(np.uint32)


def _ranks(keys: npt.NDArray[np.int64], order: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """From 1, the same for equal keys."""
    ordered = keys[order]
    steps = np.ones(len(keys), np.int64)
    steps[1:] = ordered[1:] != ordered[:-1]
    ranks = ordered
    ranks[order] = steps.cumsum(out=steps)
    return ranks
