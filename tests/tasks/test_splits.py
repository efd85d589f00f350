"""The files of a task's split: in a folder, in pieces, in place of another."""

from __future__ import annotations

import pytest

from ppdbench.errors import ConfigError
from ppdbench.tasks import data_files, load_shot_rows, load_task, stands_in
from tests.tasks.made import SQUAD, data_fails, rows_of


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
    files = data_files(task, folder, None)
    assert (files.split, files.name) == ("dev", "dev.jsonl")
    named = str(tmp_path / "a" / "dev.jsonl")
    assert not stands_in(task, named, data_files(task, named, None))
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
    assert data_files(load_task("squad"), str(path), "data").paths == (path,)


@pytest.mark.parametrize(
    ("name", "another"),
    [
        ("train.jsonl", True),
        ("dev.jsonl", True),
        ("anything.jsonl", True),
        ("train-00000-of-00001.parquet", True),
        ("validation.jsonl", False),
        ("validation-00000-of-00001.parquet", False),
    ],
)
def test_a_lone_file_of_another_split_stands_in_for_the_tasks(tmp_path, name, another):
    (tmp_path / name).touch()
    task = load_task("squad")
    files = data_files(task, str(tmp_path), None)
    assert files.name == name
    assert stands_in(task, str(tmp_path), files) is another


@pytest.fixture
def write_pieces(tmp_path):
    """Rows of SQuAD in Parquet files, each named piece with two of its own."""
    import pyarrow
    import pyarrow.parquet

    def write(*names, folder="pieces"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            rows = [{**SQUAD[0], "id": f"{number}.{i}"} for i in range(2)]
            table = pyarrow.Table.from_pylist(rows)
            pyarrow.parquet.write_table(table, tmp_path / folder / f"{name}.parquet")
        return tmp_path / folder

    return write


def ids(folder, **options):
    return [row.columns["id"] for row in rows_of(folder, **options)]


def test_the_pieces_of_a_split_are_one(write_pieces, tmp_path):
    names = ["validation-00000-of-00002", "validation-00001-of-00002", "train-00000-of-00001"]
    folder = write_pieces(*names)
    task, every = load_task("squad"), ["0.0", "0.1", "1.0", "1.1"]
    assert ids(folder) == every
    assert ids(folder, limit=3) == every[:3]
    assert ids(folder, split="train") == ["2.0", "2.1"]
    assert data_files(task, str(folder), None).name == "validation-*.parquet"
    assert ids(write_pieces(*names, folder="hub/data").parent) == every
    assert ids(write_pieces(*names, folder="all/squad/data").parents[1]) == every
    pool = load_shot_rows(task, str(tmp_path / "hub"), split=None, offline=True)
    assert [row.columns["id"] for row in pool] == ["2.0", "2.1"]
    one = folder / "validation-00001-of-00002.parquet"
    assert ids(one) == ["1.0", "1.1"]
    data_fails(folder, "no split 'test'", "one of: train, validation", split="test")


def test_a_data_set_is_read_as_it_lies_on_the_hub(write_pieces, write_jsonl, tmp_path):
    names = ["validation-00000-of-00001", "train-00000-of-00001"]
    squad = write_pieces(*names, folder="of-hub/plain_text").parent
    write_jsonl([{"plain_text": {}}], "of-hub/dataset_infos.jsonl")
    assert ids(squad) == ["0.0", "0.1"]
    pool = load_shot_rows(load_task("squad"), str(squad), split=None, offline=True)
    assert [row.columns["id"] for row in pool] == ["1.0", "1.1"]
    for config in ("1.0.0", "3.0.0"):
        write_jsonl([{"id": config, "article": "a", "highlights": "h"}], f"cnn/{config}/test.jsonl")
    (row,) = rows_of(tmp_path / "cnn", task="cnn_dailymail")
    assert row.columns["id"] == "3.0.0"  # the configuration that the task names


def test_no_folder_is_guessed_at(write_pieces, write_jsonl):
    names = ["validation-00000-of-00001", "test-00000-of-00001"]
    several = write_pieces(*names, folder="several/plain_text").parent
    write_pieces(*names, folder="several/another")
    data_fails(several, "holds data in another, plain_text; give the right one as --data")
    alone = write_pieces(*names, folder="tasks/gsm8k").parent  # rows of another task
    data_fails(alone, "no data file for squad")
    other = write_pieces(*names, folder="gsm8k-of-hub/socratic").parent
    data_fails(other, "holds data in socratic; give the right one as --data", task="gsm8k")
    inside = write_jsonl(SQUAD, "no-pieces/notes/validation.jsonl").parents[1]
    data_fails(inside, "no data file for squad")


def test_pieces_may_end_in_a_hash(write_pieces):
    names = [f"validation-0000{i}-of-00002-{'a09b74b3ef9c3b5' + str(i)}" for i in range(2)]
    assert ids(write_pieces(*names)) == ["0.0", "0.1", "1.0", "1.1"]


def test_a_folder_beside_data_comes_first(write_pieces, write_jsonl):
    folder = write_pieces("validation-00000-of-00001", folder="hub/data").parent
    write_jsonl([{"citation": "none"}], "hub/infos.jsonl")
    assert ids(folder) == ["0.0", "0.1"]
    write_jsonl(SQUAD[:1], "hub/validation.jsonl")
    assert ids(folder) == ["q0"]


def test_a_split_without_all_its_pieces_is_refused(write_pieces):
    folder = write_pieces("validation-00001-of-00003", "train-00000-of-00002")
    where = ["lacks 2 of the 3 files of the split 'validation'", "validation-00000-of-00003"]
    data_fails(folder, *where, "--data")
    data_fails(folder, "lacks 1 of the 2 files of the split 'train'", split="train")


@pytest.mark.parametrize("other", ["validation", "validation-00000-of-00001"])
def test_pieces_of_two_sets_are_refused(write_pieces, other):
    folder = write_pieces("validation-00000-of-00002", "validation-00001-of-00002", other)
    data_fails(folder, "validation-00000-of-00002.parquet, ", f"{other}.parquet", "one of them")
