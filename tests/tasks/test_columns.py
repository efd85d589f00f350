"""Texts of a row's columns: references that are there, absent or nested."""

from __future__ import annotations

import pytest

from ppdbench.tasks import load_task
from tests.tasks.test_examples import build, fails

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
