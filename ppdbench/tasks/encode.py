"""Prompts to token ids, cut to fit: the context loses its end, the instruction stays.

Cutting the finished prompt would remove the question or the "### Assistant:" that makes
the model answer. So the context alone is shortened and the template rendered again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks.chat_options import ChatTemplate
from ppdbench.tasks.examples import Example, Prompt, turn_prompts
from ppdbench.tasks.spec import Task


@dataclass(frozen=True, slots=True)
class Encoded:
    """The model's input; `text` is what `ids` encode, chat markup included."""

    ids: list[int]
    cut_tokens: int
    text: str


def encode_prompt(
    task: Task,
    example: Example,
    tokenizer: Any,
    *,
    max_tokens: int,
    chat: ChatTemplate | None = None,
    max_new_tokens: int | None = None,
) -> Encoded:
    """Encode within `max_tokens`, shortening the task's context field when it must.

    `chat` is the template that the prompt goes through, if it does through one.
    `max_new_tokens` is only for the error message (default: the task's).
    """
    if max_tokens < 1:
        raise ConfigError(f"{max_tokens} tokens are left for the prompt; lower --max-new-tokens")
    encoder = _Encoder(tokenizer, chat)
    full = encoder.encode(example.prompt)
    if len(full.ids) <= max_tokens:
        return full
    fitted = _shorten(task, example, encoder, max_tokens)
    if len(fitted.ids) > max_tokens:
        new_tokens = task.max_new_tokens if max_new_tokens is None else max_new_tokens
        raise _too_long(task, example, fitted, max_tokens, new_tokens)
    return Encoded(fitted.ids, len(full.ids) - len(fitted.ids), fitted.text)


def encode_conversation(
    task: Task,
    example: Example,
    answers: Sequence[str],
    tokenizer: Any,
    *,
    max_tokens: int,
    chat: ChatTemplate | None = None,
    max_new_tokens: int | None = None,
) -> Encoded:
    """Encode the turn that follows `answers`, with everything said before it.

    Without a chat template that is plain text: each answer goes on from its prompt, and the
    next prompt begins a new paragraph. What does not fit is cut from the end of each answer,
    all to one length, and then from the context field of the first prompt.
    """
    encoder = _Encoder(tokenizer, chat)
    prompts = turn_prompts(task, example)[: len(answers) + 1]
    full = encoder.encode(*prompts, answers=answers)
    if len(full.ids) <= max_tokens:
        return full
    fitted = _shorten_talk(task, prompts, answers, encoder, max_tokens)
    if len(fitted.ids) > max_tokens:
        new_tokens = task.max_new_tokens if max_new_tokens is None else max_new_tokens
        raise _too_long(task, example, fitted, max_tokens, new_tokens)
    return Encoded(fitted.ids, len(full.ids) - len(fitted.ids), fitted.text)


def _shorten_talk(
    task: Task, prompts: Sequence[Prompt], answers: Sequence[str], encoder: _Encoder, most: int
) -> Encoded:
    """The answers cut to as many tokens each as fit; when not even none does, the context too."""
    points = [encoder.cut_points(answer) for answer in answers]

    def answered(tokens: int) -> Encoded:
        cut = [a[: at[min(tokens, len(at) - 1)]] for a, at in zip(answers, points, strict=True)]
        return encoder.encode(*prompts, answers=cut)

    best = _longest(list(range(max(map(len, points)))), answered, most)
    name = task.context_field
    if len(best.ids) <= most or name is None:
        return best
    first, *later = prompts
    context, silent = first.values[name], [""] * len(answers)

    def upto(end: int) -> Encoded:
        shorter = first.with_value(name, context[:end])
        return encoder.encode(shorter, *later, answers=silent)

    return _longest(encoder.cut_points(context), upto, most)


def _too_long(
    task: Task, example: Example, fitted: Encoded, max_tokens: int, new_tokens: int
) -> DataError:
    emptied = f" even with an empty {task.context_field}" if task.context_field else ""
    fewer = "lower --shots, " if example.prompt.shots else ""
    return DataError(
        f"{task.name} example {example.id} needs {len(fitted.ids)} prompt tokens{emptied}, "
        f"the model allows {max_tokens} with max_new_tokens={new_tokens}; "
        f"{fewer}lower --max-new-tokens or use a model with a longer context"
    )


def _shorten(task: Task, example: Example, encoder: _Encoder, max_tokens: int) -> Encoded:
    """The longest prefix of the context that fits; if none does, the emptied prompt."""
    name = task.context_field
    if name is None:
        return encoder.encode(example.prompt)
    context = example.prompt.values[name]

    def upto(end: int) -> Encoded:
        return encoder.encode(example.prompt.with_value(name, context[:end]))

    return _longest(encoder.cut_points(context), upto, max_tokens)


def _longest(ends: list[int], upto: Callable[[int], Encoded], max_tokens: int) -> Encoded:
    """Bisect over where the context may end; the last end is known not to fit."""
    fits, too_long = 0, len(ends) - 1
    best = upto(ends[0])
    if len(best.ids) > max_tokens:
        return best
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        encoded = upto(ends[middle])
        if len(encoded.ids) <= max_tokens:
            fits, best = middle, encoded
        else:
            too_long = middle
    return best


@dataclass(frozen=True, slots=True)
class _Encoder:
    tokenizer: Any
    chat: ChatTemplate | None

    def encode(self, *prompts: Prompt, answers: Sequence[str] = ()) -> Encoded:
        """The last prompt after all others and the answers to them."""
        texts = [prompt.text for prompt in prompts]
        if self.chat is None:
            text = _plain(texts, answers)
        else:
            text = self.chat.render(self.tokenizer, texts, answers)
        # A chat template writes the special tokens itself: adding them again doubles BOS.
        # verbose=False: a prompt that is too long is cut here, no reason to warn.
        ids = self.tokenizer(text, add_special_tokens=self.chat is None, verbose=False)["input_ids"]
        return Encoded(list(ids) or self._bos(), 0, text)

    def cut_points(self, context: str) -> list[int]:
        """Character positions 0 < ... < len(context) where a token of the context ends."""
        if not self.tokenizer.is_fast:
            return list(range(len(context) + 1))
        spans = self.tokenizer(
            context, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )["offset_mapping"]
        # Several byte tokens can share one character, hence the set.
        return sorted({0, len(context), *(end for _, end in spans)})

    def _bos(self) -> list[int]:
        bos = self.tokenizer.bos_token_id
        if bos is None:
            raise DataError(
                "the prompt has no tokens in this tokenizer, which has no BOS token to start "
                "from either; give a longer prompt"
            )
        return [bos]


def _plain(texts: Sequence[str], answers: Sequence[str]) -> str:
    """One text: an answer goes on from its prompt, as the model wrote it."""
    said = [text + answer for text, answer in zip(texts, answers, strict=False)]
    return "\n\n".join([*said, texts[-1]])
