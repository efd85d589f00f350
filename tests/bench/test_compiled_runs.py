"""Whole runs with compiled passes find what eager ones find, and go on as they began.

What is handed to the compiler is run as plain Python.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.engine import artefacts
from ppdbench.engine.flat import choice
from ppdbench.engine.flat.choice import Unavailable
from ppdbench.errors import DataError
from ppdbench.runs import store
from ppdbench.runs.shards import Shard
from ppdbench.runs.store import begun_header, read_run
from tests import records
from tests.compiling import uncompiled

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--dtype", "float32", "--device", "cpu", "--data", "builtin"]
SMALL += ["--task", "gsm8k", "--limit", "2", "--max-new-tokens", "8"]
BENCH = ["bench", *SMALL, "--warmup", "0", "--method", "prompt-lookup", "--method", "lookahead"]
SWEEP = ["sweep", *SMALL, "--warmup", "0", "--method", "prompt-lookup", "--grid", "max_draft=2,20"]
PROBE = ["probe", *SMALL]


@pytest.fixture(autouse=True)
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artefacts, "runner", uncompiled)
    monkeypatch.setattr(artefacts, "why_not", lambda: None)

    def missing() -> None:
        raise Unavailable("none are built here")

    # Where there are kernels, nothing is compiled unless it is asked for.
    monkeypatch.setattr(choice, "library", missing)


def both_ways(words: list[str]) -> tuple[Any, Any]:
    """A run with compiled passes and the same with eager ones."""
    for mode in ("on", "off"):
        assert run([*words, "--compile", mode, "--out", mode]) == 0
    return read_run("on"), read_run("off")


def test_beside_wide_passes_narrow_ones_are_compiled_and_all_outputs_are_the_same() -> None:
    compiled, eager = both_ways(BENCH)
    told = compiled.header.compilation
    assert (told.rows, told.eager_rows) == ([1, 6], [43])
    assert {s.verdict for s in compiled.samples} == {"identical"}
    assert [s.output_ids for s in compiled.samples] == [s.output_ids for s in eager.samples]


def test_cells_of_a_sweep_are_compiled_as_far_as_they_are_narrow() -> None:
    compiled, eager = both_ways(SWEEP)
    told = compiled.header.compilation
    assert (told.rows, told.eager_rows) == ([1, 3], [21])
    assert [s.output_ids for s in compiled.samples] == [s.output_ids for s in eager.samples]


def test_probing_compiled_finds_the_same_ranks() -> None:
    compiled, eager = both_ways(PROBE)
    assert compiled.header.compilation.rows == [1]
    assert eager.header.compilation.rows == []
    assert [s.ranks for s in compiled.samples] == [s.ranks for s in eager.samples]


def test_batches_are_probed_eagerly(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*PROBE, "--batch-size", "2", "--out", "auto"]) == 0
    assert "one sequence" in read_run("auto").header.compilation.why
    capsys.readouterr()
    assert run([*PROBE, "--batch-size", "2", "--compile", "on", "--out", "on"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "ppdbench: --compile on: on a CPU compiled passes are of one sequence; leave it or "
        "--batch-size out"
    )


def test_a_run_that_began_eagerly_is_resumed_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run([*BENCH, "--out", "run"]) == 0
    why = read_run("run").header.compilation.why
    assert "compiling would take" in why
    monkeypatch.setattr("ppdbench.engine.compiled.CompiledLayers.missing", lambda *_: [])

    def refuse(*_: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(artefacts, "runner", refuse)
    assert run([*BENCH, "--out", "run", "--resume"]) == 0


def test_a_run_that_began_compiled_is_not_resumed_where_nothing_compiles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*BENCH, "--compile", "on", "--out", "run"]) == 0
    monkeypatch.setattr(artefacts, "why_not", lambda: "no C++ compiler found")
    capsys.readouterr()
    assert run([*BENCH, "--compile", "on", "--out", "run", "--resume"]) == 2
    assert "began with compiled passes" in capsys.readouterr().err


FOLLOWER = Shard(index=1, count=2, launch="one")


def test_ranks_wait_for_what_the_first_decided(tmp_path: Path) -> None:
    compiled = {"mode": "on", "rows": [1], "eager_rows": [], "seconds": 1.0}
    told = records.header("decode", compilation=compiled)
    later = threading.Timer(0.3, (tmp_path / "run.json").write_text, (json.dumps(told),))
    later.start()
    header = begun_header(tmp_path, FOLLOWER)
    later.join()
    assert header is not None
    assert header.compilation.rows == [1]


def test_ranks_do_not_wait_for_ever_and_others_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert begun_header(tmp_path) is None
    monkeypatch.setattr(store, "PATIENCE_S", 0.0)
    with pytest.raises(DataError, match="the first rank did not begin"):
        begun_header(tmp_path, FOLLOWER)
