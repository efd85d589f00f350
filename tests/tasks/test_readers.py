"""Rows of local files: every format gives the same, and what cannot be read is told where."""

from __future__ import annotations

import csv
import json

import pytest

from ppdbench.errors import DataError
from ppdbench.tasks import (
    build_examples,
    load_task,
)
from tests.tasks.made import SQUAD, data_fails, rows_of

WMT = [{"translation": {"en": f"cat {i}", "fr": f"chat, été {i}"}} for i in range(3)]


SPEC = [
    {"question_id": 81 + i, "category": "c", "turns": [f"[{i}]", "b"], "reference": []}
    for i in range(3)
]


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def as_cells(row):
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()}


@pytest.mark.parametrize(
    ("task", "rows"), [("squad", SQUAD), ("wmt_en_fr", WMT), ("spec_bench", SPEC)]
)
def test_all_formats_give_the_same_examples(task, rows, tmp_path, write_jsonl):
    import pyarrow
    import pyarrow.parquet

    files = [write_jsonl(rows)]
    files.append(tmp_path / "data.json")
    files[-1].write_text(json.dumps(rows, indent=1), encoding="utf-8")
    files.append(tmp_path / "data.csv")
    write_csv(files[-1], [as_cells(row) for row in rows])
    files.append(tmp_path / "data.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), files[-1])

    def seen(file):
        examples = build_examples(load_task(task), rows_of(file, task))
        return [(e.id, e.prompt.text, e.references, e.turns) for e in examples]

    assert len(seen(files[0])) == len(rows)
    assert seen(files[1]) == seen(files[0])
    assert seen(files[2]) == seen(files[0])
    assert seen(files[3]) == seen(files[0])
    for file in (files[0], files[1], files[3]):
        assert [row.columns for row in rows_of(file, task)] == rows


def test_csv_may_have_dotted_columns(tmp_path):
    path = tmp_path / "wmt.csv"
    write_csv(path, [{"translation.en": "cat", "translation.fr": "chat"}])
    (example,) = build_examples(load_task("wmt_en_fr"), rows_of(path, "wmt_en_fr"))
    assert example.prompt.values == {"source_sentence": "cat"}
    assert example.references == ("chat",)


def test_csv_text_that_looks_like_json_stays_text(tmp_path):
    path = tmp_path / "x.csv"
    write_csv(path, [{"document": "[1, 2]", "summary": "3", "id": "7"}])
    (example,) = build_examples(load_task("xsum"), rows_of(path, "xsum"))
    assert example.prompt.values["document"] == "[1, 2]"
    assert example.references == ("3",)


def test_csv_takes_cells_longer_than_the_modules_limit(tmp_path):
    path = tmp_path / "x.csv"
    before = csv.field_size_limit()
    write_csv(path, [{"document": "w " * 100_000, "summary": "s", "id": "7"}])
    assert len(rows_of(path, "xsum")[0].columns["document"]) == 200_000
    assert csv.field_size_limit() == before


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path):
    path = tmp_path / "data.jsonl"
    lines = [json.dumps(row) for row in SQUAD[:2]]
    path.write_bytes(("\ufeff" + lines[0] + "\r\n\n" + lines[1]).encode())
    assert [row.columns for row in rows_of(path)] == SQUAD[:2]


def test_limit_reads_no_further_than_it_must(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(SQUAD[0]) + "\nnot json\n")
    assert len(rows_of(path, limit=1)) == 1
    data_fails(path, "line 2")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("d.jsonl", b"", ["holds no rows"]),
        ("d.jsonl", b"\n \n", ["holds no rows"]),
        ("d.json", b"", ["holds no rows"]),
        ("d.json", b"[]", ["holds no rows"]),
        ("d.csv", b"", ["holds no rows"]),
        ("d.csv", b"a,b\n", ["holds no rows"]),
        ("d.jsonl", b'{"a": 1}\n{"a": ', ["line 2", "column", "cut off"]),
        ("d.jsonl", b'{"a": 1}\n{"a": "xy', ["line 2", "cut off"]),
        ("d.jsonl", b'{"a": 1}\n{a: 2}\n', ["line 2", "not valid JSON at column 2"]),
        ("d.jsonl", b'{"a": 1} {"a": 2}\n', ["line 1", "Extra data"]),
        ("d.jsonl", b'{"a": 1}\n[1, 2]\n', ["line 2", "an object", "a list of 2"]),
        ("d.jsonl", b'"x"\n', ["line 1", "the text 'x'"]),
        ("d.jsonl", b"null\n", ["line 1", "not null"]),
        ("d.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', ["not UTF-8 at byte 16"]),
        ("d.jsonl", b"[" * 100_000, ["line 1", "not JSON this program can read"]),
        ("d.jsonl", b"1" * 5000, ["line 1", "not JSON this program can read"]),
        ("d.jsonl", b'\xef\xbb\xbf{"a": "\xff"}\n', ["not UTF-8 at byte 10"]),
        ("d.json", b'{"a": 1}', ["one list of objects", "a mapping"]),
        ("d.json", b'[{"a": 1},\n{"a": 2},\n', ["line 3", "cut off"]),
        ("d.json", b'[{"a": 1}, 5]', ["item 1", "the number 5"]),
        ("d.json", b'{"a": 1}\n{"a": 2}\n', ["line 2", "Extra data"]),
        ("d.csv", b"a,b\n1,2\n3\n", ["line 3", "1 cells, but the header names 2"]),
        ("d.csv", b"a,a\n1,2\n", ["line 1", "names 'a' twice"]),
        ("d.csv", b"a,\n1,2\n", ["line 1", "without a name"]),
        ("d.csv", b'a,b\n1,"2\n', ["not valid CSV", "unexpected end of data"]),
        ("d.csv", b"a,b\n1,\xfe\n", ["not UTF-8 at byte 6"]),
        ("d.parquet", b"no parquet at all", ["not a readable Parquet file"]),
        ("d.parquet", b"", ["not a readable Parquet file"]),
        ("d.txt", b"x", ["unknown kind of data file", ".jsonl"]),
    ],
)
def test_broken_files_are_explained(tmp_path, name, content, parts):
    path = tmp_path / name
    path.write_bytes(content)
    data_fails(path, name, *parts)


def test_a_broken_line_in_the_middle_is_named_and_the_file_not_called_cut_off(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": \n{"a": 3}\n')
    with pytest.raises(DataError) as refused:
        rows_of(path)
    said = f"{path}, line 2: not valid JSON at column 6: Expecting value"
    assert str(refused.value) == said


def test_a_path_that_is_not_there_is_named(tmp_path):
    data_fails(tmp_path / "gone.jsonl", "gone.jsonl: no such file or folder", "builtin")
