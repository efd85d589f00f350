"""Shared pieces: a byte-level tokenizer made here, and rows of the real data sets if near."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

REAL = Path(__file__).resolve().parents[3] / "shared" / "data"
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def byte_tokenizer(chat: bool = False, bos: bool = True) -> PreTrainedTokenizerFast:
    """One token per UTF-8 byte, BOS in front; longer prompts than its 8 tokens are the rule."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {piece: i for i, piece in enumerate(["<s>", "</s>", *alphabet])}
    core = Tokenizer(BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>" if bos else None,
        eos_token="</s>",
        model_max_length=8,
    )
    if chat:
        tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer()


@pytest.fixture(scope="session")
def chat_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(chat=True)


@pytest.fixture(scope="session")
def bare_tokenizer() -> PreTrainedTokenizerFast:
    return byte_tokenizer(bos=False)


@pytest.fixture(scope="session")
def real_data() -> Path:
    if not REAL.is_dir():
        pytest.skip("the real data sets are not beside this checkout")
    return REAL


@pytest.fixture
def write_jsonl(tmp_path):
    def write(rows, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return write


@pytest.fixture
def write_task(tmp_path):
    """A small valid task file, with keys changed (`...` removes one)."""
    import yaml

    def write(**changes) -> Path:
        keys = {
            "name": "mine",
            "version": 1,
            "description": "a task",
            "dataset": {"hub_id": None, "config": None, "split": "test"},
            "fields": {"question": "question"},
            "id": None,
            "prompt_text": "Q: {{ question }}\nA:",
            "reference": "answer",
            "max_new_tokens": 8,
            "bucket": 2,
            "shot": "{{ prompt }} {{ reference }}\n",
            "context_field": "question",
        }
        keys.update(changes)
        path = tmp_path / "mine.yaml"
        path.write_text(
            yaml.safe_dump({k: v for k, v in keys.items() if v is not Ellipsis}), encoding="utf-8"
        )
        return path

    return write
