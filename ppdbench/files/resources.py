"""Files that travel with the package: tasks, prompts, builtin examples, papers' numbers.

In a checkout `tasks/`, `prompts/` and `results/papers/` stand at the top level; a wheel
carries the same files under `ppdbench/_files/`.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
# Models that trained parts travel with: heads, add-ons, a data store.
SHIPPED = ("reference", "smollm2")
# Small models that came with these to draft for them.
DRAFT_MODELS = {"reference": "reference-draft"}
CHECKOUT_FOLDERS = {"tasks": "tasks", "prompts": "prompts", "papers": "results/papers"}


def folder(kind: str) -> Path:
    """Return the folder of the files of `kind` (tasks, prompts or papers)."""
    installed = PACKAGE / "_files" / kind
    return installed if installed.is_dir() else PACKAGE.parent / CHECKOUT_FOLDERS[kind]


def builtin_data() -> Path:
    """The folder of examples written for this project, one folder per task."""
    return PACKAGE / "builtin"


def reference_model(part: str = "") -> Path:
    """Return the folder of the reference model, or of what was trained for it: `draft`, `heads`."""
    return PACKAGE / "reference" / part


def trained_part(model: str, part: str) -> Path:
    """Return the folder of what was trained for a model of `SHIPPED`, there or not."""
    return PACKAGE / model / part


def came_with(model: str, part: str) -> bool:
    """True if the package carries what was trained for a model."""
    return model in SHIPPED and trained_part(model, part).is_dir()


def reference_is_there() -> bool:
    """True if this copy of the package carries the trained reference model."""
    return (reference_model() / "config.json").is_file()


def drafting_for(model: str) -> dict[str, str]:
    """Return the option of a method that names the draft model which came with a model, if any."""
    found = DRAFT_MODELS.get(model)
    return {} if found is None else {"draft_model": found}
