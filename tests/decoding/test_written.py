"""The text of outputs: what stands behind the prompt, with its first blank, up to a stop string."""

from __future__ import annotations

from typing import Any

import pytest

from ppdbench.decoding.limits import Limits
from ppdbench.decoding.written import text_behind, visible_text
from ppdbench.engine.synthetic import tokenizer
from tests.words import sentencepiece

WORDS: Any = tokenizer(300, 64)
PIECES: Any = sentencepiece()
EOS = 2
CODE = "def f(x):\n    if x > 1:\n        return x\n    return 'é' + g(x) "


def stopping_at(*stop: str) -> Limits:
    return Limits(10_000, frozenset({EOS}), stop, WORDS)


@pytest.mark.parametrize(
    ("text", "stop", "seen"),
    [
        ("An answer.\n\nQ: more", ("\n\nQ:",), "An answer."),
        ("one two three", ("three", "two"), "one "),
        ("one two three", ("four",), "one two three"),
        ("one two three", (), "one two three"),
        ("stop at once", ("stop",), ""),
        ("a b a b", ("b",), "a "),
    ],
)
def test_text_is_cut_before_the_first_stop_string(
    text: str, stop: tuple[str, ...], seen: str
) -> None:
    asked = WORDS.encode("a prompt ")
    assert visible_text(WORDS, asked, WORDS.encode(text), stopping_at(*stop)) == seen


def test_special_tokens_are_not_visible() -> None:
    ids = (1, *WORDS.encode("hi"), EOS)
    assert visible_text(WORDS, (), ids, Limits(9)) == "hi"
    assert text_behind(WORDS, (), ids, special=True) == WORDS.decode(ids) != "hi"


def test_a_text_goes_on_wherever_it_is_cut() -> None:
    ids = PIECES.encode(CODE)
    cut_at_a_character = [
        n for n in range(1, len(ids) + 1) if "\ufffd" not in PIECES.decode(ids[:n])
    ]
    assert len(cut_at_a_character) == len(ids) - 1  # but within the two bytes of one
    for n in cut_at_a_character:
        before = PIECES.decode(ids[:n], skip_special_tokens=True)
        assert before + text_behind(PIECES, ids[:n], ids[n:]) == CODE


def test_the_blanks_that_a_line_of_code_begins_with_are_kept() -> None:
    prompt, body = "def f(x):\n", "    return x + 1\n"
    asked = PIECES.encode(prompt)
    output = PIECES.encode(prompt + body)[len(asked) :]
    assert PIECES.decode(output) == body[1:]  # read alone it has one less
    assert visible_text(PIECES, asked, output, Limits(99)) == body


def test_a_context_that_ends_within_a_character_changes_nothing_else() -> None:
    ids = PIECES.encode("é b")
    first = next(n for n in range(1, len(ids)) if "\ufffd" in PIECES.decode(ids[:n]))
    assert text_behind(PIECES, ids[:first], ids[first:]).endswith(" b")
