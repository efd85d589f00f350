"""Rows from files, folders and the hub, and the one line for what cannot be read."""

from __future__ import annotations

import csv
import json
import sys
from types import SimpleNamespace

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks import (
    build_examples,
    data_file,
    load_rows,
    load_shot_rows,
    load_task,
    stands_in,
)

SQUAD = [
    {
        "id": f"q{i}",
        "title": "T",
        "context": f"Para {i},\nwith a newline, a comma and “quotes”\u2028.",
        "question": f'Who is "{i}"?',
        "answers": {"text": ["me", "you\nthere"], "answer_start": [0, 5]},
    }
    for i in range(5)
]
WMT = [{"translation": {"en": f"cat {i}", "fr": f"chat, été {i}"}} for i in range(3)]
SPEC = [
    {"question_id": 81 + i, "category": "c", "turns": [f"[{i}]", "b"], "reference": []}
    for i in range(3)
]


def rows_of(data, task="squad", limit=None, split=None, seed=None):
    return load_rows(load_task(task), str(data), split=split, limit=limit, offline=True, seed=seed)


def data_fails(data, *parts: str, error=DataError, **options):
    with pytest.raises(error) as caught:
        rows_of(data, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


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


def test_limit_keeps_the_head_and_too_large_a_limit_everything(write_jsonl):
    path = write_jsonl(SQUAD)
    assert [row.number for row in rows_of(path, limit=2)] == [0, 1]
    assert len(rows_of(path, limit=99)) == 5


def test_limit_reads_no_further_than_it_must(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(SQUAD[0]) + "\nnot json\n")
    assert len(rows_of(path, limit=1)) == 1
    data_fails(path, "line 2")


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(write_jsonl, limit):
    data_fails(write_jsonl(SQUAD), f"limit={limit}", error=ConfigError, limit=limit)


def test_a_seed_samples_in_file_order(write_jsonl):
    path = write_jsonl([{**SQUAD[0], "id": str(i)} for i in range(50)])
    numbers = [row.number for row in rows_of(path, limit=10, seed=3)]
    assert numbers == sorted(numbers) and len(set(numbers)) == 10
    assert numbers == [row.number for row in rows_of(path, limit=10, seed=3)]
    assert numbers != [row.number for row in rows_of(path, limit=10, seed=4)]
    assert len(rows_of(path, limit=99, seed=3)) == 50


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


def test_a_path_that_is_not_there_is_named(tmp_path):
    data_fails(tmp_path / "gone.jsonl", "gone.jsonl: no such file or folder", "builtin")


def test_a_folder_gives_the_tasks_split(write_jsonl, tmp_path):
    write_jsonl(SQUAD[:1], "a/validation.jsonl")
    write_jsonl(SQUAD[:2], "a/train.jsonl")
    write_jsonl(SQUAD[:3], "b/squad/validation.jsonl")
    write_jsonl(SQUAD[:4], "c/anything.jsonl")
    assert len(rows_of(tmp_path / "a")) == 1
    assert len(rows_of(tmp_path / "a", split="train")) == 2
    assert len(rows_of(tmp_path / "b")) == 3
    assert len(rows_of(tmp_path / "c")) == 4


def test_without_the_tasks_split_the_only_one_to_evaluate_on_is_taken(write_jsonl, tmp_path):
    write_jsonl(SQUAD[:1], "a/dev.jsonl")
    write_jsonl(SQUAD[:2], "a/train.jsonl")
    task = load_task("squad")
    assert len(rows_of(tmp_path / "a")) == 1
    folder = str(tmp_path / "a")
    file = data_file(task, folder, None)
    assert stands_in(task, folder, file)
    assert not stands_in(task, str(file), file)  # who names a file knows which it is
    assert not stands_in(task, folder, file.with_name("validation.jsonl"))
    assert not stands_in(task, folder, file.with_name("anything.jsonl"))
    write_jsonl(SQUAD, "a/test.jsonl")
    data_fails(tmp_path / "a", "no split 'validation'", "dev, test, train")
    write_jsonl(SQUAD, "b/train.jsonl")
    write_jsonl(SQUAD, "b/more.jsonl")
    data_fails(tmp_path / "b", "no split 'validation'", "more, train")


def test_a_folder_without_the_split_says_which_exist(write_jsonl, tmp_path):
    write_jsonl(SQUAD, "a/dev.jsonl")
    data_fails(tmp_path / "a", "no split 'test'", "dev", split="test")
    (tmp_path / "empty").mkdir()
    data_fails(tmp_path / "empty", "no data file for squad", ".parquet")
    write_jsonl(SQUAD, "a/validation.jsonl")
    (tmp_path / "a" / "validation.json").write_text("[]")
    data_fails(tmp_path / "a", "validation.json, validation.jsonl", "--data")


def test_a_split_of_a_single_file_is_refused(write_jsonl):
    path = write_jsonl(SQUAD)
    data_fails(path, "--split test", "leave --split out", error=ConfigError, split="test")
    assert data_file(load_task("squad"), str(path), "data") == path


def test_a_task_without_builtin_rows_says_so(write_task):
    task = load_task(str(write_task()))
    with pytest.raises(DataError, match="mine has no builtin examples; give --data PATH"):
        load_rows(task, "builtin", split=None, limit=None, offline=True)


def test_shots_come_from_the_training_file_if_there_is_one(write_jsonl, tmp_path):
    task = load_task("squad")
    alone = write_jsonl(SQUAD[:2], "one/validation.jsonl")
    write_jsonl(SQUAD[:2], "two/validation.jsonl")
    write_jsonl(SQUAD[2:], "two/train.jsonl")

    def pool(data):
        return [row.columns for row in load_shot_rows(task, str(data), split=None, offline=True)]

    assert pool(alone) == pool(tmp_path / "one") == SQUAD[:2]
    assert pool(tmp_path / "two") == SQUAD[2:]


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for `datasets` that records its calls."""
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs, fake.config.HF_HUB_OFFLINE))
        if fake.error is not None:
            raise fake.error
        return iter(SQUAD)

    fake = SimpleNamespace(
        load_dataset=load_dataset,
        config=SimpleNamespace(HF_HUB_OFFLINE=False),
        error=None,
        calls=calls,
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return fake


def from_hub(task="squad", offline=False, **options):
    options = {"split": None, "limit": 2, **options}
    return load_rows(load_task(task), "hub", offline=offline, **options)


def test_the_hub_is_asked_for_the_tasks_set(hub):
    assert [row.columns for row in from_hub()] == SQUAD[:2]
    from_hub(split="train")
    from_hub("wmt_en_fr")
    from_hub(offline=True)
    validation = {"split": "validation", "streaming": False}
    assert hub.calls == [
        (("rajpurkar/squad", None), validation, False),
        (("rajpurkar/squad", None), {"split": "train", "streaming": False}, False),
        (("wmt/wmt15", "fr-en"), {"split": "test", "streaming": True}, False),
        (("rajpurkar/squad", None), validation, True),
    ]
    assert hub.config.HF_HUB_OFFLINE is False


@pytest.mark.parametrize(
    "error", [ConnectionError("no route\nto host"), ValueError("Unknown split"), RuntimeError()]
)
def test_hub_failures_are_one_line_with_a_way_out(hub, error):
    hub.error = error
    with pytest.raises(DataError) as caught:
        from_hub()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("rajpurkar/squad, split validation: cannot be loaded: ")
    assert "give --data PATH" in message and "--data builtin" in message


def test_offline_without_a_cached_copy_names_the_ways_out(hub):
    hub.error = ConnectionError("offline")
    with pytest.raises(DataError, match=r"--offline.*--data PATH.*--data builtin"):
        from_hub(offline=True)
    with pytest.raises(DataError, match=r"--offline.*--data PATH.*--data builtin"):
        from_hub("wmt_en_fr", offline=True)
    assert len(hub.calls) == 1


def test_a_task_without_hub_set_says_where_its_file_is(hub):
    with pytest.raises(DataError, match=r"give --data PATH \(question.jsonl .*Spec-Bench"):
        from_hub("spec_bench")
    assert hub.calls == []
