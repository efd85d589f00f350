"""Rows into examples: columns, ids, references, worked examples."""

from __future__ import annotations

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks import Row, build_examples, load_task

GOOD = {"id": "a1", "context": "c", "question": "q", "answers": {"text": ["x", "y"]}}


def build(*rows, task="squad", **options):
    task = load_task(task) if isinstance(task, str) else task
    return build_examples(task, [Row(i, row) for i, row in enumerate(rows)], **options)


def fails(*rows, parts, **options):
    with pytest.raises(DataError) as caught:
        build(*rows, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def test_an_example_carries_everything():
    (example,) = build(GOOD)
    assert (example.id, example.task) == ("a1", "squad")
    assert example.references == ("x", "y")
    assert example.turns == (example.prompt.text,)
    assert example.row == GOOD


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"context": 3.5}, ["'context'", "the number 3.5"]),
        ({"context": None}, ["'context'", "not null"]),
        ({"context": ""}, ["'context'", "an empty text"]),
        ({"context": " \n"}, ["'context'", "not empty"]),
        ({"context": ["a"]}, ["'context'", "a list of 1"]),
        ({"context": True}, ["'context'", "not true"]),
        ({"context": "a\ud800"}, ["'context'", "surrogate"]),
        ({"answers": {"text": [4]}}, ["'answers.text', item 0", "the number 4"]),
        ({"answers": {"text": {"a": 1}}}, ["'answers.text'", "a mapping"]),
        ({"answers": {"text": []}}, ["'answers.text'", "squad_em"]),
        ({"answers": {"text": [""]}}, ["'answers.text'", "squad_em"]),
        ({"answers": {}}, ["no column 'answers.text'", "the row has: id, context"]),
        ({"answers": "x"}, ["no column 'answers.text'"]),
    ],
)
def test_wrong_values_name_example_column_and_type(change, parts):
    fails(GOOD, {**GOOD, "id": "b2", **change}, parts=["squad example b2 (row 1)", *parts])


def test_missing_columns_are_named_with_those_found():
    fails(
        {"id": "a1", "text": "c", "answers": {"text": ["x"]}},
        parts=["no column 'context'", "the row has: id, text, answers"],
    )
    fails({"x": 1}, task="alpaca", parts=["no column 'instruction' or 'turns.0'"])


@pytest.mark.parametrize(("value", "found"), [(None, "null"), (True, "true"), ("", "empty")])
def test_ids_must_be_texts_or_numbers(value, found):
    fails({**GOOD, "id": value}, parts=["squad row 0: column 'id'", found])


def test_an_id_with_half_a_surrogate_pair_is_refused():
    fails({**GOOD, "id": "a\ud800"}, parts=["squad row 0: column 'id'", "surrogate"])


def test_ids_must_be_unique():
    fails(GOOD, {**GOOD, "context": "d"}, parts=["rows 0 and 1", "'a1'"])


def test_without_an_id_column_the_row_number_serves():
    rows = [Row(4, {"question": "q", "answer": "#### 1"})]
    assert build_examples(load_task("gsm8k"), rows)[0].id == "4"


def test_a_prompt_of_nothing_is_refused(write_task):
    task = load_task(str(write_task(prompt_text="{% if question == 'x' %}y{% endif %}")))
    fails({"question": "q", "answer": "a"}, task=task, parts=["renders to nothing"])


QUESTIONS = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(8)]


def test_shots_stand_in_front_and_never_show_their_own_answer(write_task):
    task = load_task(str(write_task()))
    for example, row in zip(build(*QUESTIONS, task=task, shots=3, seed=5), QUESTIONS, strict=True):
        text = example.prompt.text
        assert text.count("Q: ") == 4
        assert text.endswith(f"Q: {row['question']}\nA:")
        assert row["answer"] not in text
        assert text == example.prompt.shots + task.prompt.render(example.prompt.values)
        first = example.prompt.shots.splitlines()[:2]
        assert {"question": first[0][3:], "answer": first[1][3:]} in QUESTIONS
        assert example.turns == (f"Q: {row['question']}\nA:",)


def test_shots_depend_on_seed_and_id_alone(write_task):
    task = load_task(str(write_task()))
    pool = [Row(i, row) for i, row in enumerate(QUESTIONS)]

    def texts(rows, seed):
        examples = build_examples(task, rows, shots=2, shot_rows=pool, seed=seed)
        return {example.id: example.prompt.text for example in examples}

    everything = texts(pool, 1)
    assert texts(pool[3:4], 1) == {"3": everything["3"]}
    assert texts(pool[::-1], 1) == everything
    assert texts(pool, 2) != everything


def test_copies_of_the_question_do_not_leak_as_shots(write_task):
    task = load_task(str(write_task()))
    twins = [{"question": "same", "answer": "leak"}] * 5 + [QUESTIONS[0]]
    for seed in range(10):
        first = build(*twins, task=task, shots=1, seed=seed)[0]
        assert "leak" not in first.prompt.text
    with pytest.raises(ConfigError, match="--shots 2, but only 1 worked example is available"):
        build(*twins, task=task, shots=2)


def test_impossible_shots_are_refused(write_task):
    task = load_task(str(write_task()))
    with pytest.raises(ConfigError, match="--shots 8, but only 7"):
        build(*QUESTIONS, task=task, shots=8)
    with pytest.raises(ConfigError, match="shots=-1"):
        build(*QUESTIONS, task=task, shots=-1)
    bare = load_task(str(write_task(shot=None)))
    with pytest.raises(ConfigError, match="no `shot` format"):
        build(*QUESTIONS, task=bare, shots=1)


def test_a_shot_needs_a_reference(write_task):
    task = load_task(str(write_task()))
    rows = [{"question": "q", "answer": ""}, {"question": "r", "answer": ""}]
    with pytest.raises(DataError, match="has no reference"):
        build(*rows, task=task, shots=1)
