"""Run folders made by hand: a test says what matters to it, the rest is filled in.

What a record of that kind does not have is left out, so that tests can share their samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from ppdbench.runs.records import KINDS, DecodedSample, FailedSample, MethodRecord
from ppdbench.runs.samples import HEAD
from ppdbench.runs.validation import sealed

MODEL = {"name": "m", "revision": None, "dtype": "auto", "device": "auto"}
MODEL |= {"trust_remote_code": False, "quantize": None, "device_map": None, "max_memory": None}
TARGET = {"kind": "greedy", "top_k": 3, "top_p": 0.95, "temperature": 1.0}
CONFIG = {
    "model": MODEL,
    "tasks": [],
    "data": "builtin",
    **dict.fromkeys(("split", "limit", "max_new_tokens", "threads", "bucket", "head")),
    "shots": 0,
    "seed": 0,
    "methods": [],
    "target": TARGET,
    "strict": False,
    "warmup": 2,
    "compile": "auto",
    "profile": False,
    "allow_code_execution": False,
    "space": {"method": "layerskip", "axes": {}, "fixed": {}},
    "search": "grid",
    "layers": [],
    "ks": [1, 3, 5],
    "targets": [TARGET],
    "stop_at_eos": False,
    "batch_size": 1,
    "show_example": None,
}
LOADED = {
    "name": "m",
    "revision": None,
    "weight_hash": "ab",
    "family": "llama",
    "n_layers": 8,
    "hidden_size": 32,
    "vocab_size": 100,
    "dtype": "float32",
    "device": "cpu",
    "synthetic": False,
}
CPU = dict.fromkeys(
    ("model", "physical_cores", "logical_cores", "usable_cores", "quota_cores", "features")
) | {"governor": None, "load_average": None}
ENVIRONMENT = {
    "python": "3.11",
    "platform": "Linux",
    "machine": "x86_64",
    "packages": {},
    "git": None,
    "cpu": CPU,
    "memory": {"total_bytes": 1 << 30, "available_bytes": 1 << 30, "swap_used_bytes": 0},
    "on_battery": None,
    "torch": {
        "threads": 1,
        "interop_threads": 1,
        "mkldnn": True,
        "cuda": None,
        "deterministic": False,
        "anomaly_detection": False,
    },
    "devices": [],
    "dtypes": {},
    "variables": {},
}
SOURCE = {"version": 1, "metrics": [], "examples": 1, "sha256": "cd"}
METHOD = {"name": "greedy", "options": {}, "loaded": {}}
HEADER = {
    "schema_version": 1,
    "ppdbench": "0.1.0",
    "command": ["ppdbench"],
    "started": "2026-01-02T03:04:05+00:00",
    "layers": {"cpu": 8},
    "data": {},
    "methods": {},
    "facts": {},
    "not_run": {},
    "rungs": [],
}
ASKED = {"verdict": None, "cut_tokens": 0, "prompt_ids": [], "output_ids": []}
SAMPLE = {
    **ASKED,
    "verdict": "identical",
    "references": [],
    "peak_memory_bytes": 1,
    "finish": "length",
    "text": "",
    "accepted": [],
    "proposed": [],
    "draft_ms": [],
    "prefill_ms": 1.0,
    "step_ms": [],
    "baseline_prefill_ms": 1.0,
    "baseline_step_ms": [],
    "baseline_again_ms": 0.0,
}


def header(kind: str, /, **parts: Any) -> dict[str, Any]:
    """What `run.json` says of a run of this kind, with these parts as they are or filled up."""
    form = KINDS[kind].header
    config_form = next(f.type for f in msgspec.structs.fields(form) if f.name == "config")
    environment = {**ENVIRONMENT, **parts.get("environment", {})}
    for part, base in (("cpu", CPU), ("torch", ENVIRONMENT["torch"])):
        environment[part] = {**base, **environment[part]}
    config = {**CONFIG, **parts.get("config", {})}
    for part, base in (("model", MODEL), ("target", TARGET)):
        config[part] = {**base, **config[part]}
    config["targets"] = [{**TARGET, **target} for target in config["targets"]]
    made = {
        **HEADER,
        **parts,
        "kind": kind,
        "config": _known(config, config_form),
        "model": {**LOADED, **parts.get("model", {})},
        "data": {task: {**SOURCE, **about} for task, about in parts.get("data", {}).items()},
        "methods": {n: _method(kind, about) for n, about in parts.get("methods", {}).items()},
        "environment": environment,
    }
    return _known(made, form)


def _method(kind: str, about: Mapping[str, Any]) -> dict[str, Any]:
    if kind in ("drafts", "similarity"):
        return _known({**METHOD, **about}, MethodRecord)
    return {**METHOD, "exact": True, **about}


def sample(kind: str, /, **parts: Any) -> dict[str, Any]:
    """A line of a run of this kind."""
    if parts.get("verdict") == "failed":
        return _known({**ASKED, "error": "it broke", **parts}, FailedSample)
    if kind in ("probe", "drafts", "similarity"):
        return _known({**ASKED, "ranks": {}, "similarity": {}, **parts}, KINDS[kind].sample)
    made = {**SAMPLE, **parts}
    made = {**made, "rows": [1] * len(made["step_ms"])} if "rows" not in parts else made
    return _known(made, DecodedSample)


def write_run(folder: Path, kind: str, samples: Iterable[Mapping[str, Any]], **parts: Any) -> Path:
    """A run folder of such samples, filled up; a probe asked for the targets that they have."""
    samples = list(samples)
    kinds = dict.fromkeys(each.get("target") or "greedy" for each in samples)
    targets = [{"kind": kind} for kind in kinds] or [TARGET]
    parts = {**parts, "config": {"targets": targets, **parts.get("config", {})}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(header(kind, **parts)), "utf-8")
    lines = b"".join(_line(sample(kind, **each)) for each in samples)
    (folder / "samples.jsonl").write_bytes(lines)
    return folder


def _line(content: dict[str, Any]) -> bytes:
    """As it is written today; halves of surrogate pairs only earlier versions wrote."""
    content = {**{name: content[name] for name in HEAD if name in content}, **content}
    try:
        return sealed(json.dumps(content, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return json.dumps(content).encode() + b"\n"


def _known(parts: dict[str, Any], form: Any) -> dict[str, Any]:
    """What such a record has."""
    return {name: value for name, value in parts.items() if name in form.__struct_fields__}
