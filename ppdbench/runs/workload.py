"""The workload of a run: tasks and examples, read before any weights, encoded after."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import REFERENCE, Loaded, ModelSpec
from ppdbench.errors import ConfigError, counted
from ppdbench.runs.records import Header, Sample, Source
from ppdbench.runs.samples import Key
from ppdbench.runs.shards import ALONE, Shard
from ppdbench.scoring import unscored
from ppdbench.tasks import (
    ChatOptions,
    ChatTemplate,
    Example,
    Task,
    build_examples,
    data_files,
    encode_prompt,
    load_rows,
    load_shot_rows,
    load_task,
    stands_in,
)
from ppdbench.tasks.spec import MOST_TOKENS

Report = Callable[[str, int, "int | None"], None]


def silent(text: str, done: int, total: int | None) -> None:
    """Report nothing."""


# Called with a line for people, before the work that it is about.
Warn = Callable[[str], None]


def unheard(text: str) -> None:
    """Warn nobody."""


def usual_data(data: str | None, model: str | None) -> str:
    """Return the source of examples: builtin with the embedded model, the hub with any other."""
    if data == "":
        raise ConfigError("--data is empty; use hub, builtin or a path")
    return data or ("builtin" if model in (None, REFERENCE) else "hub")


def without_score(task: str, examples: Sequence[str]) -> str:
    """Say which examples have a reference that cannot be scored."""
    named = ", ".join(examples[:5]) + (", ..." if len(examples) > 5 else "")
    return (
        f"{task}: no score for {counted(len(examples), 'example')}, whose reference "
        f"holds no answer to compare with: id {named}"
    )


# Of English text; for reckoning memory, where a factor of two matters little.
CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The options of every run."""

    model: ModelSpec
    tasks: tuple[str, ...]
    data: str = "hub"
    split: str | None = None
    limit: int | None = None
    shots: int = 0
    max_new_tokens: int | None = None
    seed: int = 0
    threads: int | None = None
    chat: ChatOptions = field(default_factory=ChatOptions)

    def __post_init__(self) -> None:
        if not self.tasks or not all(self.tasks):
            raise ConfigError("--task is empty; give a task's name or a task file")
        repeated = sorted({t for t in self.tasks if self.tasks.count(t) > 1})
        if repeated:
            raise ConfigError(f"task {', '.join(repeated)} is given twice")
        for name in ("limit", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value}: use 1 or more")
        if self.max_new_tokens is not None and self.max_new_tokens > MOST_TOKENS:
            raise ConfigError(f"--max-new-tokens {self.max_new_tokens}: use {MOST_TOKENS} or less")
        if self.shots < 0:
            raise ConfigError(f"--shots {self.shots}: use 0 or more")

    def new_tokens(self, task: Task) -> int:
        """Return the number of tokens that examples of `task` get."""
        return self.max_new_tokens or task.max_new_tokens


@dataclass(frozen=True, slots=True)
class Item:
    """One example, ready to decode, or a later turn of one, whose prompt is made on the way."""

    task: Task
    example: Example
    ids: list[int]
    cut_tokens: int
    max_new_tokens: int
    turn: int = 1
    after: Item | None = None  # the turn before; `conversation` says what follows from it
    answers: tuple[str, ...] = ()  # to the turns before
    room: int = 0  # tokens that the prompt will have at most, where it is not there yet
    number: int = 0  # of its example among all of the run
    chat: ChatTemplate | None = None  # that its prompt goes through

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end its output."""
        return self.task.stop if self.chat is None else self.task.chat_stop

    def key(self, method: str, target: str | None = None) -> Key:
        """Return the key under which its sample of a method is found."""
        return (self.task.name, self.example.id, method, target)


@dataclass(slots=True)
class Workload:
    """The examples of every task of a run."""

    config: RunConfig
    examples: list[tuple[Task, list[Example]]] = field(default_factory=list)
    sources: dict[str, Source] = field(default_factory=dict)
    tests: dict[str, Sequence[str]] = field(default_factory=dict)  # of programs that run, by task

    @classmethod
    def read(cls, config: RunConfig, warn: Warn = unheard) -> Workload:
        """Read and render all examples, so that bad input is told before weights load."""
        work, tasks = cls(config), dict[str, Task]()
        for name in config.tasks:  # all files before anything that may lie on the network
            task = load_task(name)
            if task.name in tasks:
                raise ConfigError(f"task {task.name} is given twice, once as {name}")
            if config.data != "hub":
                data_files(task, config.data, config.split)
            tasks[task.name] = task
        for task in tasks.values():
            work._read_task(task)
            if lacking := work.sources[task.name].unscored:
                warn(without_score(task.name, lacking))
        return work

    def _read_task(self, task: Task) -> None:
        config, offline = self.config, self.config.model.offline
        rows = load_rows(task, config.data, split=config.split, limit=config.limit, offline=offline)
        pool = (
            load_shot_rows(task, config.data, split=config.split, offline=offline)
            if config.shots
            else []
        )
        examples = build_examples(task, rows, shots=config.shots, shot_rows=pool, seed=config.seed)
        self.examples.append((task, examples))
        self.sources[task.name] = Source(
            version=task.version,
            metrics=list(task.metrics),
            **self._of_examples(task, examples),
            **self._file(task),
        )

    def _of_examples(self, task: Task, examples: list[Example]) -> dict[str, Any]:
        """Return what a source says of these examples."""
        tests = self.tests.get(task.name)
        return {
            "examples": len(examples),
            "sha256": self._digest(task, examples),
            "turns": sum(len(e.turns) for e in examples) if task.turns else None,
            # They will be decoded all the same.
            "unscored": [e.id for e in examples if unscored(task.metrics, e.references)] or None,
            "tests_sha256": None if tests is None else _hashed(tests[: len(examples)]),
        }

    def _file(self, task: Task) -> dict[str, Any]:
        if self.config.data == "hub":
            return {"hub_id": str(task.dataset.hub_id)}
        files = data_files(task, self.config.data, self.config.split)
        if self.config.split is None and stands_in(task, self.config.data, files):
            return {"file": files.name, "in_place_of": task.dataset.split}
        return {"file": files.name}

    def take_tests(self, name: str, tests: Sequence[str]) -> None:
        """Keep the tests of a task's programs, one for each example: its source has their hash."""
        self.tests[name] = tests
        self.sources[name] = self.first(name, len(tests))

    def first(self, name: str, count: int) -> Source:
        """The source of a task's first examples alone, to be held against an earlier run's."""
        task, examples = next(pair for pair in self.examples if pair[0].name == name)
        return replace(self.sources[name], **self._of_examples(task, examples[:count]))

    @staticmethod
    def _digest(task: Task, examples: list[Example]) -> str:
        """A hash of the prompts themselves: same hash, same questions."""
        parts = [task.name]
        for example in examples:
            first = f"{example.prompt.shots}{example.prompt.text}"
            parts += [f"\0{part}" for part in (example.id, first, *example.turns[1:])]
        return _hashed(parts)

    def context(self) -> int:
        """About how many tokens the longest example takes, before there is a tokenizer."""
        lengths = (
            len(example.prompt.text) // CHARACTERS_PER_TOKEN + self.config.new_tokens(task)
            for task, examples in self.examples
            for example in examples
        )
        return max(lengths, default=0)

    def encode(self, loaded: Loaded) -> list[Item]:
        """Encode all examples as token ids that fit the model."""
        chat = self.config.chat.template(loaded.tokenizer)
        every = [(task, example) for task, examples in self.examples for example in examples]
        return [self._encode(*one, number, loaded, chat) for number, one in enumerate(every)]

    def _encode(
        self,
        task: Task,
        example: Example,
        number: int,
        loaded: Loaded,
        chat: ChatTemplate | None,
    ) -> Item:
        new_tokens = self.config.new_tokens(task)
        room = loaded.max_positions - new_tokens
        if room < 1:
            raise ConfigError(
                f"--max-new-tokens {new_tokens} leaves no room for a prompt: the model handles "
                f"{loaded.max_positions} tokens"
            )
        encoded = encode_prompt(
            task, example, loaded.tokenizer, max_tokens=room, chat=chat, max_new_tokens=new_tokens
        )
        return Item(
            task, example, encoded.ids, encoded.cut_tokens, new_tokens, number=number, chat=chat
        )


def _hashed(parts: Sequence[str]) -> str:
    """A hash of texts one behind the other."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run that is done: where it lies and what it found."""

    path: Path
    header: Header
    samples: Sequence[Sample]
    cut: dict[tuple[str, str], int]  # task and example id -> prompt tokens cut
    torn: bool  # an incomplete last line was found and done again
    cut_off: Sequence[Path] = ()  # files that lost one for which nothing was done again
    shard: Shard = ALONE
    missing: int = 0  # samples that are for others to make, who have not (yet)
    spell: Callable[[Sequence[int]], str] = str  # token ids as text


def asked(item: Item) -> dict[str, Any]:
    """Name the fields in which every record of an example says what was asked."""
    return {
        "example_id": item.example.id,
        "task": item.task.name,
        "number": item.number,
        "cut_tokens": item.cut_tokens,
        "prompt_ids": item.ids,
    }


def capacity(items: list[Item]) -> int:
    """Cache rows that the longest of `items` needs."""
    return max((max(len(i.ids), i.room) + i.max_new_tokens for i in items), default=1)


def limits_of(item: Item, loaded: Loaded) -> Limits:
    """Return what ends the output of an example."""
    return Limits(item.max_new_tokens, loaded.eos_ids, item.stop, loaded.tokenizer)
