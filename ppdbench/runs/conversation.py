"""Questions of several turns: each later one asks about the answers to those before.

A later turn is an example of its own, `81/2` after `81`, with a verdict of its own. Its prompt
holds the earlier messages and greedy's answers to them, so that every method is asked the same
and its output can be compared. That prompt cannot be made before greedy has answered; until
then the item knows only how long it may become.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ppdbench.engine.loading import Loaded
from ppdbench.errors import DataError
from ppdbench.runs.workload import Item
from ppdbench.tasks import Example, encode_conversation

# A text that is encoded again can have other tokens than were decoded, and more of them.
SPARE = 16


def with_later_turns(items: Iterable[Item], loaded: Loaded) -> list[Item]:
    """Put behind each item its later turns, if it has some."""
    made = [turn for item in items for turn in _turns(item, loaded)]
    keys = [(item.task.name, item.example.id) for item in made]
    if len(set(keys)) < len(keys):
        task, name = next(key for key in keys if keys.count(key) > 1)
        raise DataError(f"{task}: {name!r} is an example's id and a turn of another; rename one")
    return made


def _turns(item: Item, loaded: Loaded) -> list[Item]:
    example = item.example
    turns = [replace(item, example=_of_turn(example, 1))]
    for turn in range(2, len(example.turns) + 1):
        later = replace(item, example=_of_turn(example, turn), ids=[], cut_tokens=0, turn=turn)
        turns.append(replace(later, after=turns[-1], room=_room(later, loaded)))
    return turns


def _of_turn(example: Example, turn: int) -> Example:
    """The example of one turn; references go with it where there is one for each."""
    each = len(example.turns) > 1 and len(example.references) == len(example.turns)
    references = example.references[turn - 1 : turn] if each else example.references
    name = example.id if turn == 1 else f"{example.id}/{turn}"
    return replace(example, id=name, references=references)


def _room(item: Item, loaded: Loaded) -> int:
    """The most tokens that the prompt can have; an error where not even the questions fit."""
    fits = loaded.max_positions - item.max_new_tokens
    before = item.turn - 1
    unanswered = _encoded(item, ("",) * before, fits, loaded.tokenizer)
    return min(fits, len(unanswered.ids) + before * (item.max_new_tokens + SPARE))


def continued(item: Item, before: Item, answer: str, tokenizer: Any) -> Item:
    """A later turn with its prompt, now that the turn before it has been answered."""
    answers = (*before.answers, answer)
    encoded = _encoded(item, answers, item.room, tokenizer)
    return replace(item, ids=encoded.ids, cut_tokens=encoded.cut_tokens, answers=answers)


def _encoded(item: Item, answers: tuple[str, ...], max_tokens: int, tokenizer: Any) -> Any:
    return encode_conversation(
        item.task,
        item.example,
        answers,
        tokenizer,
        max_tokens=max_tokens,
        chat=item.chat,
        max_new_tokens=item.max_new_tokens,
    )
