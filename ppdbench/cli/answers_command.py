"""`ppdbench answers`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ppdbench.cli.common import chosen_chat, chosen_text, model_spec, notice, stand_in_note
from ppdbench.cli.help import Command
from ppdbench.cli.options import chat_options, model_options, text_options
from ppdbench.engine.quiet import quiet
from ppdbench.files.paths import check_folder
from ppdbench.report.progress import progress


@click.command(
    "answers",
    cls=Command,
    first=("text", "model", "out", "batch", "max_new_tokens", "max_documents", "resume", "dtype"),
)
@text_options
@click.option("--out", required=True, metavar="DIR", help="Folder for the answers.")
@click.option("--resume", is_flag=True, help="Go on with the prompts without an answer in --out.")
@click.option("--batch", default=16, show_default=True, help="Prompts decoded together.")
@click.option("--max-new-tokens", default=256, show_default=True, help="Of an answer.")
@click.option(
    "--max-prompt-tokens", default=512, show_default=True, help="Leave longer prompts out."
)
@chat_options
@model_options
def command(**options: Any) -> int:
    """Write what a model answers to prompts: the text that drafters for it learn best from.

    Each document of --text is a prompt. A line of answers.jsonl is a prompt with its answer, as the
    model saw and wrote it: what `ppdbench train` takes as --text.

    \b
    ppdbench answers --model ./my-model --text ./prompts.jsonl --out ./answers
    ppdbench answers --text ./questions.jsonl --column question --batch 8 --out ./answers --resume
    """
    from ppdbench.bench.answers import FILE, AnswersConfig, write_answers
    from ppdbench.machine.environment import set_threads
    from ppdbench.report.export import emit
    from ppdbench.report.sheet import Sheet
    from ppdbench.training.text import check_sources

    quiet()
    set_threads(options["threads"])
    out, asked = check_folder("--out", options["out"]), options["model"]
    text = chosen_text(options)
    check_sources(text)
    config = AnswersConfig(
        chat=chosen_chat(options),
        model=model_spec(options),
        prompts=text,
        **{name: options[name] for name in ("batch", "max_new_tokens", "max_prompt_tokens")},
    )
    with progress() as report:
        written = write_answers(config, out, resume=options["resume"], report=report)
    told = asdict(written)
    names = ("answers", "prompt tokens", "answer tokens", "ended by themselves", "too long")
    emit([Sheet("Answers", names, (tuple(told.values()),))], told, "table")
    stand_in_note(asked)
    notice(f"written: {out / FILE}")
    return 0
