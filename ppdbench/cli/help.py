"""`--help` of commands with many options: the ones people need first, then the rest by heading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

FIRST = "Needed first"
OWN = "More of this command"
AT_MOST = 10  # options under the first heading

# What options are about, by the names of their parameters.
HEADINGS = {
    "Model": (
        *("model", "gguf", "as_stored", "revision", "adapter", "dtype", "quantize"),
        *("offline", "trust_remote_code", "no_family_check"),
    ),
    "Machine": ("device", "device_map", "max_memory", "threads", "pin", "compile"),
    "Tasks and data": (
        "tasks",
        "task",
        "data",
        "split",
        "limit",
        "shots",
        "max_new_tokens",
        "seed",
    ),
    "Chat templates": ("chat", "system", "chat_pairs"),
    "Text to train on": ("text", "held_out", "split_by", "column", "max_documents"),
    "Steps": (
        *("steps", "epochs", "batch_size", "micro_batch", "sequence", "learning_rate", "schedule"),
        *("warmup_ratio", "weight_decay", "beta2", "clip", "precision", "checkpoint_every"),
    ),
    "How tokens are picked": ("target", "targets", "top_k", "top_p", "temperature", "strict"),
    "Measuring": ("warmup", "profile", "prompt_tokens", "new_tokens", "rounds"),
    "Scoring": ("allow_code_execution", "answers"),
    "Results": (
        *("out", "form", "exports", "plot", "heatmap", "timeline", "show", "show_example"),
        *("resume", "shard", "salvage", "save_dtype", "dry_run", "help"),
    ),
}


class Command(click.Command):
    """A command whose help begins with the options named in `first`."""

    def __init__(self, *arguments: Any, first: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.first = tuple(first)

    def sections(self, ctx: click.Context) -> Iterator[tuple[str, list[click.Parameter]]]:
        """Headings, each with its options."""
        options = {str(p.name): p for p in self.get_params(ctx) if isinstance(p, click.Option)}
        yield FIRST, [options.pop(name) for name in self.first]
        groups: dict[str, list[click.Parameter]] = {heading: [] for heading in (OWN, *HEADINGS)}
        for name, option in options.items():
            groups[_heading(name)].append(option)
        yield from ((heading, group) for heading, group in groups.items() if group)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """All options, by heading."""
        if not self.first:
            super().format_options(ctx, formatter)
            return
        for heading, options in self.sections(ctx):
            records = [record for o in options if (record := o.get_help_record(ctx)) is not None]
            with formatter.section(heading):
                formatter.write_dl(records)


def _heading(name: str) -> str:
    return next((heading for heading, names in HEADINGS.items() if name in names), OWN)
