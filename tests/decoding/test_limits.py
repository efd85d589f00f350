"""When outputs end, and what a reader sees of them."""

from __future__ import annotations

import random
from typing import Any

from ppdbench.decoding.limits import Limits
from ppdbench.engine.synthetic import tokenizer

WORDS: Any = tokenizer(300, 64)
EOS = 2


def first_end(text: str, limits: Limits) -> tuple[str, str | None]:
    """What was written when the limits first said stop, and why, one byte per token."""
    ids = WORDS.encode(text)
    for n in range(1, len(ids) + 1):
        why = limits.finish(ids[:n])
        if why is not None:
            return WORDS.decode(ids[:n]), why
    return text, None


def stopping_at(*stop: str, n: int = 10_000) -> Limits:
    return Limits(n, frozenset({EOS}), stop, WORDS)


# Length and end of sequence


def test_an_output_goes_on_until_it_has_its_tokens() -> None:
    limits = Limits(3)
    assert limits.finish([5]) is None
    assert limits.finish([5, 6]) is None
    assert limits.finish([5, 6, 7]) == "length"
    assert limits.finish([5, 6, 7, 8]) == "length"


def test_any_of_the_eos_ids_ends_an_output_when_it_is_the_newest() -> None:
    limits = Limits(9, frozenset({2, 7}))
    assert limits.finish([2]) == "eos"
    assert limits.finish([5, 7]) == "eos"
    assert limits.finish([5, 6]) is None


def test_without_eos_ids_no_token_is_special() -> None:
    assert Limits(9).finish([2]) is None


def test_eos_comes_before_stop_and_stop_before_length() -> None:
    ids = [*WORDS.encode("ab"), EOS]
    assert Limits(3, frozenset({EOS}), ("b",), WORDS).finish(ids) == "eos"
    assert Limits(2, frozenset({EOS}), ("b",), WORDS).finish(ids[:2]) == "stop"
    assert Limits(2, frozenset({EOS}), ("c",), WORDS).finish(ids[:2]) == "length"


# Stop strings


def test_a_stop_string_of_many_tokens_is_seen_when_its_last_one_is_written() -> None:
    assert first_end("An answer.\n\nQ: more", stopping_at("\n\nQ:")) == ("An answer.\n\nQ:", "stop")


def test_a_stop_string_inside_a_token_is_seen() -> None:
    # One token that reads ⟨259⟩; the string begins after its first character.
    limits = stopping_at("25")
    assert limits.finish([*WORDS.encode("x"), 259]) == "stop"
    assert limits.finish([*WORDS.encode("x"), 269]) is None


def test_a_stop_string_may_begin_in_one_token_and_end_in_another() -> None:
    limits = stopping_at("9⟩⟨2")
    assert limits.finish([259]) is None
    assert limits.finish([259, 260]) == "stop"
    assert limits.finish([258, 260]) is None


def test_characters_of_several_bytes_are_stop_strings_too() -> None:
    assert first_end("fine 🙂 and on", stopping_at("🙂")) == ("fine 🙂", "stop")
    assert first_end("naïve", stopping_at("ïv")) == ("naïv", "stop")


def test_the_end_of_a_long_output_is_what_is_looked_at() -> None:
    text = "x" * 500 + "🙂🙂🙂🙂" + "STOP"
    assert first_end(text + "y", stopping_at("🙂🙂🙂STOP")) == (text, "stop")


def test_the_first_of_several_stop_strings_ends_the_output() -> None:
    assert first_end("one two three", stopping_at("three", "two")) == ("one two", "stop")


def test_half_a_stop_string_ends_nothing() -> None:
    assert first_end("a STO b STO", stopping_at("STOP")) == ("a STO b STO", None)


def test_a_stop_string_may_be_a_special_token() -> None:
    assert Limits(9, frozenset(), ("</s>",), WORDS).finish([*WORDS.encode("a"), EOS]) == "stop"


def test_outputs_that_need_not_be_read_hold_no_stop_string() -> None:
    draw, found = random.Random(0), 0
    stops = (("\n#",), ("25", "x y"), ("é",), (" ",), ("🙂a",), ("9⟩⟨2", "\n\n"))
    pieces = [*WORDS.encode("\n# 25xyé🙂a é\n#\n"), 258, 259, 262, 269, 292]
    for _ in range(3000):
        stop, ids = draw.choice(stops), draw.choices(pieces, k=draw.randint(1, 9))
        there = any(s in WORDS.decode(ids) for s in stop)
        assert (stopping_at(*stop).finish(ids) == "stop") == there
        found += there
    assert found > 300


class Counting:
    """A tokenizer that says how many tokens it was handed each time."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def decode(self, ids: list[int]) -> str:
        self.read.append(len(ids))
        text: str = WORDS.decode(ids)
        return text


def test_only_what_has_the_characters_of_a_stop_string_is_read_as_a_whole() -> None:
    tokenizer = Counting()
    limits = Limits(99, frozenset(), ("ab",), tokenizer)
    for n in range(1, 7):
        assert limits.finish(WORDS.encode("bcabcb"[:n])) == ("stop" if n >= 4 else None)
    assert tokenizer.read == [1, 1, 1, 3, 4, 5, 6]
