"""The pieces that text is cut into before its bytes are merged to tokens, by their name in a file.

A file does not hold its tokenizer's rules, only a name for them (`tokenizer.ggml.pre`), and
merges learned on pieces of one kind give tokens that a model never saw when they run on another:
SmolLM2 reads 123 as three digits, GPT-2 as one number. transformers cuts as some names ask and
as GPT-2 does for all others; those that it passes over are cut here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from ppdbench.engine.gguf.file import GgufFile
from ppdbench.errors import PpdbenchWarning

# Files whose tokens are bytes that are merged; others cut nothing before.
BYTES = "gpt2"
# Names of what GPT-2 does.
LIKE_GPT2 = ("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion", "granite-docling")
# Words that are tokens are taken whole, whatever the merges make of them, and a text begins
# with the token for that unless the file says otherwise.
WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "tekken")
CHINESE_AND_KOREAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
SENTENCES = r" ?[^\s(|.,!?…。，、।۔،)]+"  # BLOOM's: all up to a space or the end of a clause


def cut_as_named(file: GgufFile, tokenizer: Any) -> None:
    """Let a tokenizer that transformers made cut text as the file says; warn of unknown names."""
    if file.metadata.get("tokenizer.ggml.model") != BYTES:
        return
    from tokenizers.pre_tokenizers import ByteLevel

    backend, name = tokenizer.backend_tokenizer, _name(file)
    if name in WAYS:
        backend.pre_tokenizer = WAYS[name]()
    elif isinstance(backend.pre_tokenizer, ByteLevel) and name not in LIKE_GPT2:
        warnings.warn(_doubt(file, name), PpdbenchWarning, stacklevel=2)
    if name in WHOLE_WORDS:
        backend.model.ignore_merges = True


def begins_with_token(file: GgufFile) -> bool:
    """True if a text begins with the token for that where the file does not say."""
    return file.metadata.get("tokenizer.ggml.model") == BYTES and _name(file) in WHOLE_WORDS


def _name(file: GgufFile) -> str | None:
    return file.metadata.get("tokenizer.ggml.pre")


def _doubt(file: GgufFile, name: str | None) -> str:
    says = "does not say" if name in (None, "default") else f"says {name!r}, not known here, of"
    return (
        f"{file.path} {says} how its tokenizer cuts text into words and numbers; it is cut as "
        "GPT-2 does, and outputs may be worse for it: compare with the model's own tokenizer"
    )


def _digits() -> Any:
    """Each digit alone, the rest as GPT-2."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _falcon() -> Any:
    """Runs of punctuation alone, the rest as GPT-2, numbers in threes."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Sequence, Split

    threes = Split(Regex("[0-9][0-9][0-9]"), "isolated")
    words = ByteLevel(add_prefix_space=False)
    return Sequence([Punctuation("contiguous"), words, Digits(individual_digits=False), threes])


def _cut(*patterns: str, digits: bool = False) -> Callable[[], Any]:
    """One pattern after another, each digit alone where asked."""

    def made() -> Any:
        from tokenizers import Regex
        from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

        cuts: list[Any] = [Split(Regex(pattern), "isolated") for pattern in patterns]
        if digits:
            cuts.append(Digits(individual_digits=True))
        return Sequence([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])

    return made


DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
WAYS: Mapping[str | None, Callable[[], Any]] = {
    **dict.fromkeys(DIGITS, _digits),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _cut(SENTENCES)),
    "viking": _cut(SENTENCES, digits=True),
    "deepseek-coder": _cut(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CHINESE_AND_KOREAN, digits=True),
    "falcon": _falcon,
}
