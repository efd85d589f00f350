"""Prompts of any length, cut from the builtin examples: for timings where no task is asked for."""

from __future__ import annotations

import itertools
import json
from typing import Any

from ppdbench.files.resources import builtin_data


def pseudo_prompts(tokenizer: Any, count: int, length: int) -> list[list[int]]:
    """`count` prompts of exactly `length` tokens, cut from the builtin examples.

    The same for the same tokenizer; each starts at a text of its own.
    """
    texts = _builtin_texts()
    prompts = []
    for number in range(count):
        start = number * len(texts) // count
        ids: list[int] = []
        for text in itertools.chain(texts[start:], itertools.cycle(texts)):
            ids += tokenizer(text + "\n", add_special_tokens=not ids)["input_ids"]
            if len(ids) >= length:
                break
        prompts.append(ids[:length])
    return prompts


def _builtin_texts() -> list[str]:
    """The longest text of every builtin example."""
    found = []
    for path in sorted(builtin_data().glob("*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            texts = _strings(json.loads(line))
            found.append(max(texts, key=len))
    return found


def _strings(value: Any) -> list[str]:
    """List all strings in a JSON value, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []
