"""The tokenizer of a GGUF file, as transformers makes it, its chat template included."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ppdbench.engine.gguf.file import GgufFile
from ppdbench.engine.gguf.splits import begins_with_token, cut_as_named
from ppdbench.errors import ConfigError


def tokenizer(file: GgufFile) -> Any:
    """The tokenizer that the file describes."""
    from transformers import PreTrainedTokenizerFast

    if not file.metadata.get("tokenizer.ggml.tokens"):
        raise ConfigError(f"{file.path} holds no tokenizer; fetch one that does")
    # Alone in a folder: a tokenizer that lies beside the file would be taken in its place.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.gguf").symlink_to(file.path.absolute())
        begin = {"add_bos_token": True} if begins_with_token(file) else {}
        made = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file="model.gguf", **begin)
    cut_as_named(file, made)
    made.name_or_path = str(file.path)
    return made
