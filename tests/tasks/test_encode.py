"""Encoding and cutting: the tail stays, the result fits, what was cut is counted."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks import ChatOptions, Row, build_examples, encode_prompt, load_task

CONTEXT = "Élan vital: 日本語 and plain words. " * 12
ROW = {"id": "a1", "context": CONTEXT, "question": "What?", "answers": {"text": ["x"]}}
TAIL = "\n---------------------\n### Given this information, please answer the question: What?"


def example_of(task, row):
    (example,) = build_examples(task, [Row(0, row)])
    return example


@pytest.fixture
def squad():
    task = load_task("squad")
    return task, example_of(task, ROW)


def n_tokens(tokenizer, text):
    return len(tokenizer(text, verbose=False)["input_ids"])


def test_a_prompt_that_fits_is_left_alone(squad, tokenizer):
    task, example = squad
    encoded = encode_prompt(task, example, tokenizer, max_tokens=5000)
    assert encoded.text == example.prompt.text
    assert encoded.cut_tokens == 0
    assert encoded.ids[0] == tokenizer.bos_token_id
    assert tokenizer.decode(encoded.ids[1:]) == example.prompt.text
    exact = encode_prompt(task, example, tokenizer, max_tokens=len(encoded.ids))
    assert exact == encoded


@pytest.mark.parametrize("max_tokens", [170, 171, 180, 199, 200, 201, 202, 203, 333, 500])
def test_cutting_keeps_the_tail_and_as_much_context_as_fits(squad, tokenizer, max_tokens):
    task, example = squad
    encoded = encode_prompt(task, example, tokenizer, max_tokens=max_tokens)
    assert len(encoded.ids) <= max_tokens
    assert encoded.cut_tokens == n_tokens(tokenizer, example.prompt.text) - len(encoded.ids)
    head, tail = task.prompt.render({"context": "|", "question": "What?"}).split("|")
    assert tail.startswith(TAIL) and tail.endswith("### Assistant:")
    assert encoded.text.startswith(head) and encoded.text.endswith(tail)
    kept = encoded.text[len(head) : len(encoded.text) - len(tail)]
    assert CONTEXT.startswith(kept)
    longer = example.prompt.with_value("context", CONTEXT[: len(kept) + 1]).text
    assert n_tokens(tokenizer, longer) > max_tokens
    assert encoded.ids == tokenizer(encoded.text, verbose=False)["input_ids"]


def test_a_slow_tokenizer_is_cut_by_characters(squad, tokenizer):
    class Slow:
        is_fast = False
        bos_token_id = 0
        chat_template = None

        def __call__(self, text, add_special_tokens, verbose):
            return tokenizer(text, add_special_tokens=add_special_tokens, verbose=verbose)

    task, example = squad
    for limit in (180, 203):
        slow = encode_prompt(task, example, Slow(), max_tokens=limit)
        assert slow == encode_prompt(task, example, tokenizer, max_tokens=limit)


def test_an_instruction_too_long_by_itself_is_an_error(squad, tokenizer):
    task, example = squad
    with pytest.raises(DataError) as caught:
        encode_prompt(task, example, tokenizer, max_tokens=50, max_new_tokens=7)
    message = str(caught.value)
    assert "squad example a1 needs 16" in message
    assert "even with an empty context" in message
    assert "the model allows 50 with max_new_tokens=7" in message
    assert "lower --max-new-tokens" in message and "--shots" not in message


def test_a_task_without_context_field_is_never_cut(tokenizer):
    task = replace(load_task("gsm8k"), context_field=None)
    example = example_of(task, {"question": "How many? " * 20, "answer": "#### 1"})
    with pytest.raises(DataError, match="gsm8k example 0 needs 219 prompt tokens, the model"):
        encode_prompt(task, example, tokenizer, max_tokens=100)
    assert len(encode_prompt(task, example, tokenizer, max_tokens=219).ids) == 219


def test_shots_stay_whole_and_are_blamed_when_nothing_else_helps(tokenizer):
    task = load_task("squad")
    rows = [Row(0, ROW), Row(1, {**ROW, "id": "b", "context": "short", "question": "Why?"})]
    example = build_examples(task, rows, shots=1)[0]
    floor = n_tokens(tokenizer, example.prompt.with_value("context", "").text)
    encoded = encode_prompt(task, example, tokenizer, max_tokens=floor + 10)
    assert encoded.text.startswith(example.prompt.shots)
    assert encoded.cut_tokens > 0
    with pytest.raises(DataError, match="lower --shots, lower --max-new-tokens"):
        encode_prompt(task, example, tokenizer, max_tokens=floor - 1)


def test_no_room_at_all_is_a_configuration_error(squad, tokenizer):
    with pytest.raises(ConfigError, match="0 tokens are left for the prompt"):
        encode_prompt(*squad, tokenizer, max_tokens=0)


@pytest.fixture
def question():
    task = load_task("spec_bench")
    row = {"question_id": 1, "turns": ["Tell me a tale. " * 9], "reference": []}
    return task, example_of(task, row)


def through(tokenizer, **asked):
    return ChatOptions(**asked).template(tokenizer)


def test_prompts_go_through_the_chat_template_with_one_bos(question, chat_tokenizer):
    task, example = question
    chat = through(chat_tokenizer)
    encoded = encode_prompt(task, example, chat_tokenizer, max_tokens=999, chat=chat)
    assert encoded.text == f"<s>[user]{example.prompt.text}[assistant]"
    assert encoded.ids.count(chat_tokenizer.bos_token_id) == 1
    assert encoded.ids[0] == chat_tokenizer.bos_token_id


def test_chat_prompts_are_cut_inside_their_markup(question, chat_tokenizer):
    task, example = question
    chat = through(chat_tokenizer)
    full = encode_prompt(task, example, chat_tokenizer, max_tokens=999, chat=chat)
    cut = encode_prompt(task, example, chat_tokenizer, max_tokens=60, chat=chat)
    assert cut.text.startswith("<s>[user]Tell me") and cut.text.endswith("[assistant]")
    assert len(cut.ids) == 60
    assert cut.cut_tokens == len(full.ids) - 60


def test_chat_can_be_turned_off_and_on(question, squad, tokenizer, chat_tokenizer):
    task, example = question
    off = through(chat_tokenizer, mode="off")
    plain = encode_prompt(task, example, chat_tokenizer, max_tokens=999, chat=off)
    assert plain == encode_prompt(task, example, tokenizer, max_tokens=999)
    assert plain.text == example.prompt.text
    assert "[user]" not in encode_prompt(*squad, chat_tokenizer, max_tokens=999, chat=off).text
    for mode in ("auto", "on"):
        chat = through(chat_tokenizer, mode=mode)
        assert "[user]" in encode_prompt(*squad, chat_tokenizer, max_tokens=999, chat=chat).text
    assert through(tokenizer, mode="auto") is None
    with pytest.raises(ConfigError, match="no chat template"):
        through(tokenizer, mode="on")


def test_a_failing_chat_template_is_one_line(question, tokenizer):
    text = "{{ raise_exception('roles must alternate') }}"
    broken = SimpleNamespace(
        chat_template=text, get_chat_template=lambda: text, special_tokens_map={}, is_fast=True
    )
    with pytest.raises(ConfigError, match="chat template failed in line 1: roles must alternate"):
        encode_prompt(*question, broken, max_tokens=999, chat=through(broken))


def test_an_empty_encoding_becomes_bos_or_an_error(squad, bare_tokenizer):
    class Silent:
        is_fast = True
        chat_template = None

        def __init__(self, bos):
            self.bos_token_id = bos

        def __call__(self, text, **kwargs):
            return {"input_ids": []}

    assert encode_prompt(*squad, Silent(5), max_tokens=9).ids == [5]
    with pytest.raises(DataError, match="no BOS token"):
        encode_prompt(*squad, Silent(None), max_tokens=9)
    assert bare_tokenizer.bos_token_id is None
    assert encode_prompt(*squad, bare_tokenizer, max_tokens=999).ids[0] != 0


def test_too_long_prompts_log_no_warning(squad, tokenizer, caplog, capfd):
    logger = logging.getLogger("transformers")
    before = logger.propagate
    logger.propagate = True
    try:
        encode_prompt(*squad, tokenizer, max_tokens=200)
    finally:
        logger.propagate = before
    assert tokenizer.model_max_length == 8
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_real_articles_fit_a_small_model(real_data, tokenizer):
    from ppdbench.tasks import load_rows

    task = load_task("cnn_dailymail")
    rows = load_rows(task, str(real_data), split="validation", limit=12, offline=True)
    for example in build_examples(task, rows):
        encoded = encode_prompt(task, example, tokenizer, max_tokens=400)
        assert 397 <= len(encoded.ids) <= 400  # one character is at most four byte tokens
        assert encoded.text.endswith("\n# Summarize the article\n### Assistant:")
