"""Tokenizers from GGUF files, beside those that transformers makes from the same file."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from ppdbench.engine.loading import ModelSpec, load, load_words
from tests.families import stock_model
from tests.gguf_files import END, TEMPLATE, TURN_END, write

TEXTS = (
    *(
        "hello world",
        " hello  world ",
        "he\n\nll\to",
        "",
        "1234 5.6",
        "wHrite, a!?",
        "é",
        "你好 🙂",
    ),
    *("<|im_start|>hello<|im_end|>\n", "<s>he</s>", "a<|endoftext|>b", "<unused40>", "\r\n\r\n x"),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model's file."""
    return write(tmp_path_factory.mktemp("words") / "m.gguf", stock_model("llama"))


def test_ids_and_texts_are_those_of_transformers(path: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ours, vocab = load_words(ModelSpec(name=str(path)))
    assert vocab == 96
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.special_tokens_map == theirs.special_tokens_map
    for text in TEXTS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
    assert len(ours.encode("hello world")) > 3


def test_the_chat_template_is_the_files(path: Path) -> None:
    ours, _ = load_words(ModelSpec(name=str(path)))
    assert ours.chat_template == TEMPLATE
    said = ours.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False)
    assert said == "<|im_start|>user\nhe<|im_end|>\n"


def test_a_tokenizer_beside_the_file_is_not_taken_for_its_own(path: Path, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(path.read_bytes())
    other, _ = load_words(ModelSpec(name="reference"))
    other.save_pretrained(tmp_path)
    ours, vocab = load_words(ModelSpec(name=str(tmp_path / "m.gguf")))
    assert (vocab, ours.decode([3])) == (96, "<|im_start|>")


def test_every_end_token_of_the_file_ends_an_output(path: Path, tmp_path: Path) -> None:
    assert load(ModelSpec(name=str(path))).eos_ids == {END, TURN_END}
    more = {"tokenizer.ggml.eot_token_id": 3, "tokenizer.ggml.eom_token_id": 5}
    other = write(tmp_path / "m.gguf", stock_model("llama"), **more)
    assert load(ModelSpec(name=str(other))).eos_ids == {END, 3, TURN_END, 5}
    plain = {"tokenizer.chat_template": None}
    other = write(tmp_path / "p.gguf", stock_model("llama"), **plain)
    assert load(ModelSpec(name=str(other))).eos_ids == {END}
