"""The datastore: suffixes in order, lookups that find what there is, files that must be whole."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from ppdbench.cli.datastore_command import command
from ppdbench.engine.synthetic import tokenizer
from ppdbench.engine.vocabulary import vocabulary_hash
from ppdbench.errors import ConfigError, DataError, PpdbenchError
from ppdbench.methods.rest import datastore
from ppdbench.methods.rest.datastore import (
    HEADER,
    SUFFIXES,
    TOKENS,
    Datastore,
    DatastoreHeader,
    build_datastore,
    suffix_array,
)
from ppdbench.training.text import TextSpec
from tests.families import stock_model

EOS = 2


class Numbers:
    """A tokenizer of texts that are token ids already."""

    def __init__(self, vocab_size: int = 96, eos: int | None = EOS) -> None:
        self.vocab_size = vocab_size
        self.eos_token_id = eos

    def get_vocab(self) -> dict[str, int]:
        return {str(i): i for i in range(self.vocab_size)}

    def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) for word in text.split()] for text in texts]}


def written(folder: Path, rows: list[list[int]]) -> Path:
    """A text whose tokens are `rows`, one document each."""
    folder.mkdir(exist_ok=True)
    path = folder / "text.txt"
    path.write_text("\n\n".join(" ".join(map(str, row)) for row in rows))
    return path


def built(folder: Path, rows: list[list[int]], vocab_size: int = 96, **options: Any) -> Datastore:
    """A datastore of these documents, in `folder`/store."""
    text = TextSpec(sources=(str(written(folder, rows)),))
    words = Numbers(vocab_size, options.pop("eos", EOS))
    return build_datastore(text, words, vocab_size, folder / "store", **options)


def flat(rows: list[list[int]]) -> list[int]:
    return [token for row in rows for token in [*row, EOS]]


def drawn(n: int, kinds: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 3 + kinds) for _ in range(n)]


# The order of suffixes


@pytest.mark.parametrize("kinds", [1, 2, 5, 60000])
def test_suffixes_are_in_the_order_that_sorting_them_gives(kinds: int) -> None:
    for seed in range(30):
        text = drawn(1 + 3 * seed, kinds, seed)
        naive = sorted(range(len(text)), key=lambda i: text[i:])
        assert suffix_array(np.array(text, np.uint16), len(text)).tolist() == naive


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 16])
def test_with_a_depth_so_many_tokens_are_in_order_and_nothing_is_lost(
    kind: type[np.unsignedinteger[Any]], depth: int
) -> None:
    for kinds in (2, 200, 65000 if kind is np.uint16 else 200_000):
        text = np.array(drawn(400, kinds, depth) + [7] * 40, kind)
        order = suffix_array(text, depth)
        heads = [text[i : i + depth].tolist() for i in order]
        assert heads == sorted(heads)
        assert sorted(order.tolist()) == list(range(len(text)))


def test_the_largest_ids_there_are_sort_last() -> None:
    text = np.array([65535, 0, 65535, 65535], np.uint16)
    assert suffix_array(text, 4).tolist() == [1, 3, 0, 2]
    wide = np.array([2**32 - 1, 0, 2**32 - 1], np.uint32)
    assert suffix_array(wide, 3).tolist() == [1, 2, 0]


# Lookups


def test_a_span_holds_exactly_the_places_that_begin_so(tmp_path: Path) -> None:
    rows = [drawn(60, 3, seed) for seed in range(6)]
    store, text = built(tmp_path, rows), flat(rows)
    draw = random.Random(1)
    wanted = [drawn(draw.randrange(1, 8), 3, 100 + i) for i in range(60)]
    starts = [draw.randrange(len(text) - 8) for _ in range(60)]
    wanted += [text[start : start + draw.randrange(1, 8)] for start in starts]
    for tokens in wanted:
        truth = [i for i in range(len(text)) if text[i : i + len(tokens)] == tokens]
        places = store.span(tokens)
        assert sorted(store.suffixes[places.start : places.stop].tolist()) == truth


def test_the_longest_suffix_is_the_one_that_trying_all_lengths_finds(tmp_path: Path) -> None:
    rows = [drawn(80, 4, seed) for seed in range(5)]
    store, text = built(tmp_path, rows), flat(rows)
    found: Counter[int] = Counter()
    for seed in range(80):
        tokens = drawn(20, 5, 1000 + seed)
        lengths = [
            n for n in range(1, 13) if any(text[i : i + n] == tokens[-n:] for i in range(len(text)))
        ]
        known, places = store.longest(tokens, 12)
        assert known == max(lengths, default=0)
        assert len(places) == (0 if known == 0 else len(store.span(tokens[-known:])))
        found[known] += 1
    assert len(found) > 3


def test_a_lookup_stays_within_one_document(tmp_path: Path) -> None:
    store = built(tmp_path, [[5, 6, 7], [8, 9], [5, 6, 9]])
    assert store.longest([5, 6, 7, EOS, 8], 16)[0] == 1
    assert store.longest([5, 6, 7, EOS], 16) == (0, range(0))
    assert store.longest([], 16) == (0, range(0))


def test_what_follows_is_counted_and_the_rarest_left_out(tmp_path: Path) -> None:
    rows = [[5, 6, token] for token in (20, 21, 21, 22, 22, 22, 23)]
    store = built(tmp_path, rows)
    known, places = store.longest([9, 5, 6], 16)
    assert known == 2
    after = store.positions(places, 100) + known
    assert [(token, len(where)) for token, where in store.following(after, 3)] == [
        *((22, 3), (21, 2), (20, 1)),
    ]
    text = flat(rows)
    for token, where in store.following(after, 10):
        assert [text[i] for i in where] == [token] * len(where)


def test_what_follows_the_last_token_is_nothing(tmp_path: Path) -> None:
    store = built(tmp_path, [[5, 6, 7]], eos=None)
    known, places = store.longest([7], 16)
    assert known == 1
    assert store.following(store.positions(places, 9) + 1, 9) == []


def test_of_many_occurrences_evenly_spread_ones_are_looked_at(tmp_path: Path) -> None:
    # Occurrences are ordered by what follows, so even spacing keeps the shares.
    store = built(tmp_path, [[5, 10 + i % 4] for i in range(400)])
    _, places = store.longest([5], 16)
    assert len(places) == 400
    some = store.positions(places, 20)
    assert len(set(some.tolist())) == 20
    assert [len(where) for _, where in store.following(some + 1, 9)] == [5, 5, 5, 5]
    assert len(store.positions(places, 1000)) == 400


# Files


def test_what_is_read_is_what_was_built_and_only_mapped(tmp_path: Path) -> None:
    rows = [drawn(200, 40, seed) for seed in range(4)]
    made, read = built(tmp_path, rows), datastore.load_datastore(tmp_path / "store")
    assert read.header == made.header
    assert read.tokens.tolist() == made.tokens.tolist() == flat(rows)
    assert read.suffixes.tolist() == made.suffixes.tolist()
    assert isinstance(read.tokens.base, np.memmap)
    assert isinstance(read.suffixes.base, np.memmap)


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    rows = [[70_000, 80_000, 70_000]]
    assert built(tmp_path / "large", rows, 100_000).header.token_bytes == 4
    assert datastore.load_datastore(tmp_path / "large" / "store").tokens.tolist() == flat(rows)
    assert built(tmp_path / "small", [[5]], 1 << 16).header.token_bytes == 2


def test_a_text_without_end_tokens_is_one_document(tmp_path: Path) -> None:
    store = built(tmp_path, [[5, 6], [7, 8]], eos=None)
    assert store.header.eos is None
    assert store.tokens.tolist() == [5, 6, 7, 8]
    assert store.longest([5, 6, 7], 16)[0] == 3


def edited(**changes: object) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        values = json.loads((folder / HEADER).read_text())
        values.update(changes)
        (folder / HEADER).write_text(json.dumps(values))

    return edit


def without(name: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        values = json.loads((folder / HEADER).read_text())
        del values[name]
        (folder / HEADER).write_text(json.dumps(values))

    return edit


def torn(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-2])


def turned_round(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[::-1])


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no header": (lambda f: (f / HEADER).unlink(), "holds no datastore"),
    "no folder": (shutil.rmtree, "holds no datastore"),
    "half a header": (torn(HEADER), "is not valid JSON"),
    "a list": (lambda f: (f / HEADER).write_text("[]"), "does not describe a datastore"),
    "another format": (edited(format="ppdbench-addon"), "does not describe a datastore"),
    "another version": (edited(version=2), "has version 2, this ppdbench reads 1"),
    "a missing entry": (without("depth"), "lacks 'depth'"),
    "a size in words": (edited(tokens="many"), "is damaged: tokens is 'many'"),
    "a size of nothing": (edited(depth=0), "is damaged: depth is 0"),
    "odd tokens": (edited(token_bytes=3), "is damaged: token_bytes is 3"),
    "an odd end": (edited(eos="</s>"), "is damaged: eos is '</s>'"),
    "torn tokens": (torn(TOKENS), "tokens.bin has 1606 bytes, its header asks for 1608"),
    "torn suffixes": (torn(SUFFIXES), "suffixes.bin has 3214 bytes, its header asks for 3216"),
    "no suffixes": (lambda f: (f / SUFFIXES).unlink(), "suffixes.bin cannot be read"),
    "foreign tokens": (turned_round(TOKENS), "is not the one that datastore.json describes"),
    "foreign suffixes": (turned_round(SUFFIXES), "is not the one that datastore.json describes"),
}


@pytest.mark.parametrize("what", sorted(DAMAGE))
def test_a_damaged_datastore_is_refused_and_says_why(what: str, tmp_path: Path) -> None:
    built(tmp_path, [drawn(200, 40, seed) for seed in range(4)])
    damage, message = DAMAGE[what]
    damage(tmp_path / "store")
    with pytest.raises(ConfigError) as error:
        datastore.load_datastore(tmp_path / "store")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_model_with_other_tokens_is_refused(tmp_path: Path) -> None:
    store = built(tmp_path, [[5, 6]])
    store.check(Numbers(96), 96, tmp_path)
    with pytest.raises(ConfigError, match=r"built with another tokenizer: its tokenizer is \w{16}"):
        store.check(Numbers(97), 96, tmp_path)
    with pytest.raises(ConfigError, match="its vocab_size is 96, this model's is 128"):
        store.check(Numbers(96), 128, tmp_path)


# What cannot be built


def test_a_text_without_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" \n\n \n")
    with pytest.raises(DataError, match="holds no words"):
        build_datastore(
            TextSpec(sources=(str(tmp_path / "text.txt"),)), Numbers(), 96, tmp_path / "store"
        )
    assert not (tmp_path / "store").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot write to .*store: it is no folder; choose"):
        built(tmp_path, [[5, 6]])


def test_a_datastore_is_not_overwritten(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6]])
    before = (tmp_path / "store" / HEADER).read_bytes()
    with pytest.raises(ConfigError, match="holds a datastore already; give --out another folder"):
        built(tmp_path, [[7, 8]])
    assert (tmp_path / "store" / HEADER).read_bytes() == before


def test_a_build_that_was_broken_off_can_be_done_again(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6]])
    (tmp_path / "store" / HEADER).unlink()
    built(tmp_path, [[7, 8]])
    assert datastore.load_datastore(tmp_path / "store").tokens.tolist() == [7, 8, EOS]


def test_tokens_that_the_model_cannot_write_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has a token 96 that the model, with a vocabulary of 96"):
        built(tmp_path, [[5, 96]])


def test_too_many_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datastore, "MOST_TOKENS", 5)
    with pytest.raises(DataError, match=r"the text has 6 tokens; a datastore holds 5"):
        built(tmp_path, [[5, 6, 7, 8, 9]])


# The command

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a.txt").write_text("the cat sat\n\nthe cat ran\n", "utf-8")
    (tmp_path / "b.jsonl").write_text('{"words": "the dog sat"}\n', "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words: str) -> Any:
    result = CliRunner().invoke(command, list(words), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result


def test_the_command_writes_a_datastore_of_the_models_tokens(home: Path) -> None:
    words = ("--text", "a.txt", "--text", "b.jsonl", "--column", "words", "--depth", "5")
    result = typed(*words, "--model", MODEL, "--out", "store")
    assert result.return_value == 0
    store = datastore.load_datastore(Path("store"))
    text = tokenizer(300, 64).decode(store.tokens.tolist(), skip_special_tokens=True)
    assert text == "the cat satthe cat ranthe dog sat"
    assert store.header == DatastoreHeader(
        tokenizer=vocabulary_hash(tokenizer(300, 64)),
        vocab_size=300,
        eos=EOS,
        tokens=36,
        token_bytes=2,
        depth=5,
        sources=["a.txt", "b.jsonl"],
        sample=store.header.sample,
    )
    assert result.stdout == "36 tokens, sorted by 5: store\n"
    assert result.stderr == "use: --method rest --set datastore=store\n"


def test_documents_are_split_and_limited_as_asked(home: Path) -> None:
    typed("--text", "a.txt", "--model", MODEL, "--out", "one", "--max-documents", "1")
    assert datastore.load_datastore(Path("one")).tokens.tolist().count(EOS) == 1
    typed("--text", "a.txt", "--model", MODEL, "--out", "whole", "--split-by", "file")
    whole = datastore.load_datastore(Path("whole"))
    assert whole.tokens.tolist().count(EOS) == 1
    assert whole.header.tokens == len("the cat sat\n\nthe cat ran\n") + 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "missing.txt"], "neither a file nor a folder"),
        (["--text", "a.txt", "--depth", "0"], "--depth 0: use 1 or more"),
        (["--text", "a.txt", "--split-by", "word"], "use blank-line or file"),
        (["--text", "a.txt", "--max-documents", "0"], "--max-documents 0: use 1 or more"),
        (["--text", "a.txt", "--model", "./none"], "model folder ./none does not exist"),
        (["--text", "a.txt", "--model", ""], "--model is empty"),
        (["--text", "a.txt", "--out", ""], "--out is empty"),
        (["--text", "a.txt", "--out", "a.txt/store"], "cannot write to a.txt/store"),
        (["--text", "hub:wikitext", "--offline"], "needs the hub, which --offline forbids"),
    ],
)
def test_bad_input_is_one_line_that_names_it(home: Path, words: list[str], message: str) -> None:
    with pytest.raises(PpdbenchError) as error:
        typed("--model", MODEL, "--out", "store", *words)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_only_the_tokenizer_of_a_model_is_needed(home: Path) -> None:
    stock_model("llama", vocab_size=300).config.save_pretrained("model")
    tokenizer(300, 96).save_pretrained("model")
    typed("--text", "a.txt", "--model", "./model", "--out", "store")
    store = datastore.load_datastore(Path("store"))
    store.check(tokenizer(300, 96), 300, Path("store"))
    assert store.header.tokens == len("the cat sat") + len("the cat ran") + 2
