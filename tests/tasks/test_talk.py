"""Prompts of later turns: everything said before, with or without chat markup, cut to fit."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks import (
    ChatOptions,
    Example,
    Row,
    Task,
    build_examples,
    encode_conversation,
    load_task,
)
from ppdbench.tasks.examples import turn_prompts

ROW = {"question_id": 7, "turns": ["Write a poem.", "Now in prose.", "Shorter."], "reference": []}
ANSWER = "Roses are red,\nviolets are blue. "


@pytest.fixture
def talk() -> tuple[Task, Example]:
    task = load_task("mt_bench")
    return task, build_examples(task, [Row(0, ROW)])[0]


def test_without_a_chat_template_answers_go_on_from_their_prompts(
    talk: tuple[Task, Example], tokenizer: Any
) -> None:
    encoded = encode_conversation(*talk, ("\nA rose.", " It is red."), tokenizer, max_tokens=500)
    assert encoded.text == ("Write a poem.\nA rose.\n\nNow in prose. It is red.\n\nShorter.")
    assert encoded.ids == tokenizer(encoded.text, verbose=False)["input_ids"]
    assert encoded.cut_tokens == 0


def test_a_chat_template_gets_every_message_and_writes_one_bos(
    talk: tuple[Task, Example], chat_tokenizer: Any
) -> None:
    template = ChatOptions().template(chat_tokenizer)
    answers = (f" {ANSWER}",)
    encoded = encode_conversation(*talk, answers, chat_tokenizer, max_tokens=500, chat=template)
    assert encoded.text == (
        f"<s>[user]Write a poem.[assistant]{ANSWER.strip()}[user]Now in prose.[assistant]"
    )
    assert encoded.ids.count(chat_tokenizer.bos_token_id) == 1


def test_a_turn_without_answers_before_it_is_the_first(
    talk: tuple[Task, Example], tokenizer: Any
) -> None:
    encoded = encode_conversation(*talk, (), tokenizer, max_tokens=500)
    assert encoded.text == "Write a poem."


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("max_tokens", [100, 101, 120, 133])
def test_cutting_keeps_every_question_and_shortens_answers_alike(
    talk: tuple[Task, Example], tokenizer: Any, chat_tokenizer: Any, chat: bool, max_tokens: int
) -> None:
    words = chat_tokenizer if chat else tokenizer
    answers, template = ("a" * 90, "b" * 60), ChatOptions().template(words)
    whole = encode_conversation(*talk, answers, words, max_tokens=500, chat=template)
    cut = encode_conversation(*talk, answers, words, max_tokens=max_tokens, chat=template)
    assert max_tokens - 1 <= len(cut.ids) <= max_tokens  # both give way by one at a time
    assert cut.cut_tokens == len(whole.ids) - len(cut.ids)
    assert all(turn in cut.text for turn in ROW["turns"])
    kept = cut.text.count("aaa"), cut.text.count("bbb")
    assert 0 < kept[0] == kept[1]


def test_when_no_answer_fits_the_first_question_is_cut(
    talk: tuple[Task, Example], tokenizer: Any
) -> None:
    encoded = encode_conversation(*talk, ("a" * 9,), tokenizer, max_tokens=24)
    assert encoded.text == "Write a \n\nNow in prose."


def test_a_turn_that_does_not_fit_by_itself_is_an_error(
    talk: tuple[Task, Example], tokenizer: Any
) -> None:
    with pytest.raises(DataError, match=r"example 7 needs 16 prompt tokens even with an empty"):
        encode_conversation(*talk, ("a",), tokenizer, max_tokens=9)


def test_each_turn_is_asked_through_the_template(write_task: Any) -> None:
    path = write_task(
        fields={"question": "said.0"}, turns="said", reference=None, id=None, shot=...
    )
    task = load_task(str(path))
    (example,) = build_examples(task, [Row(0, {"said": ["One?", "Two?"]})])
    assert [p.text for p in turn_prompts(task, example)] == ["Q: One?\nA:", "Q: Two?\nA:"]


def test_turns_that_no_field_reads_are_refused(write_task: Any) -> None:
    path = write_task(turns="said", fields={"question": "question"})
    with pytest.raises(ConfigError, match=r"turns: said needs a field that reads said\.0"):
        load_task(str(path))


def test_pass_at_1_needs_the_columns_of_a_test(write_task: Any) -> None:
    with pytest.raises(ConfigError, match=r"humaneval_pass1 needs code: \{prompt"):
        load_task(str(write_task(metrics=["humaneval_pass1"])))
    code = {"prompt": "question", "test": "test"}
    with pytest.raises(ConfigError, match=r"the key code\.entry_point is missing"):
        load_task(str(write_task(metrics=["humaneval_pass1"], code=code)))
    code |= {"entry_point": "name", "setup": "x"}
    with pytest.raises(ConfigError, match=r"unknown key code\.setup"):
        load_task(str(write_task(metrics=["humaneval_pass1"], code=code)))
