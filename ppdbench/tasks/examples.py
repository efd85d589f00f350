"""Rows into examples: prompt, references, user turns, and worked examples in front."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ppdbench.errors import ConfigError, DataError
from ppdbench.files.keys import kind
from ppdbench.tasks.columns import any_texts_at, find_first, refuse_halves, text_at, texts_at
from ppdbench.tasks.data import Row
from ppdbench.tasks.spec import Task, opening_field
from ppdbench.tasks.templates import Template


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered prompt that can be rendered again with other values."""

    text: str
    template: Template
    values: Mapping[str, str]
    shots: str = ""  # worked examples, standing in front of the template

    @staticmethod
    def render(template: Template, values: Mapping[str, str], shots: str = "") -> Prompt:
        """Fill the template."""
        return Prompt(shots + template.render(values), template, values, shots)

    def with_value(self, name: str, value: str) -> Prompt:
        """The same prompt with one variable changed."""
        return Prompt.render(self.template, {**self.values, name: value}, self.shots)


@dataclass(frozen=True, slots=True)
class Example:
    """One question to a model; `turns` are all user messages, most often just one."""

    id: str
    task: str
    prompt: Prompt
    references: tuple[str, ...]
    turns: tuple[str, ...]
    row: Mapping[str, object]


def turn_prompts(task: Task, example: Example) -> tuple[Prompt, ...]:
    """Return the user's message in each turn; worked examples stand before the first alone."""
    first, name = example.prompt, opening_field(task)
    if name is None:
        return (first,)
    later = [Prompt.render(first.template, {**first.values, name: t}) for t in example.turns[1:]]
    return (first, *later)


def build_examples(
    task: Task,
    rows: Sequence[Row],
    *,
    shots: int = 0,
    shot_rows: Sequence[Row] = (),
    seed: int = 0,
) -> list[Example]:
    """Examples in the order of `rows`, each behind `shots` worked ones from `shot_rows`.

    Without `shot_rows` the worked examples come from `rows`. Which ones depends on the
    seed and the example's id alone, so it does not change with the limit or the order.
    """
    if shots < 0:
        raise ConfigError(f"shots={shots}; use 0 or more")
    if shots and task.shot is None:
        raise ConfigError(f"the task {task.name} has no `shot` format; use --shots 0")
    examples = [_example(task, row) for row in rows]
    _refuse_repeated_ids(task, examples, rows)
    if not shots:
        return examples
    pool = _ShotPool(task, shot_rows or rows, shots, seed)
    return [_with_shots(example, pool.choose(example)) for example in examples]


def _example(task: Task, row: Row) -> Example:
    example_id = _id(task, row)
    where = f"{task.name} example {example_id} ({row.place})"
    columns = row.columns
    values = {name: text_at(columns, paths, where) for name, paths in task.fields.items()}
    prompt = Prompt.render(task.prompt, values)
    if not prompt.text.strip():
        raise DataError(f"{where}: the prompt {task.prompt.name} renders to nothing")
    references = _references(task, columns, where)
    turns = texts_at(columns, task.turns, where) if task.turns else (prompt.text,)
    return Example(example_id, task.name, prompt, references, turns, columns)


def _references(task: Task, columns: Mapping[str, object], where: str) -> tuple[str, ...]:
    """Reference texts; one per turn in conversations, where some turns have none.

    Where no metric reads them a row may do without, and have them in any nesting.
    """
    if not task.reference or not task.metrics:
        return any_texts_at(columns, task.reference, where)
    references = texts_at(columns, task.reference, where, may_be_empty=True)
    if not any(references):
        names = " or ".join(map(repr, task.reference))
        raise DataError(
            f"{where}: column {names} holds no reference, which {task.metrics[0]} needs"
        )
    return references


def _id(task: Task, row: Row) -> str:
    path, value = find_first(row.columns, task.id)
    if not path:
        return str(row.number)
    where = f"{task.name} {row.place}: column {path!r}"
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{where} must be an id (text or whole number), not {kind(value)}")
    refuse_halves(str(value), where)
    return str(value)


def _refuse_repeated_ids(task: Task, examples: Sequence[Example], rows: Sequence[Row]) -> None:
    seen: dict[str, int] = {}
    for example, row in zip(examples, rows, strict=True):
        if example.id in seen:
            raise DataError(
                f"{task.name}: rows {seen[example.id]} and {row.number} have the same id "
                f"{example.id!r}; make the ids unique"
            )
        seen[example.id] = row.number


def _with_shots(example: Example, shots: str) -> Example:
    prompt = Prompt(shots + example.prompt.text, example.prompt.template, example.prompt.values)
    return replace(example, prompt=replace(prompt, shots=shots))


class _ShotPool:
    """Worked examples, rendered when first drawn: a training split can be large."""

    def __init__(self, task: Task, rows: Sequence[Row], shots: int, seed: int) -> None:
        self._task = task
        self._rows = rows
        self._shots = shots
        self._seed = seed
        self._made: dict[int, tuple[Example, str]] = {}

    def choose(self, example: Example) -> str:
        """The text of the worked examples for this one, never showing its own answer."""
        rng = random.Random(f"{self._seed}/{self._task.name}/{example.id}")
        chosen: list[str] = []
        drawn: set[int] = set()
        while len(chosen) < self._shots and len(drawn) < len(self._rows):
            index = rng.randrange(len(self._rows))
            if index not in drawn:
                drawn.add(index)
                shot, text = self._get(index)
                # By content: the pool is often another split, where ids mean other rows.
                if shot.prompt.values != example.prompt.values:
                    chosen.append(text)
        if len(chosen) < self._shots:
            examples = "example is" if len(chosen) == 1 else "examples are"
            raise ConfigError(
                f"--shots {self._shots}, but only {len(chosen)} worked {examples} available "
                f"for {self._task.name} example {example.id}; lower --shots or give more data"
            )
        return "".join(chosen)

    def _get(self, index: int) -> tuple[Example, str]:
        if index not in self._made:
            shot = _example(self._task, self._rows[index])
            if not any(shot.references):
                raise DataError(
                    f"{self._task.name} example {shot.id} has no reference, "
                    "so it cannot be shown as a worked example; use --shots 0"
                )
            assert self._task.shot is not None
            text = self._task.shot.render(
                {"prompt": shot.prompt.text, "reference": next(filter(None, shot.references))}
            )
            self._made[index] = (shot, text)
        return self._made[index]
