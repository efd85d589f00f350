"""`ppdbench decode`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import chosen_data, closing_notes, model_spec, notice, progress, run_folder
from ppdbench.cli.options import format_option, model_options, run_options, task_options

if TYPE_CHECKING:
    from ppdbench.workload import Finished


@click.command("decode")
@click.option("--method", default="greedy", show_default=True, help="See `list methods`.")
@click.option("--task", "tasks", multiple=True, help="Task or task file; may be repeated (gsm8k).")
@click.option("--set", "pairs", multiple=True, metavar="KEY=VALUE", help="An option of the method.")
@click.option("--warmup", default=2, show_default=True, help="Untimed runs before the first.")
@task_options
@model_options
@run_options
@format_option
def command(tasks: tuple[str, ...], pairs: tuple[str, ...], form: str, **options: Any) -> int:
    """One strategy on one task: tokens, time, acceptance, identity, quality.

    \b
    ppdbench decode --method greedy --task squad --limit 8
    ppdbench decode --method greedy --model ./my-model --task gsm8k --data ./test.jsonl
    """
    from ppdbench.bench.environment import set_threads
    from ppdbench.bench.runner import DecodeConfig, run_decode
    from ppdbench.bench.summary import summarize
    from ppdbench.engine.quiet import quiet
    from ppdbench.report import decode_tables
    from ppdbench.report.export import emit
    from ppdbench.strategies.base import settings

    quiet()
    set_threads(options["threads"])
    out, resume, asked = options.pop("out"), options.pop("resume"), options["model"]
    data = chosen_data(options.pop("data"), options["model"])
    config = DecodeConfig(
        model=model_spec(options),
        tasks=tasks or ("gsm8k",),
        data=data,
        options=settings(pairs),
        **options,
    )
    folder = run_folder(
        out, resume, "decode", config.method, "+".join(config.tasks), config.model.name
    )
    with progress() as report:
        run = run_decode(config, folder, resume=resume, report=report)
    summaries = summarize(run.header, run.samples)
    sheets = [decode_tables.long(summaries)] if form == "csv" else decode_tables.sheets(summaries)
    emit(sheets, summaries[0] if len(summaries) == 1 else summaries, form)
    mismatches = sum(summary["mismatch"] for summary in summaries)
    _unscored_note(run)
    closing_notes(run, asked)
    if mismatches:
        notice(f"ppdbench: {mismatches} outputs differ from greedy (see verdict in {folder})")
    return 1 if mismatches else 0


def _unscored_note(run: Finished) -> None:
    """Say which quality was not scored, rather than leave a gap."""
    from ppdbench.scoring import NEEDS_EXECUTION

    asked = {metric for source in run.header["data"].values() for metric in source["metrics"]}
    if not run.header["model"]["synthetic"] and asked & NEEDS_EXECUTION:
        names = ", ".join(sorted(asked & NEEDS_EXECUTION))
        notice(f"note: {names} runs generated code and is not scored by this version")
