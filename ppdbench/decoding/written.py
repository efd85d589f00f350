"""The text of outputs, as it stands behind their prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppdbench.decoding.limits import Limits

CONTEXT = 8  # tokens before an output that are decoded with it


def text_behind(
    tokenizer: Any, before: Sequence[int], output: Sequence[int], *, special: bool = False
) -> str:
    """The text that `output` adds to what stands before it; with `special` tokens, or without.

    Decoded alone it may lose the blank that it begins with: tokenizers of SentencePiece's kind
    have none at the beginning of a text.
    """

    def text(tokens: Sequence[int]) -> str:
        decoded: str = tokenizer.decode(list(tokens), skip_special_tokens=not special)
        return decoded

    context = list(before[-CONTEXT:])
    first, whole = text(context), text([*context, *output])
    # A context that ends within a character is no beginning of the whole.
    return whole[len(first) :] if whole.startswith(first) else text(output)


def visible_text(
    tokenizer: Any, prompt: Sequence[int], output: Sequence[int], limits: Limits
) -> str:
    """An output as a reader sees it: no special tokens, cut before the first stop string."""
    text = text_behind(tokenizer, prompt, output)
    ends = [at for s in limits.stop if (at := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text
