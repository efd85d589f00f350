"""The command that a stored run is done again with asks for all that the run was asked for."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.bench.runner import DecodeConfig
from ppdbench.cli.main import run
from ppdbench.report.command_line import decode_line
from ppdbench.runs.records import AskedChat, DecodeSettings, DecodingHeader, Record
from ppdbench.runs.store import read_run_header
from tests.report.page import made

DRAWN = {"kind": "top-p", "top_k": 3, "top_p": 0.95, "temperature": 1.0, "logit_bias": []}
# A change of each setting of a run, as its header has it.
CHANGES: dict[str, Any] = {
    "model.name": "smollm2",
    "model.revision": "v2",
    "model.dtype": "bfloat16",
    "model.device": "cuda:1",
    "model.trust_remote_code": True,
    "model.quantize": "int8",
    "model.device_map": "auto",
    "model.max_memory": "cpu=64GB",
    "model.gguf": "q4.gguf",
    "model.as_stored": True,
    "model.adapter": "./my adapter",
    "model.family_check": False,
    "tasks": ["squad", "./own task.yaml"],
    "data": "./rows",
    "split": "train",
    "limit": 7,
    "shots": 2,
    "max_new_tokens": 9,
    "seed": 5,
    "threads": 2,
    "chat.mode": "off",
    "target.kind": DRAWN,
    "target.top_k": {**DRAWN, "kind": "top-k", "top_k": 7},
    "target.top_p": {**DRAWN, "top_p": 0.5},
    "target.min_p": {**DRAWN, "kind": "min-p", "min_p": 0.2},
    "target.temperature": {**DRAWN, "temperature": 0.7},
    "target.repetition_penalty": {**DRAWN, "repetition_penalty": 1.2},
    "target.logit_bias": {**DRAWN, "logit_bias": [[5, -1.5], [9, 2.0]]},
    "strict": True,
    "warmup": 0,
    "compile": "on",
    "profile": True,
    "allow_code_execution": "unprotected",
    "prefill": 4,
}
# What is given beside the header: the method, its options and the size of the batch.
GIVEN = {"methods.name", "methods.options", "batch"}
# Settings that go with another one.
WITH = {
    "model.gguf": {"model.name": "./folder"},
    "model.as_stored": {"model.name": "smollm2"},
    "model.max_memory": {"model.device_map": "auto"},
    "prefill": {"batch": [4]},
}


def fields(of: type[Record], prefix: str = "") -> Iterator[str]:
    """The dotted names of a record's settings."""
    for field in msgspec.structs.fields(of):
        kinds = [field.type, *getattr(field.type, "__args__", ())]
        inner = [k for k in kinds if isinstance(k, type) and issubclass(k, Record)]
        if inner:
            yield from fields(inner[0], f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def changed(config: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name; of targets all at once."""
    part, _, inner = name.partition(".")
    if part == "target":
        config["target"] = value
    elif inner:
        config[part] = {**(config.get(part) or {}), inner: value}
    else:
        config[part] = value


def test_every_setting_is_tried() -> None:
    assert set(fields(DecodeSettings)) == set(CHANGES) | GIVEN


@pytest.mark.parametrize("name", CHANGES)
def test_a_command_asks_for_what_its_run_was_asked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[DecodeConfig] = []

    def kept(config: DecodeConfig, *_: Any, **__: Any) -> None:
        asked.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("ppdbench.bench.runner.run_decode", kept)
    for look in ("check_there", "check_scheme"):  # files and packages that need not be here
        monkeypatch.setattr(f"ppdbench.engine.loading.{look}", lambda _: None)
    monkeypatch.setattr("ppdbench.machine.environment.set_threads", lambda *_: None)
    header = made.header("decode", methods=made.methods("swift"))
    config = header["config"]
    config["target"] = {**DRAWN, "kind": "greedy"}
    for more in ({name: CHANGES[name]}, WITH.get(name, {})):
        for each, value in more.items():
            changed(config, each, value)
    stored = read_run_header(made.write(tmp_path / "run", header, []))
    assert isinstance(stored, DecodingHeader)
    words = shlex.split(decode_line(stored, "layerskip", {"exit_layer": 2}))
    words += ["--batch", "4"] if config.get("batch") else []
    assert words[:2] == ["ppdbench", "decode"]
    run([*words[1:], "--out", str(tmp_path / "again")])
    (config_again,) = asked
    again = msgspec.convert(config_again, DecodeSettings, from_attributes=True)
    (choice,) = again.methods
    assert (choice.name, choice.options) == ("layerskip", {"exit_layer": "2"})
    then = stored.config
    chat = then.chat or AskedChat(mode="auto")
    as_asked = msgspec.structs.replace(then, chat=chat)
    assert msgspec.structs.replace(again, methods=[]) == as_asked
