"""Texts of a row's columns: references that are there, absent or nested, and cells of CSV."""

from __future__ import annotations

import pytest

from ppdbench.errors import DataError
from ppdbench.tasks import build_examples, load_task
from tests.tasks.made import rows_of
from tests.tasks.test_examples import build, fails
from tests.tasks.test_readers import write_csv

# As FastChat's and Spec-Bench's question.jsonl have them, with texts of our own.
ASKED = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Now in prose."]}
FOUND = {"question_id": 321, "category": "rag", "turns": ["Who sang?"]}


@pytest.mark.parametrize("task", ["mt_bench", "spec_bench"])
@pytest.mark.parametrize(
    ("row", "references"),
    [
        (ASKED, ()),
        ({**ASKED, "reference": None}, ()),
        ({**ASKED, "reference": []}, ()),
        ({**ASKED, "reference": ["A poem.", ""]}, ("A poem.", "")),
        ({**FOUND, "reference": ["Ann did."]}, ("Ann did.",)),
        ({**FOUND, "reference": [["Ann", "Ann Lee"]]}, ("Ann", "Ann Lee")),
        (
            {**FOUND, "reference": [[], ["Ann", ["Ann Lee"]], "A. Lee"]},
            ("Ann", "Ann Lee", "A. Lee"),
        ),
    ],
)
def test_references_that_nothing_scores_may_be_absent_and_nested(task, row, references):
    (example,) = build(row, task=task)
    assert example.references == references
    assert (example.id, example.turns) == (str(row["question_id"]), tuple(row["turns"]))


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        (3, ["'reference'", "the number 3"]),
        ([["Ann", 3]], ["'reference', item 1", "the number 3"]),
        ([None], ["'reference', item 0", "null"]),
    ],
)
def test_references_that_nothing_scores_are_texts(reference, parts):
    row = {**FOUND, "reference": reference}
    fails(row, task="spec_bench", parts=["spec_bench example 321 (row 0)", *parts])


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"reference": [["x"]]}, ["'reference', item 0", "a list of 1"]),
        ({"reference": None}, ["'reference'", "null"]),
        ({}, ["no column 'reference'"]),
    ],
)
def test_references_that_a_metric_scores_are_there(write_task, change, parts):
    task = load_task(str(write_task(reference="reference", metrics=["rouge1"])))
    good = {"question": "q", "reference": "a"}
    fails(good, {"question": "r", **change}, task=task, parts=["mine example 1 (row 1)", *parts])


def references(path, rows, task, **options):
    write_csv(path, rows)
    examples = build_examples(load_task(task), rows_of(path, task, **options))
    return [example.references for example in examples]


@pytest.mark.parametrize(
    "output",
    ["[1, 2, 3]", "[]", '["red"]', '[["red"]]', '{"a": "b"}', "3", "null", '"x"', '["red", 1]'],
)
def test_a_reference_in_csv_that_looks_like_json_stays_text(output, tmp_path):
    rows = [{"instruction": "List.", "input": "", "output": text} for text in (output, "Say.")]
    for limit in (None, 1):
        found = references(tmp_path / "a.csv", rows, "alpaca", limit=limit)
        assert found == [(output,), ("Say.",)][:limit]


def test_a_list_of_numbers_in_csv_stays_text_in_every_row(tmp_path):
    rows = [{"document": "d", "summary": f"[{i}, 2]", "id": i} for i in range(3)]
    assert references(tmp_path / "x.csv", rows, "xsum") == [(f"[{i}, 2]",) for i in range(3)]


def test_columns_of_csv_that_hold_lists_are_read_as_lists(tmp_path):
    rows = [{"document": "d", "summary": '["a", "b"]', "id": i} for i in range(2)]
    assert references(tmp_path / "x.csv", rows, "xsum") == [("a", "b")] * 2
    told = ['["Ann"]', "Ann", '[["Ann", "A."]]', "", "[3]"]
    rows = [
        {"question_id": i, "turns": '["Who sang?"]', "reference": text}
        for i, text in enumerate(told)
    ]
    found = references(tmp_path / "s.csv", rows, "spec_bench")
    assert found == [("Ann",), ("Ann",), ("Ann", "A."), (), ("[3]",)]


def test_a_row_without_a_column_is_named_with_its_file_and_some_of_its_columns(tmp_path):
    file = tmp_path / "x.csv"
    write_csv(file, [{f"c{i}": "x" for i in range(15)}])
    with pytest.raises(DataError) as caught:
        build_examples(load_task("xsum"), rows_of(file, "xsum"))
    assert f"(row 0 of {file}): no column 'document'" in str(caught.value)
    assert str(caught.value).endswith("c10, c11 and 3 more")
