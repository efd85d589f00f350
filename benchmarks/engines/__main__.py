"""Greedy decoding of a GGUF file by llama.cpp and OpenVINO GenAI beside ours, in turns.

    python -m benchmarks.engines [--model smollm2] [--threads 2] [--tokens 128] [--rounds 9]
        [--save FILE.json]

Each engine is a process of its own, in an environment of its own, and decodes when it is asked
to; speeds are tokens after the first. Where one is not installed, the table says so, and how to:

    python -m venv DIR/openvino && DIR/openvino/bin/pip install openvino-genai
    npm install --prefix DIR/llama-cpp node-llama-cpp

DIR is --home. Run it on a machine that does nothing else. `--save` keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from benchmarks.curve import this_machine
from benchmarks.measured import keep
from ppdbench.engine.gguf import source
from ppdbench.engine.loading import ModelSpec, load_words
from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.files.caches import cache_folder
from ppdbench.report.export import emit
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.stats import median
from ppdbench.tasks.passages import pseudo_prompts

HERE = Path(__file__).parent
OURS = "ppdbench greedy, bfloat16"
WARM_UP = 1  # rounds that do not count
FILES = "engines"  # how names of stored measurements begin


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """The program that runs an engine, or why there is none, and what installs it."""

    words: tuple[str, ...] | None
    install: str = ""


class EngineSpeeds(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of an engine in each round; none where it did not run, and why."""

    name: str
    said: str
    tokens_per_s: list[float] = []


class MeasuredEngines(msgspec.Struct, frozen=True, kw_only=True):
    """The speeds of all engines, and what they did where."""

    model: str
    threads: int
    prompt_tokens: int
    tokens: int
    machine: str
    engines: list[EngineSpeeds]


def commands(home: Path) -> dict[str, EngineCommand]:
    """Find the engines below a folder, and ours."""
    own = (sys.executable, "-m", "benchmarks.engines.ours")
    python, packages = home / "openvino/bin/python", home / "llama-cpp/node_modules"
    node = shutil.which("node")
    peer = f"{python} -m pip install openvino-genai, in a venv"
    other = f"npm install --prefix {packages.parent} node-llama-cpp"
    with_openvino = (str(python), str(HERE / "with_openvino.py")) if python.is_file() else None
    there = node is not None and (packages / "node-llama-cpp").is_dir()
    with_node = (node or "", str(HERE / "with_llama_cpp.mjs"), str(packages)) if there else None
    return {
        OURS: EngineCommand((*own, "greedy", "bfloat16")),
        "ppdbench greedy, float32": EngineCommand((*own, "greedy", "float32")),
        "ppdbench greedy, bfloat16, as stored": EngineCommand((*own, "stored", "bfloat16")),
        "ppdbench greedy, float32, as stored": EngineCommand((*own, "stored", "float32")),
        "transformers generate(), bfloat16": EngineCommand((*own, "generate", "bfloat16")),
        "llama.cpp": EngineCommand(with_node, other),
        "OpenVINO GenAI": EngineCommand(with_openvino, peer),
    }


@dataclass(frozen=True, slots=True)
class Engine:
    """A process that decodes when it is asked to."""

    process: subprocess.Popen[str]
    said: str

    def decode(self) -> float:
        """Have it decode once: tokens/s after the first token."""
        _write(self.process.stdin, "decode")
        found = _answer(self.process)
        return float((found["tokens"] - 1) / found["seconds"])


@contextmanager
def started(words: Sequence[str], job: Mapping[str, Any]) -> Iterator[Engine]:
    """An engine that has loaded its model, until the block ends."""
    with subprocess.Popen(
        [*words, json.dumps(job)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Engine(process, str(_answer(process)["ready"]))
        finally:
            process.kill()


def _write(stream: IO[str] | None, text: str) -> None:
    assert stream is not None
    stream.write(f"{text}\n")
    stream.flush()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that is an answer; libraries write others."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise ConfigError("it ended; what it said stands above")


def main() -> int:
    """Measure all that are there, in turns, and print the table; an exit code."""
    quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=source.SMOLLM2, help="smollm2, or a GGUF file")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--home", type=Path, default=cache_folder() / "engines")
    parser.add_argument("--save", type=Path, help="keep what was measured, as .json")
    asked = parser.parse_args()
    for name in ("threads", "prompt_tokens", "tokens", "rounds"):
        if getattr(asked, name) < 1 + (name == "tokens"):
            parser.error(f"--{name.replace('_', '-')} {getattr(asked, name)}: too few")
    try:
        found = measured(asked)
    except PpdbenchError as error:
        print(f"engines: {error}", file=sys.stderr)
        return 2
    emit(sheets(found), None, "markdown")
    keep(found, asked.save)
    return 0


def measured(asked: argparse.Namespace) -> MeasuredEngines:
    """Time every engine that is there; of the others it is said why they are not."""
    machine, job = this_machine(), _job(asked)
    with ExitStack() as stack:
        engines: dict[str, Engine] = {}
        missing: list[EngineSpeeds] = []
        for name, command in commands(asked.home).items():
            if command.words is None:
                missing.append(EngineSpeeds(name=name, said=f"not installed: {command.install}"))
                continue
            try:
                engines[name] = stack.enter_context(started(command.words, job))
            except ConfigError as error:
                missing.append(EngineSpeeds(name=name, said=f"does not run: {error}"))
        speeds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(-WARM_UP, asked.rounds):
            for name in engines if number % 2 else reversed(engines):
                speed = engines[name].decode()
                if number >= 0:
                    speeds[name].append(speed)
    timed = [
        EngineSpeeds(name=name, said=engines[name].said, tokens_per_s=speeds[name])
        for name in engines
    ]
    return MeasuredEngines(
        model=asked.model,
        threads=asked.threads,
        prompt_tokens=asked.prompt_tokens,
        tokens=asked.tokens,
        machine=machine,
        engines=[*timed, *missing],
    )


def _job(asked: argparse.Namespace) -> dict[str, Any]:
    spec = ModelSpec(name=asked.model, offline=True)
    if not spec.is_gguf:
        raise ConfigError(f"--model {asked.model}: llama.cpp reads GGUF files; give one")
    tokenizer, _ = load_words(spec)
    (prompt,) = pseudo_prompts(tokenizer, 1, asked.prompt_tokens)
    return {
        "model": asked.model,
        "file": str(source.find(asked.model, None, None, offline=True)),
        "prompt": tokenizer.decode(prompt),
        "tokens": asked.tokens,
        "threads": asked.threads,
    }


def stored(path: Path) -> MeasuredEngines:
    """Read what `--save` kept."""
    return msgspec.json.decode(path.read_bytes(), type=MeasuredEngines)


def sheets(found: MeasuredEngines) -> list[Sheet]:
    """The table of all engines."""
    header = ("engine", "tokens/s", "min", "max", "ours over it", "what ran")
    ours = next(each.tokens_per_s for each in found.engines if each.name == OURS)
    told = (
        f"{len(ours)} rounds in turns, {found.prompt_tokens} + {found.tokens} tokens, greedy, "
        "tokens after the first; medians"
    )
    digits = {"tokens/s": 1, "min": 1, "max": 1, "ours over it": 2}
    title = f"Engines: {found.model}, {found.threads} threads"
    rows = tuple(_row(each, ours) for each in found.engines)
    return [Sheet(title, header, rows, notes=(told, found.machine), digits=digits)]


def _row(engine: EngineSpeeds, ours: Sequence[float]) -> tuple[Cell, ...]:
    speeds = engine.tokens_per_s
    if not speeds:
        return engine.name, None, None, None, None, engine.said
    ratio = median([mine / theirs for mine, theirs in zip(ours, speeds, strict=True)])
    return engine.name, median(speeds), min(speeds), max(speeds), ratio, engine.said


if __name__ == "__main__":
    raise SystemExit(main())
