"""Text is cut as a file's name for it asks, held against tokenizers of transformers that do so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import CohereTokenizer, GPT2Tokenizer

from ppdbench.engine.gguf import source
from ppdbench.engine.gguf.file import read
from ppdbench.engine.loading import ModelSpec, load_words
from ppdbench.errors import PpdbenchWarning
from tests.families import stock_model
from tests.gguf_files import write

TEXT = "In 2024,  it's 1234.50:\n\n12 eggs"
PRE = "tokenizer.ggml.pre"
Written = Callable[..., Any]


@pytest.fixture
def written(good: Path, tmp_path: Path) -> Written:
    """Loads the tokenizer of a file that knows `12` by a merge and `hel` by none."""
    words = list(read(good).metadata["tokenizer.ggml.tokens"])
    words[90:92] = "12", "hel"
    kinds = [*read(good).metadata["tokenizer.ggml.token_type"]]
    kinds[90:92] = 1, 1
    own = {
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["h e", "1 2"],
    }

    def made(pre: str | None, **changed: Any) -> Any:
        path = write(tmp_path / "m.gguf", stock_model("llama"), **own, **{PRE: pre}, **changed)
        return load_words(ModelSpec(name=str(path)))[0]

    return made


def pieces(tokenizer: Any, text: str = TEXT) -> list[str]:
    """The pieces that nothing is merged across."""
    cut = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [piece.replace("Ġ", " ").replace("Ċ", "\n") for piece, _ in cut]


@pytest.mark.parametrize(
    ("pre", "theirs"),
    [
        ("smollm", CohereTokenizer(vocab={"<UNK>": 0}, merges=[])),
        ("gpt-2", GPT2Tokenizer(vocab={"a": 0}, merges=[])),
    ],
)
def test_pieces_are_those_of_tokenizers_of_that_kind(
    written: Written, pre: str, theirs: Any
) -> None:
    assert pieces(written(pre)) == pieces(theirs)


@pytest.mark.parametrize(
    ("pre", "cut"),
    [
        ("refact", "In| |2|0|2|4|,| | it|'s| |1|2|3|4|.|5|0|:|\n\n|1|2| eggs"),
        ("falcon", "In| |202|4|,| | it|'|s| |123|4|.|50|:|\n|\n|12| eggs"),
        ("bloom", "In| 2024|, | it's| 1234|.|50:|\n\n|12| eggs"),
        ("viking", "In| |2|0|2|4|, | it's| |1|2|3|4|.|5|0|:|\n\n|1|2| eggs"),
        ("deepseek-coder", "In| |2|0|2|4|,| | it|'|s| |1|2|3|4|.|5|0|:|\n|\n|1|2| eggs"),
        ("qwen2", "In| |2|0|2|4|,| | it|'s| |1|2|3|4|.|5|0|:\n\n|1|2| eggs"),
        ("llama-bpe", "In| |202|4|,| | it|'s| |123|4|.|50|:\n\n|12| eggs"),
    ],
)
def test_text_is_cut_as_its_name_says(written: Written, pre: str, cut: str) -> None:
    assert pieces(written(pre)) == cut.split("|")


def test_merges_never_join_what_is_cut(written: Written) -> None:
    assert written("smollm").tokenize("12he") == ["1", "2", "he"]
    assert written("gpt-2").tokenize("12he") == ["12", "he"]


def test_llamas_words_are_whole_and_begin_with_a_token(written: Written) -> None:
    assert written("gpt-2").encode("hel") == [37, 8]
    assert written("llama-bpe").encode("hel") == [1, 91]
    silent = {"tokenizer.ggml.add_bos_token": False}
    assert written("llama-bpe", **silent).encode("hel") == [91]


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("martian", "m.gguf says 'martian', not known here, of how its tokenizer cuts text"),
        ("default", "m.gguf does not say how its tokenizer cuts text"),
        (None, "m.gguf does not say how its tokenizer cuts text"),
    ],
)
def test_an_unknown_name_is_warned_of_in_one_line(
    written: Written, pre: str | None, words: str
) -> None:
    with pytest.warns(PpdbenchWarning, match=words) as told:
        made = written(pre)
    assert len(told) == 1 and "\n" not in str(told[0].message)
    assert pieces(made) == pieces(written("gpt-2"))


@pytest.mark.skipif(not source.smollm2().is_file(), reason="SmolLM2 is not here: make smollm2")
def test_smollm2_reads_text_as_llama_cpp_does() -> None:
    """Ids that other readers of SmolLM2's files publish."""
    tokenizer, _ = load_words(ModelSpec(name="smollm2"))
    assert tokenizer.encode("Hello world! 123") == [19556, 905, 17, 216, 33, 34, 35]
    assert tokenizer.encode("Café déjà vu.") == [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30]
    assert tokenizer.encode("  multiple   spaces") == [216, 2701, 256, 5600]
