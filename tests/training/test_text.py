"""Text becomes the same blocks whatever the process, and every block comes once per epoch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from ppdbench.cli.main import run
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError, DataError
from ppdbench.training.text import TextSpec, TokenBlocks, documents, in_both, tokenized

TOKENIZER = tokenizer(300, 512)


def spec(*sources: Path, **options: object) -> TextSpec:
    return TextSpec(sources=tuple(map(str, sources)), **options)  # type: ignore[arg-type]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "b.txt").write_text("third\n\n\n\nfourth line\nof two lines\n", "utf-8")
    (folder / "a.txt").write_text("first\n\nsécond\n", "utf-8")
    (folder / "c.jsonl").write_text(json.dumps({"text": "fifth"}) + "\n", "utf-8")
    (folder / "ignored.md").write_text("no", "utf-8")
    return folder


def test_documents_come_in_the_order_of_files_split_at_blank_lines(corpus: Path) -> None:
    found = list(documents(spec(corpus)))
    assert found == ["first", "sécond", "third", "fourth line\nof two lines", "fifth"]


def test_a_file_may_be_one_document(corpus: Path) -> None:
    assert list(documents(spec(corpus / "a.txt", split="file"))) == ["first\n\nsécond\n"]


def test_byte_order_marks_and_blank_lines_are_no_text(tmp_path: Path) -> None:
    lines = "\ufeff" + json.dumps({"text": "first"}) + "\n\n  \n" + json.dumps({"text": "second"})
    (tmp_path / "a.jsonl").write_text(f"{lines}\n\n", "utf-8")
    (tmp_path / "b.txt").write_text("\ufeffthird\n", "utf-8")
    assert list(documents(spec(tmp_path))) == ["first", "second", "third"]


def test_documents_can_be_limited(corpus: Path) -> None:
    assert list(documents(spec(corpus, max_documents=2))) == ["first", "sécond"]


def test_a_data_set_in_the_hubs_layout_is_streamed(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    for split, words in (("train", ["one", "two"]), ("validation", ["three"])):
        rows = [json.dumps({"text": word, "words": f"{word}!"}) for word in words]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    found = [TextSpec(sources=(f"hub:{folder}{more}",)) for more in ("", "::validation")]
    assert [list(documents(one)) for one in found] == [["one", "two"], ["three"]]
    column = TextSpec(sources=(f"hub:{folder}",), column="words", max_documents=1)
    assert list(documents(column)) == ["one!"]
    with pytest.raises(DataError, match="no text in 'body'; found: text, words"):
        list(documents(TextSpec(sources=(f"hub:{folder}",), column="body")))


@pytest.fixture
def articles(tmp_path: Path) -> Path:
    """A data set as WikiText lies on the hub: a folder of Parquet files for each configuration."""
    folder = tmp_path / "articles"
    rows = {"train": ["", " = Title = \n", " Some words . \n"] * 40, "validation": [" Unseen . \n"]}
    card = "---\nconfigs:\n"
    for config, again in (("small", 1), ("large", 8)):
        card += f"- config_name: {config}\n  data_files:\n"
        for split, texts in rows.items():
            path = folder / config / f"{split}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pyarrow.table({"text": texts * again}), path)
            card += f"  - split: {split}\n    path: {config}/{split}-*\n"
    (folder / "README.md").write_text(f"{card}---\n", "utf-8")
    return folder


def test_a_configuration_and_a_split_of_a_hub_data_set_are_told_apart(articles: Path) -> None:
    def count(source: str) -> int:
        return len(list(documents(TextSpec(sources=(source,)))))

    assert (count(f"hub:{articles}:small"), count(f"hub:{articles}:large")) == (80, 640)
    assert count(f"hub:{articles}:large:validation") == 8


def test_what_a_hub_data_set_trains_is_measured_on_its_own_validation_split(
    articles: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(articles.parent)
    text = ["--text", f"hub:{articles}:large", "--held-out", f"hub:{articles}:large:validation"]
    size = ["--steps", "2", "--batch-size", "2", "--sequence", "16", "--dtype", "float32"]
    model = ["--model", "synthetic:layers=2,hidden=32,vocab=300"]
    assert run(["train", "heads", *model, *text, *size, "--out", "heads"]) == 0
    record = json.loads((articles.parent / "heads" / "training.json").read_text("utf-8"))
    assert record["text"]["sources"] == [text[1]]
    assert "Held-out text" in capsys.readouterr().out


def test_tokens_are_documents_with_an_end_each(corpus: Path, tmp_path: Path) -> None:
    ids = tokenized(spec(corpus), TOKENIZER, 300, tmp_path / "t.bin")
    assert (ids == 2).sum() == 5
    text = TOKENIZER.decode([int(i) for i in ids], skip_special_tokens=True)
    assert text == "firstsécondthirdfourth line\nof two linesfifth"


def test_tokens_are_written_once_and_again_when_the_text_changes(
    corpus: Path, tmp_path: Path
) -> None:
    path = tmp_path / "t.bin"
    first = np.array(tokenized(spec(corpus), TOKENIZER, 300, path))
    written = path.stat().st_mtime_ns
    tokenized(spec(corpus), TOKENIZER, 300, path)
    assert path.stat().st_mtime_ns == written
    (corpus / "a.txt").write_text("changed\n", "utf-8")
    assert len(tokenized(spec(corpus), TOKENIZER, 300, path)) != len(first)


def test_damaged_tokens_are_named(corpus: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    tokenized(spec(corpus), TOKENIZER, 300, path)
    sound = path.read_bytes()
    for damaged, words in (
        (sound[:-2], f"has {len(sound) - 2} bytes, not {len(sound)}"),
        (bytes([sound[0] ^ 1]) + sound[1:], "its checksum does not fit"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=rf"t\.bin is damaged: .*{words}; remove .*t\.json"):
            tokenized(spec(corpus), TOKENIZER, 300, path)
    (tmp_path / "t.json").unlink()
    assert bytes(tokenized(spec(corpus), TOKENIZER, 300, path)) == sound


@pytest.mark.parametrize("change", [{"bytes": None}, {"checksum": 7}, {"more": 1}, {"files": [1]}])
def test_tokens_whose_stamp_is_damaged_are_made_anew(
    change: dict[str, object], corpus: Path, tmp_path: Path
) -> None:
    path, stamp = tmp_path / "t.bin", tmp_path / "t.json"
    sound = bytes(tokenized(spec(corpus), TOKENIZER, 300, path))
    told = json.loads(stamp.read_text("utf-8"))
    stamp.write_text(json.dumps({**told, **change}), "utf-8")
    path.write_bytes(b"damaged")
    assert bytes(tokenized(spec(corpus), TOKENIZER, 300, path)) == sound
    assert json.loads(stamp.read_text("utf-8")) == told


def test_every_block_comes_once_per_epoch_in_an_order_of_its_own() -> None:
    blocks = TokenBlocks(np.arange(1000, dtype=np.uint16), 10, seed=1)
    epochs = [
        [int(row[0]) for step in range(25) for row in blocks.batch(25 * epoch + step, 4)]
        for epoch in (0, 1)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 1000, 10))] * 2
    assert epochs[0] != epochs[1]


def test_a_batch_depends_on_the_seed_and_the_step_alone() -> None:
    ids = np.arange(1000, dtype=np.uint16)
    again = TokenBlocks(ids, 10, seed=1)
    again.batch(90, 4)
    assert (again.batch(7, 4) == TokenBlocks(ids, 10, seed=1).batch(7, 4)).all()
    assert (again.batch(7, 4) != TokenBlocks(ids, 10, seed=2).batch(7, 4)).any()


def test_bad_text_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", "utf-8")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "torn.jsonl").write_text('{"text": "a"}\n{"te', "utf-8")
    (tmp_path / "deep.jsonl").write_text("[" * 200_000, "utf-8")
    (tmp_path / "column.jsonl").write_text('{"body": "a"}\n', "utf-8")
    (tmp_path / "none").mkdir()
    cases = {
        "empty.txt": "holds no words",
        "latin.txt": "not UTF-8: byte 3",
        "torn.jsonl": "line 2 is not valid JSON",
        "deep.jsonl": "line 1 is not valid JSON",
        "column.jsonl": "no text in 'text'; found: body",
        "none": "holds no .txt or .jsonl",
        "missing": "neither a file nor a folder",
    }
    for name, message in cases.items():
        with pytest.raises(DataError, match=message):
            tokenized(spec(tmp_path / name), TOKENIZER, 300, tmp_path / "t.bin")
    with pytest.raises(ConfigError, match="no text to train on"):
        TextSpec(sources=())
    with pytest.raises(DataError, match="fewer than one block"):
        TokenBlocks(np.arange(5, dtype=np.uint16), 10, seed=0)
    with pytest.raises(DataError, match="--offline forbids"):
        list(documents(TextSpec(sources=("hub:some/set",), offline=True)))


def test_text_that_is_in_both_is_found_by_its_bytes(tmp_path: Path) -> None:
    for name, content in {"a.txt": "one", "b.txt": "two", "copy.txt": "one"}.items():
        (tmp_path / name).write_text(content, "utf-8")
    a, b, copy = (str(tmp_path / name) for name in ("a.txt", "b.txt", "copy.txt"))
    seen = TextSpec(sources=(a, "hub:x"))
    assert in_both(TextSpec(sources=(copy, b)), seen) == [copy]
    assert in_both(TextSpec(sources=("hub:x",)), seen) == ["hub:x"]
    assert in_both(TextSpec(sources=(b,)), seen) == []
    assert in_both(TextSpec(sources=(b,)), TextSpec(sources=(str(tmp_path),))) == [b]
