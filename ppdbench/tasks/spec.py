"""The task file: what it may say, checked key by key, so that a typo is never a default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ppdbench.errors import UnknownName
from ppdbench.files import resources
from ppdbench.files.keys import Keys
from ppdbench.files.yaml_file import read_yaml
from ppdbench.tasks.templates import RESERVED, Template

METRICS = (
    "rouge1",
    "rouge2",
    "rougeL",
    "squad_em",
    "squad_f1",
    "bleu",
    "chrf",
    "gsm8k_accuracy",
    "humaneval_pass1",
    "topv2_exact_match",
)

MOST_TOKENS = 1 << 20  # of an output; longer than any model's context

# What `code` names the columns of.
CODE_PARTS = ("prompt", "test", "entry_point")

Columns = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The hub's place of the data; `hub_id` is None for a set that is not there."""

    hub_id: str | None
    config: str | None
    split: str
    # Read the one split over the network instead of downloading every split first.
    streaming: bool = False
    # Where a set without hub id can be found, in words.
    obtain: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task file. A column is a dotted path; of several, the first that exists is read.

    A None among a field's columns means: when no column exists, the text is empty.
    """

    name: str
    version: int
    description: str
    dataset: Dataset
    fields: Mapping[str, Columns]
    id: Columns  # empty: the row number
    prompt: Template
    reference: Columns
    turns: Columns  # the column holding all user messages of a conversation; empty: none
    max_new_tokens: int
    bucket: int
    stop: tuple[str, ...]  # ends of answers to plain prompts
    chat_stop: tuple[str, ...]  # of answers through a chat template, which end by themselves
    metrics: tuple[str, ...]
    context_field: str | None
    shot: Template | None
    shots_split: str | None
    code: Mapping[str, Columns]  # the parts of a program that tests a completion; empty: none
    source: str


def opening_field(task: Task) -> str | None:
    """The template variable that holds the first user message of a conversation."""
    firsts = {f"{column}.0" for column in task.turns}
    return next((name for name, columns in task.fields.items() if firsts & set(columns)), None)


def task_names() -> list[str]:
    """The tasks that come with the package."""
    return sorted(path.stem for path in resources.folder("tasks").glob("*.yaml"))


def load_task(name_or_path: str) -> Task:
    """A shipped task by name, or a task file by path."""
    path = Path(name_or_path).expanduser()
    is_path = path.suffix in (".yaml", ".yml") or len(path.parts) != 1 or os.sep in name_or_path
    if not is_path:
        if name_or_path not in task_names():
            raise UnknownName("task", name_or_path, task_names())
        path = resources.folder("tasks") / f"{name_or_path}.yaml"
    return _build(read_yaml(path), path)


def _build(keys: Keys, path: Path) -> Task:
    if "chat" in keys.names():
        raise keys.error("chat is no key of task files; --chat on, off or auto says it for a run")
    fields = _fields(keys)
    task = Task(
        name=keys.text("name"),
        version=keys.number("version"),
        description=keys.text("description"),
        dataset=_dataset(keys.section("dataset")),
        fields=fields,
        id=keys.columns("id", none_allowed=False),
        prompt=_prompt(keys, path),
        reference=keys.columns("reference", none_allowed=False),
        turns=keys.columns("turns", default=None, none_allowed=False),
        max_new_tokens=keys.number("max_new_tokens"),
        bucket=keys.number("bucket"),
        stop=keys.texts("stop", default=()),
        chat_stop=keys.texts("chat_stop", default=()),
        metrics=keys.texts("metrics", default=()),
        context_field=keys.optional_text("context_field", default=None),
        shot=_shot(keys),
        shots_split=keys.optional_text("shots_split", default=None),
        code=_code(keys),
        source=str(path),
    )
    keys.refuse_the_rest()
    _check(task, keys)
    return task


def _dataset(keys: Keys) -> Dataset:
    dataset = Dataset(
        hub_id=keys.optional_text("hub_id"),
        config=keys.optional_text("config", default=None),
        split=keys.text("split"),
        streaming=keys.flag("streaming", default=False),
        obtain=keys.optional_text("obtain", default=None),
    )
    keys.refuse_the_rest()
    return dataset


def _fields(keys: Keys) -> dict[str, Columns]:
    section = keys.section("fields")
    fields = {name: section.columns(name) for name in section.names()}
    if not fields:
        raise keys.error("fields must name at least one template variable and its column")
    for name, columns in fields.items():
        if not name.isidentifier() or name in RESERVED:
            raise keys.error(f"fields: {name!r} cannot be the name of a template variable")
        if not any(columns):
            raise keys.error(f"fields: {name} must name a column")
    return fields


def _prompt(keys: Keys, path: Path) -> Template:
    file = keys.optional_text("prompt", default=None)
    text = keys.optional_text("prompt_text", default=None)
    if (file is None) == (text is None):
        raise keys.error("give either prompt: FILE.jinja or prompt_text: TEXT, one of the two")
    if file is None:
        assert text is not None
        return Template(f"{path.name} prompt_text", _without_last_newline(text))
    content = _read_prompt(keys, path.parent, file)
    return Template(file, _without_last_newline(content))


def _without_last_newline(text: str) -> str:
    """The newline that ends a text file (or a YAML block) is not part of the prompt."""
    return text.removesuffix("\n").removesuffix("\r")


def _read_prompt(keys: Keys, folder: Path, name: str) -> str:
    """The file beside the YAML, or the shipped prompt of that name."""
    path = _place_of_prompt(keys, folder, name)
    try:
        # Bytes: read_text would turn \r\n into \n, which is Jinja's to do.
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise keys.error(
            f"prompt {name} is not UTF-8 (byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise keys.error(f"prompt {name!r} cannot be read ({error.strerror})") from error


def _place_of_prompt(keys: Keys, folder: Path, name: str) -> Path:
    """Find a prompt: in the task file's folder or among those shipped, nowhere else.

    A task file may come from anyone, and what it names as its prompt is sent to a model.
    """
    homes = [home.resolve() for home in (folder, resources.folder("prompts"))]
    places = [(home / name).resolve() for home in homes] if _is_name(name) else []
    # Links are followed, so that none of them leads out.
    within = [place for home, place in zip(homes, places, strict=False) if home in place.parents]
    found = next((place for place in within if place.is_file()), None)
    if found is not None:
        return found
    known = ", ".join(sorted(path.name for path in homes[1].glob("*.jinja")))
    where = f"give a file in the folder of the task file, or one of the shipped prompts: {known}"
    if len(within) < len(homes):
        raise keys.error(f"prompt {name!r} lies outside the folder of the task file; {where}")
    raise keys.error(f"prompt {name!r} is no file; {where}")


def _is_name(name: str) -> bool:
    """True if a path can be looked for in a folder."""
    return not Path(name).is_absolute() and "\0" not in name


def _shot(keys: Keys) -> Template | None:
    text = keys.optional_text("shot", default=None)
    return None if text is None else Template(f"{keys.where} shot", text)


def _code(keys: Keys) -> dict[str, Columns]:
    if "code" not in keys.names():
        return {}
    section = keys.section("code")
    code = {part: section.columns(part, none_allowed=False) for part in CODE_PARTS}
    section.refuse_the_rest()
    return code


def _check(task: Task, keys: Keys) -> None:
    """Refuse what no single key shows: bad lengths, metric names, template variables."""
    for name in ("version", "max_new_tokens", "bucket"):
        if getattr(task, name) < 1:
            raise keys.error(f"{name} must be 1 or more, not {getattr(task, name)}")
    if task.max_new_tokens > MOST_TOKENS:
        raise keys.error(f"max_new_tokens must be {MOST_TOKENS} or less")
    if task.max_new_tokens % task.bucket:
        raise keys.error(
            f"bucket {task.bucket} does not divide max_new_tokens {task.max_new_tokens}"
        )
    for metric in task.metrics:
        if metric not in METRICS:
            raise UnknownName(f"metric in {keys.where}", metric, METRICS)
    if "humaneval_pass1" in task.metrics and not task.code:
        raise keys.error("humaneval_pass1 needs code: {prompt: ..., test: ..., entry_point: ...}")
    if task.turns and opening_field(task) is None:
        raise keys.error(f"turns: {task.turns[0]} needs a field that reads {task.turns[0]}.0")
    for name in ("stop", "chat_stop"):
        if "" in getattr(task, name):
            raise keys.error(f"{name} must not hold an empty string: it would stop all at once")
    if task.context_field is not None and task.context_field not in task.fields:
        raise keys.error(
            f"context_field {task.context_field!r} is not one of fields: {', '.join(task.fields)}"
        )
    task.prompt.check(frozenset(task.fields))
    if task.shot is not None:
        task.shot.check(frozenset({"prompt", "reference"}))
