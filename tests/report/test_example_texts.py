"""Prompts and outputs as they are read."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from tests.filled import print_examples


def spell(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def sample(prompt: str, output: str, **facts: Any) -> dict[str, Any]:
    about = {"task": "t", "example_id": "0", "method": "greedy", "verdict": "identical"} | facts
    return about | {"prompt_ids": list(map(ord, prompt)), "output_ids": list(map(ord, output))}


def shown(samples: Sequence[dict[str, Any]], count: int = 1) -> str:
    out = io.StringIO()
    print_examples(samples, count, spell, Console(file=out, width=60, color_system=None))
    return out.getvalue()


def test_prompt_and_output_stand_below_each_other_line_by_line() -> None:
    text = shown([sample("first\nsecond", " an answer")])
    assert text.startswith("t 0\n  prompt, 12 tokens\n    first\n    second\n")
    assert text.endswith("  output of greedy (identical), 10 tokens\n     an answer\n\n")


def test_as_many_examples_of_each_task_as_asked_for() -> None:
    samples = [sample(f"p{i}", "x", example_id=str(i), task=t) for t in "ab" for i in range(3)]
    text = shown(samples, 2)
    assert [line for line in text.splitlines() if line[:1].strip()] == ["a 0", "a 1", "b 0", "b 1"]


def test_outputs_that_are_the_same_are_shown_once() -> None:
    samples = [
        sample("p", "same"),
        sample("p", "same", method="jacobi"),
        sample("p", "other", method="early-exit", verdict="inexact"),
    ]
    text = shown(samples)
    assert text.count("    same\n") == 1
    assert "output of greedy (identical), jacobi (identical), 4 tokens" in text
    assert "output of early-exit (inexact), 5 tokens" in text


def test_nothing_in_a_text_moves_the_cursor() -> None:
    text = shown([sample("\x1b[2Jp", "a\x1b]0;title\x07\rb\x9b31m\u202ec")])
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"} & set(text)
    assert "title" in text


def test_the_middle_of_a_long_text_is_left_out_and_that_is_said() -> None:
    text = shown([sample("a" * 800 + "b" * 800, "x")])
    assert "[600 characters left out]" in text
    assert text.count("a") > 600 and text.count("b" * 56) >= 5
    assert max(map(len, text.splitlines())) <= 60


def test_a_failed_example_says_why() -> None:
    failed = sample("p", "", verdict="failed", error="out of \x1bmemory")
    assert "greedy failed: out of ␛memory" in shown([failed])
