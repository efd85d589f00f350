"""`python -m benchmarks.engines`: engines take turns, and the table names those that lack."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from benchmarks.engines import __main__ as engines
from benchmarks.measured import keep
from ppdbench.errors import ConfigError
from ppdbench.report.export import to_markdown

FAKE = """
import json, pathlib, sys
log, name, seconds = sys.argv[1:4]
print("a library says hello")
print(json.dumps({"ready": f"{name} 1.0"}), flush=True)
for _ in sys.stdin:
    with pathlib.Path(log).open("a") as file:
        file.write(name)
    print(json.dumps({"tokens": 11, "seconds": float(seconds)}), flush=True)
"""
ASKED = argparse.Namespace(
    model="m.gguf", threads=1, prompt_tokens=4, tokens=11, rounds=2, home=Path("nowhere")
)


def fake(log: Path, name: str, seconds: float) -> engines.EngineCommand:
    return engines.EngineCommand((sys.executable, "-c", FAKE, str(log), name, str(seconds)))


def test_engines_take_turns_and_those_that_lack_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    known = {
        engines.OURS: fake(log, "a", 0.1),
        "other": fake(log, "b", 0.2),
        "broken": engines.EngineCommand((sys.executable, "-c", "")),
        "absent": engines.EngineCommand(None, "get it somewhere"),
    }
    monkeypatch.setattr(engines, "commands", lambda _: known)
    monkeypatch.setattr(engines, "_job", lambda _: {})
    found = engines.measured(ASKED)
    keep(found, tmp_path / "engines.json")
    assert engines.stored(tmp_path / "engines.json") == found
    said = to_markdown(engines.sheets(found))
    assert log.read_text() == "abbaab"  # a round that does not count, and two
    assert "| other | 50.0 | 50.0 | 50.0 | 2.00 | b 1.0 |" in said
    assert "| broken | - | - | - | - | does not run: it ended" in said
    assert "| absent | - | - | - | - | not installed: get it somewhere |" in said


def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path) -> None:
    found = engines.commands(tmp_path)
    assert found["llama.cpp"].words is None
    assert f"npm install --prefix {tmp_path}/llama-cpp node-llama-cpp" in found["llama.cpp"].install
    assert found["OpenVINO GenAI"].words is None
    assert "pip install openvino-genai" in found["OpenVINO GenAI"].install
    assert found[engines.OURS].words is not None


def test_models_that_other_engines_cannot_read_are_refused() -> None:
    asked = argparse.Namespace(**{**vars(ASKED), "model": "reference"})
    with pytest.raises(ConfigError, match="reads GGUF files"):
        engines.measured(asked)
