"""`ppdbench datastore`: an index of text that `rest` drafts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ppdbench.cli.common import chosen_model, chosen_text, notice, say, stand_in_note
from ppdbench.cli.options import text_options
from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError
from ppdbench.report.progress import progress


@click.command("datastore")
@text_options
@click.option(
    "--depth", type=int, default=16, show_default=True, help="Tokens of the longest lookup."
)
@click.option("--out", required=True, metavar="DIR", help="Folder for the datastore.")
@click.option(
    "--model",
    metavar="NAME",
    help="Whose tokens: hub id, local folder, file.gguf, `smollm2`, `reference` (the default) or "
    "synthetic:SPEC.",
)
@click.option("--gguf", metavar="FILE", help="The GGUF file of a hub model or a folder.")
@click.option("--revision", help="Revision of a hub model.")
@click.option("--offline", is_flag=True, help="Never ask the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a hub model.")
def command(**options: Any) -> int:
    """Build the text that --method rest looks things up in.

    Needs the model's tokenizer, not its weights, and about 40 bytes of memory per token.

    \b
    ppdbench datastore --model ./my-model --text ./corpus --out ./store
    ppdbench datastore --text ./questions.jsonl --column question --out ./store --max-documents 1000
    """
    from ppdbench.engine.loading import ModelSpec, check_there, load_words
    from ppdbench.methods.rest.datastore import build_datastore
    from ppdbench.training.text import check_sources

    quiet()
    if not options["out"]:
        raise ConfigError("--out is empty; give a folder")
    text = chosen_text(options)
    names = ("gguf", "revision", "offline", "trust_remote_code")
    spec = ModelSpec(name=chosen_model(options["model"]), **{name: options[name] for name in names})
    check_there(spec, words_alone=True)
    check_sources(text)
    out = Path(options["out"]).expanduser()
    tokenizer, vocab_size = load_words(spec)
    with progress() as report:
        store = build_datastore(
            text, tokenizer, vocab_size, out, depth=options["depth"], report=report
        )
    stand_in_note(options["model"])
    say(f"{store.header.tokens:,} tokens, sorted by {store.header.depth}: {out}")
    notice(f"use: --method rest --set datastore={out}")
    return 0
