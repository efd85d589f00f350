"""Texts of some examples to be read: prompts that went into a model, outputs that came out."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rich.console import Console
from rich.text import Text

from ppdbench.report.grid import visible_title
from ppdbench.runs.records import FailedSample, Sample

Spell = Callable[[Sequence[int]], str]

INDENT = "    "
BEGINNING, END = 700, 300  # characters that are shown of a longer text
NARROWEST = 40


def print_examples(samples: Sequence[Sample], count: int, spell: Spell, console: Console) -> None:
    """The first `count` examples of each task: the prompt, then what each method wrote."""
    for example in _chosen(samples, count):
        first = example[0]
        console.print(Text(visible_title(f"{first.task} {first.example_id}"), style="bold"))
        _print_text("prompt", first.prompt_ids, spell, console)
        for title, ids in _outputs(example):
            _print_text(title, ids, spell, console)
        console.print()


def _chosen(samples: Sequence[Sample], count: int) -> Iterator[list[Sample]]:
    """The samples of each example that is shown."""
    tasks: dict[str, dict[str, list[Sample]]] = {}
    for sample in samples:
        examples = tasks.setdefault(sample.task, {})
        examples.setdefault(sample.example_id, []).append(sample)
    for examples in tasks.values():
        yield from islice(examples.values(), count)


def _outputs(example: Sequence[Sample]) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield each different output of an example once, under the names of all whose it is."""
    same: dict[tuple[int, ...], list[str]] = {}
    for sample in example:
        if isinstance(sample, FailedSample):
            yield f"{sample.method} failed: {sample.error}", ()
        else:
            same.setdefault(tuple(sample.output_ids), []).append(_whose(sample))
    for ids, whose in same.items():
        yield f"output{' of ' * any(whose)}{', '.join(filter(None, whose))}", ids


def _whose(sample: Sample) -> str:
    """The method and its verdict; of a probe there is one output and no method."""
    if sample.target is not None:
        return "" if sample.target == "greedy" else f"the {sample.target} target"
    verdict = sample.verdict
    return f"{sample.method} ({verdict})" if verdict else str(sample.method)


def _print_text(title: str, ids: Sequence[int], spell: Spell, console: Console) -> None:
    tokens = f", {len(ids)} tokens" if ids else ""
    console.print(Text(visible_title(f"  {title}{tokens}"), style="dim"), soft_wrap=True)
    room = max(NARROWEST, console.width - len(INDENT))
    for line in _shortened(spell(ids)).splitlines() if ids else ():
        parts = textwrap.wrap(visible_title(line), room, replace_whitespace=False) or [""]
        for part in parts:
            console.print(Text(INDENT + part), soft_wrap=True)


def _shortened(text: str) -> str:
    """A text whose middle is left out where it is long, which is said."""
    left_out = len(text) - BEGINNING - END
    if left_out <= 0:
        return text
    return f"{text[:BEGINNING]}\n[{left_out} characters left out]\n{text[-END:]}"
