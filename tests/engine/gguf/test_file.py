"""GGUF files that are damaged: one line each, before anything loads."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ppdbench.engine.loading import ModelSpec
from tests.engine.gguf.made import refused
from tests.families import stock_model
from tests.gguf_files import spoiled, write

Spoil = Callable[[Path], None]


def cut(to: int) -> Spoil:
    """Keep the first bytes, or leave out the last."""
    return lambda path: os.truncate(path, to if to > 0 else path.stat().st_size + to)


def at(place: int, content: bytes) -> Spoil:
    """Overwrite a place."""
    return lambda path: spoiled(path, place, content)


def in_place_of(old: bytes, new: bytes) -> Spoil:
    """Put other bytes in place of the first of these."""
    return lambda path: at(path.read_bytes().index(old), new)(path)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (cut(3), "m.gguf is no GGUF file: it does not begin with GGUF"),
        (at(0, b"GGML"), "m.gguf is no GGUF file"),
        (at(4, struct.pack("<I", 1)), "is a GGUF file version 1; supported"),
        (at(4, struct.pack(">I", 3)), "is a GGUF file in big-endian order; supported"),
        (cut(20), "is cut off or damaged: its header goes on at byte 24"),
        (cut(2000), "is cut off or damaged"),
        (cut(-1), r"is cut off or damaged: tensor .* ends at byte \d+, the file at \d+; fetch"),
        (
            at(8, struct.pack("<Q", 1 << 60)),
            "is cut off or damaged: it promises 1152921504606846976",
        ),
        (at(16, struct.pack("<Q", 1 << 62)), "is cut off or damaged: it promises"),
        (at(24, struct.pack("<Q", 1 << 40)), "is cut off or damaged: its header goes on"),
        (at(32, b"\xff\xfe"), "is cut off or damaged: the text at byte 32 is not UTF-8"),
        (in_place_of(b"llama", b"lamma"), "GGUF files of 'lamma' are not read; supported: llama"),
        (in_place_of(b"block_count", b"block_xount"), "is 4, a setting that this version does not"),
        (in_place_of(b"token_embd.weight", b"token_embd.weighs"), "lacks the tensor token_embd"),
    ],
)
def test_a_damaged_file_is_one_line(path: Path, spoil: Spoil, words: str) -> None:
    spoil(path)
    refused(ModelSpec(name=str(path)), words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"blk.0.attn_q.weight", b"blk.0.attn_z.weight", "lacks 1 tensors, first blk.0.attn_q"),
        (b"blk.0.attn_q.weight", b"blk.9.attn_q.weight", "lacks 1 tensors, first blk.0.attn_q"),
    ],
)
def test_a_missing_tensor_is_named(path: Path, old: bytes, new: bytes, words: str) -> None:
    in_place_of(old, new)(path)
    refused(ModelSpec(name=str(path)), words, late=True)


def test_a_tensor_too_many_is_not_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama"), block_count=3)
    refused(ModelSpec(name=str(path)), "holds 9 tensors that a llama model has no place", late=True)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama"), feed_forward_length=40)
    refused(ModelSpec(name=str(path)), r"blk.0.ffn_gate.weight has shape \(48, 32\)", late=True)


def test_a_type_that_cannot_be_dequantised_is_refused(path: Path) -> None:
    name = b"blk.0.attn_q.weight"
    where = path.read_bytes().index(name) + len(name) + 4 + 2 * 8
    spoiled(path, where, struct.pack("<I", 77))
    refused(ModelSpec(name=str(path)), "attn_q.weight is of type 77, .*; supported: F32, F16, Q4_0")
