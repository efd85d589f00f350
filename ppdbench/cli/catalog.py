"""The catalog of what this package holds, as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ppdbench.engine.families import FAMILIES, members
from ppdbench.engine.gguf import source
from ppdbench.engine.known import Known, known
from ppdbench.engine.shapes import NAMED, PREFIX
from ppdbench.files import papers
from ppdbench.files.resources import reference_is_there
from ppdbench.methods import METHODS
from ppdbench.methods import method as named
from ppdbench.tasks import load_task, task_names

FAMILY_MODEL = "hub id or folder"


def methods() -> list[dict[str, Any]]:
    """Every decoding strategy with its options."""
    return [method_entry(name) for name in METHODS]


def method_entry(name: str) -> dict[str, Any]:
    """One decoding strategy with its options."""
    found = named(name)
    return {
        "name": found.name,
        "exact": found.exact,
        "trained": found.trained,
        "options": [asdict(option) for option in found.options()],
        "summary": found.summary,
        "papers": [asdict(work) for work in found.papers],
    }


def tasks() -> list[dict[str, Any]]:
    """Every shipped task."""
    return [
        {
            "name": task.name,
            "version": task.version,
            "dataset": task.dataset.hub_id,
            "split": task.dataset.split,
            "tokens": task.max_new_tokens,
            "bucket": task.bucket,
            "metrics": list(task.metrics),
        }
        for task in map(load_task, task_names())
    ]


def models() -> list[dict[str, Any]]:
    """List what --model understands: the embedded model, synthetic shapes, families."""
    fetched = "fetched" if source.smollm2().is_file() else f"not here: {source.FETCH}"
    there = "shipped with the package" if reference_is_there() else "not in this version"
    entries = [
        _llama("reference", "embedded", there),
        _llama("reference-draft", "embedded", f"its draft model, {there}"),
        _llama(source.SMOLLM2, "GGUF file", f"SmolLM2-135M-Instruct, {fetched}"),
    ]
    entries += [
        _llama(
            f"{PREFIX}{name}",
            "random weights",
            f"{shape.layers} layers, {shape.hidden} wide, vocabulary {shape.vocab}",
        )
        for name, shape in NAMED.items()
    ]
    entries += [
        {"model": FAMILY_MODEL, **asdict(found), "what": members(found.family)}
        for found in (*known().values(), *_added())
    ]
    return entries


def _llama(model: str, kind: str, what: str) -> dict[str, Any]:
    """A model of the family that all have which are not the user's own."""
    return {"model": model, **asdict(Known("llama", kind, True, "")), "what": what}


def _added() -> list[Known]:
    """Families that have an entry and are none of transformers'."""
    return [Known(name, "dense", True, "") for name in FAMILIES if name not in known()]


def tables() -> list[dict[str, Any]]:
    """The papers' tables and figures, and whether `table --run` can measure their like."""
    from ppdbench.tables import TABLES

    entries: list[dict[str, Any]] = []
    for name in papers.names():
        printed = papers.read_paper(name)
        recipe = TABLES.get(name).recipe if name in TABLES else ()
        steps = [step.name for step in recipe]
        entry = {"table": name, "title": printed["title"], "rows": len(printed["rows"])}
        paper = papers.paper_of(name)
        entry |= {"recipe": bool(steps), "steps": steps, "paper": paper.title, "link": paper.link}
        entries.append(entry)
    return entries
