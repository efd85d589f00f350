"""A suite file: which methods on which tasks, in YAML, so that a comparison can be repeated.

version: 1
tasks: [gsm8k, squad]
limit: 16
methods:
  - greedy
  - layerskip:exit_layer=2,draft_length=4
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdbench.files.yaml_file import read_yaml

VERSION = 1
TEXTS = (
    *("model", "dtype", "data", "split", "target", "against", "compile", "chat", "system"),
    *("batch", "prefill"),
)
NUMBERS = ("limit", "shots", "max_new_tokens", "seed", "warmup")
FLAGS = ("strict",)


@dataclass(frozen=True, slots=True)
class Suite:
    """The content of a suite file; `settings` are options of `bench` by name."""

    methods: tuple[str, ...]
    tasks: tuple[str, ...]
    settings: dict[str, Any]


def read_suite(path: Path) -> Suite:
    """The suite in `path`; unknown keys are refused."""
    keys = read_yaml(path, "suite")
    version = keys.number("version")
    if version != VERSION:
        raise keys.error(f"version {version}, but this ppdbench reads version {VERSION}")
    methods, tasks = keys.texts("methods"), keys.texts("tasks", ())
    given = set(keys.names())
    settings: dict[str, Any] = {name: keys.text(name, "-") for name in TEXTS}
    settings |= {name: keys.number(name, 0) for name in NUMBERS}
    settings |= {name: keys.flag(name, False) for name in FLAGS}
    keys.refuse_the_rest()
    if not methods:
        raise keys.error("methods is an empty list; name at least one")
    return Suite(methods, tasks, {n: value for n, value in settings.items() if n in given})
