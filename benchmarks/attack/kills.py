"""`kill -9` at any moment of a run, then `--resume`, as often as it takes.

An attempt is survived if the run comes to its end, holds every sample once, and says what a run
says that nobody killed. Times are their own.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.attack.base import AttackKind, Attempt, spread
from benchmarks.attack.forks import Forked, forked
from ppdbench.runs.records import TIMES
from ppdbench.runs.store import read_run

LONG, SHORT = 60, 3
KILLS = 3  # of one run, then it may end
MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--data", "builtin", "--task", "squad", "--max-new-tokens", "8"]
RUNS: dict[str, list[str]] = {
    "decode": ["decode", *SMALL, "--limit", "12", "--method", "jacobi"],
    "bench": ["bench", *SMALL, "--limit", "8", "--method", "greedy", "--method", "layerskip"],
    "probe": ["probe", *SMALL, "--limit", "12"],
    "sweep": ["sweep", *SMALL, "--limit", "6", "--method", "layerskip"],
    "train": ["train", "heads", "--model", MODEL, "--steps", "12", "--checkpoint-every", "3"],
}
RUNS["sweep"] += ["--grid", "draft_length=2,4"]
RUNS["train"] += ["--batch-size", "4", "--sequence", "32", "--layers", "2", "--text", "TEXT"]


@cache
def sound(name: str) -> tuple[Any, float]:
    """Return the content of a run that nobody killed, and how many seconds it took."""
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    began = time.monotonic()
    said = forked(filled(name, place), place / "said")
    assert said.code == 0, said.err
    return content(name, place / "run"), time.monotonic() - began


def filled(name: str, place: Path) -> list[str]:
    """The command, with a text to train on."""
    text = place / "text.txt"
    words = [f"{n} bottles hang on wall {n % 7}" for n in range(400)]
    text.write_text("\n\n".join(words), "utf-8")
    return [str(text) if w == "TEXT" else w for w in RUNS[name]] + ["--out", str(place / "run")]


def content(name: str, run: Path) -> Any:
    """Read what is to be the same: trained weights, or samples less their times."""
    if name == "train":
        return {path.name: path.read_bytes() for path in run.glob("*.safetensors")}
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_bytes().splitlines()]
    assert len(lines) == len(read_run(run).samples), "a sample stands there twice"
    return [_lasting(msgspec.to_builtins(sample)) for sample in read_run(run).samples]


def _lasting(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sample.items() if name not in {*TIMES, "processes"}}


def attempt(name: str, seed: int, place: Path) -> str | None:
    """Kill a run a few times, let it end, and compare."""
    draw, (wanted, seconds) = random.Random(seed), sound(name)
    words, begun = filled(name, place), False
    for number in range(KILLS):
        started = Forked([*words, *(["--resume"] if begun else [])], place / f"killed-{number}")
        started.process.join(draw.uniform(0.0, seconds))
        if started.process.exitcode is not None and started.process.exitcode != 0:
            return f"ended with {started.process.exitcode}: {started.err.read_text('utf-8')}"
        started.kill()
        begun = _begun(name, place / "run")
    said = forked([*words, *(["--resume"] if begun else [])], place / "last")
    if said.code != 0:
        return f"cannot go on: {said.last}"
    found = content(name, place / "run")
    return None if found == wanted else _difference(wanted, found)


def _begun(name: str, run: Path) -> bool:
    """True if there is something to resume."""
    return run.is_dir() if name == "train" else (run / "run.json").exists()


def _difference(wanted: Any, found: Any) -> str:
    if isinstance(wanted, dict):
        return f"files {sorted(wanted)} became {sorted(found)}, or their bytes are others"
    if len(wanted) != len(found):
        return f"{len(found)} samples instead of {len(wanted)}"
    pairs = zip(wanted, found, strict=True)
    names = {n for a, b in pairs for n in a.keys() | b.keys() if a.get(n) != b.get(n)}
    return f"samples differ in {', '.join(sorted(names))}"


def attempts(short: bool) -> list[Attempt]:
    """The same ones each time, each kind of run in turn."""
    names: Sequence[str] = list(RUNS)
    made = [
        Attempt(f"{name} ({seed})", partial(attempt, name, seed))
        for seed in range(LONG)
        for name in [names[seed % len(names)]]
    ]
    return list(spread(made, SHORT)) if short else made


KIND = AttackKind("kills", attempts)
