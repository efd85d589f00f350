"""Scoring of a model that was trained: tasks, decoded by several methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import chosen_chat, notice
from ppdbench.cli.options import chat_options, data_option, stack
from ppdbench.errors import ConfigError
from ppdbench.report.progress import progress

if TYPE_CHECKING:
    from ppdbench.bench.runner import DecodeConfig
    from ppdbench.tasks import ChatOptions

scoring_options = stack(
    click.option("--task", "tasks", multiple=True, help="Task to score every exit on afterwards."),
    data_option,
    click.option("--limit", type=int, help="Use the first N examples of each task (all)."),
    chat_options,
)


@dataclass(frozen=True, slots=True)
class Scoring:
    """The quality of outputs read out in several ways, as a run folder beside the model."""

    tasks: tuple[str, ...]
    data: str
    limit: int | None
    device: str
    chat: ChatOptions

    @classmethod
    def asked(cls, options: dict[str, Any], trained: str | None) -> Scoring | None:
        """Take what is to be scored, if anything is, out of `options`.

        `trained` is the model that is trained further, or the shape of a new one.
        """
        from ppdbench.runs.workload import usual_data

        tasks, data, limit = (options.pop(name) for name in ("tasks", "data", "limit"))
        chat = chosen_chat(options)
        if tasks:
            return cls(tasks, usual_data(data, trained), limit, options["device"], chat)
        if chat != type(chat)():
            raise ConfigError("chat templates are for what is scored afterwards; add --task")
        if limit is not None or data is not None:
            raise ConfigError("--data and --limit are for what is scored afterwards; add --task")
        return None

    def check(self, model: Path) -> None:
        """Read the examples once before the training, after which a wrong name would be late."""
        from ppdbench.runs.workload import Workload

        Workload.read(self._config(model, ("greedy",)))

    def carry_out(self, model: Path, methods: Sequence[str]) -> None:
        """Decode with every method, and print how good the outputs are."""
        from ppdbench.bench.runner import run_decode
        from ppdbench.bench.summary import summarize
        from ppdbench.bench.sums import add_up
        from ppdbench.report import decode_tables
        from ppdbench.report.export import emit
        from ppdbench.runs.running import Destination

        config = self._config(model, methods)
        with progress() as report:
            out = model / "exits"
            begun = (out / "run.json").is_file()
            to = Destination(out=out, resume=begun, report=report)
            scored = run_decode(config, to, kind="bench")
        found = summarize(scored.header, add_up(scored.samples))
        emit([decode_tables.scores_sheet(found)], None, "table")
        notice(f"run: {scored.path}")

    def _config(self, model: Path, methods: Sequence[str]) -> DecodeConfig:
        from ppdbench.bench.runner import Choice, DecodeConfig
        from ppdbench.engine.loading import ModelSpec

        return DecodeConfig(
            model=ModelSpec(name=str(model.absolute()), device=self.device),
            tasks=self.tasks,
            data=self.data,
            limit=self.limit,
            chat=self.chat,
            methods=tuple(map(Choice.parse, methods)),
            warmup=0,
        )
