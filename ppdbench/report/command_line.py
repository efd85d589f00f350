"""The command that does again what a stored run did, as it is typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ppdbench.bench.labels import APART
from ppdbench.runs.records import Chat, DecodeSettings, DecodingHeader
from ppdbench.tasks.chat_options import setting_text


def decode_line(header: DecodingHeader, method: str, options: Mapping[str, Any]) -> str:
    """`ppdbench decode` with one method, on the model and examples of the run `header` is of."""
    words = ["ppdbench", "decode", "--method", method]
    for name, value in options.items():
        words += ["--set", f"{name}={value}"]
    for option, value, default in [*_settings(header.config), *_chat(header)]:
        if value is True and default is False:
            words.append(option)
        elif value != default:
            words += [option, str(value)]
    return shlex.join(words)


def _chat(header: DecodingHeader) -> Iterator[tuple[str, Any, Any]]:
    """The same of what chat templates were told."""
    if header.config.chat is not None:
        yield "--chat", header.config.chat.mode, "auto"
    if isinstance(header.chat, Chat):
        yield "--system", header.chat.system, None
        for name, value in header.chat.settings.items():
            yield "--chat-set", f"{name}={setting_text(value)}", None


def _settings(config: DecodeSettings) -> Iterator[tuple[str, Any, Any]]:
    """Option, value, and what it is where nothing is typed."""
    model, target = config.model, config.target
    yield "--model", model.name, "reference"
    yield "--gguf", model.gguf, None
    yield "--as-stored", model.as_stored, False
    yield "--revision", model.revision, None
    yield "--adapter", model.adapter, None
    yield "--dtype", model.dtype, "auto"
    yield "--quantize", model.quantize, None
    yield "--device", model.device, "auto"
    yield "--device-map", model.device_map, None
    yield "--max-memory", model.max_memory, None
    yield "--no-family-check", not model.family_check, False
    yield "--trust-remote-code", model.trust_remote_code, False
    for task in config.tasks:
        yield "--task", task, None
    yield "--data", config.data, "builtin" if model.name == "reference" else "hub"
    yield "--split", config.split, None
    yield "--limit", config.limit, None
    yield "--shots", config.shots, 0
    yield "--max-new-tokens", config.max_new_tokens, None
    yield "--seed", config.seed, 0
    yield "--threads", config.threads, None
    yield "--strict", config.strict, False
    yield "--warmup", config.warmup, 2
    yield "--compile", config.compile, "auto"
    yield "--profile", config.profile, False
    yield "--prefill", config.prefill or APART, APART
    yield "--allow-code-execution", config.allow_code_execution, False
    if target.kind != "greedy":
        drawn = target.kind.replace("-", "_")
        yield "--target", target.kind, None
        yield f"--{target.kind}", getattr(target, drawn), None
        yield "--temperature", target.temperature, 1.0
        yield "--repetition-penalty", target.repetition_penalty, 1.0
        for token, bias in target.logit_bias:
            yield "--logit-bias", f"{token}={bias}", None
