"""What is no model in a GGUF file, or none that runs: one line each, before anything loads."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ppdbench.engine.gguf import source
from ppdbench.engine.gguf.file import read
from ppdbench.engine.loading import ModelSpec, check_there, load
from ppdbench.errors import PpdbenchError
from tests.families import stock_model
from tests.gguf_files import spoiled, write

Spoil = Callable[[Path], None]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that loads."""
    return write(tmp_path_factory.mktemp("good") / "m.gguf", stock_model("llama"))


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copy(good, tmp_path / "m.gguf"))


def refused(spec: ModelSpec, words: str, *, late: bool = False) -> None:
    """Expect one line with these words, when asked whether the model is there unless `late`."""
    with pytest.raises(PpdbenchError, match=words) as caught:
        load(spec) if late else check_there(spec)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


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
    ("changed", "words"),
    [
        ({"split.count": 3}, "is one of 3 parts; join them first: llama-gguf-split --merge"),
        ({"general.type": "adapter"}, "holds no whole model but a part of one: 'adapter'"),
        ({"block_count": None}, "llama.block_count is missing"),
        ({"block_count": 0}, "num_hidden_layers is 0; use a whole number from 1"),
        ({"embedding_length": 1 << 30}, "hidden_size is 1073741824; use a whole number"),
        ({"attention.head_count": [4, 2]}, "num_attention_heads is"),
        ({"attention.value_length": 4}, "keys and values of different widths"),
        ({"rope.dimension_count": 4}, "4 of 8 numbers of a head are rotated"),
        ({"rope.scaling.type": "yarn"}, "scaled by 'yarn' and by stored factors, or by nothing"),
        ({"logit_scale": 0.5}, "llama.logit_scale is 0.5, a setting that this version does not"),
        ({"expert_count": 8}, "llama.expert_count is 8, a setting"),
    ],
)
def test_a_model_that_would_be_another_is_refused(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama"), **changed)
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


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama"), **{"tokenizer.ggml.tokens": None})
    refused(ModelSpec(name=str(path)), "holds no tokenizer; fetch one that does", late=True)


# Which file


def test_a_folder_with_one_file_is_that_model(path: Path) -> None:
    assert load(ModelSpec(name=str(path.parent))).gguf == read(path)
    assert load(ModelSpec(name=str(path.parent), gguf=path.name)).gguf == read(path)


def test_a_folder_with_several_asks_which(path: Path) -> None:
    shutil.copy(path, path.with_name("n.gguf"))
    folder = path.parent
    refused(ModelSpec(name=str(folder)), "holds 2 GGUF files; give --gguf one of m.gguf, n.gguf")
    refused(ModelSpec(name=str(folder), gguf="o.gguf"), "no such file; it has m.gguf, n.gguf")
    assert load(ModelSpec(name=str(folder), gguf="n.gguf")).staged.n_layers == 4


@pytest.mark.parametrize(
    ("name", "gguf", "words"),
    [
        ("nowhere.gguf", None, "model file nowhere.gguf does not exist"),
        ("./nowhere", "m.gguf", "model folder ./nowhere does not exist"),
        ("nobody/nothing", "m.gguf", "'nobody/nothing' is not on this machine"),
    ],
)
def test_a_file_that_is_not_there_is_named(name: str, gguf: str | None, words: str) -> None:
    refused(ModelSpec(name=name, gguf=gguf, offline=True), words)


def test_a_file_needs_no_second_name(path: Path) -> None:
    refused(ModelSpec(name=str(path), gguf="n.gguf"), "is a file itself; leave --gguf out")


def test_code_cannot_come_with_a_file(path: Path) -> None:
    refused(ModelSpec(name=str(path), trust_remote_code=True), "a GGUF file holds no code")


def test_smollm2_says_how_it_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path))
    refused(ModelSpec(name="smollm2"), "is not on this machine .*; fetch it with `make smollm2`")


def test_smollm2_is_found_where_caches_are(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path / "cache"))
    source.smollm2().parent.mkdir(parents=True)
    shutil.copy(path, source.smollm2())
    assert load(ModelSpec(name="smollm2")).staged.n_layers == 4
    refused(ModelSpec(name="smollm2", gguf="m.gguf"), "is one file; leave --gguf out")
