"""`--compile`: a GPU captures passes where that is asked for, a CPU compiles none and says so."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.bench import compiling
from ppdbench.bench.compiling import settle
from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Decoder, Setup
from ppdbench.engine import graphs
from ppdbench.engine.flat import choice
from ppdbench.engine.flat.choice import EAGER, Unavailable
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.runs.records import Compilation
from ppdbench.runs.store import StoredRun, read_run
from tests import flat_ops
from tests.capturing import Repeated
from tests.pretend import gpus

Asked = list[tuple[int, ...]]
Captured = pytest.CaptureFixture[str]
MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
SMALL = ["--model", MODEL, "--dtype", "float32", "--data", "builtin", "--task", "gsm8k"]
SMALL += ["--limit", "2", "--max-new-tokens", "8"]
BENCH = ["bench", *SMALL, "--warmup", "0", "--method", "prompt-lookup:max_draft=5"]
BENCH += ["--method", "lookahead"]
SWEEP = ["sweep", *SMALL, "--warmup", "0", "--method", "prompt-lookup", "--grid", "max_draft=2,20"]
PROBE = ["probe", *SMALL]
ENV = ["env", "--baseline", "--model", MODEL, "--rounds", "1", "--new-tokens", "4"]
COMMANDS = ["bench", "sweep", "probe"]
ON_CPU = "nothing is compiled on a CPU, where passes run eager"


@pytest.fixture(autouse=True)
def no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def missing(dtype: torch.dtype) -> None:
        raise Unavailable("none are built here")

    monkeypatch.setattr(choice, "library", missing)


@pytest.fixture
def loaded() -> Loaded:
    return load(ModelSpec(name=MODEL, device="cpu"), passes=EAGER)


@pytest.fixture
def on_gpu(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """A model that says it is on a GPU."""
    monkeypatch.setattr(loaded.staged, "device", torch.device("cuda"))
    return loaded


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The numbers of rows whose passes were to be captured, model by model."""
    found: Asked = []

    def note(self: StagedModel, counts: Collection[int]) -> None:
        found.append(tuple(counts))

    monkeypatch.setattr(StagedModel, "capture", note)
    return found


def decoder(rows: int, *, foreign: bool = False, units: int = 1) -> Decoder:
    made = Decoder()
    made.rows, made.foreign, made.units = rows, foreign, units
    return made


def settled(loaded: Loaded, mode: str, **decoders: Decoder) -> Compilation:
    return settle(mode, Setup(loaded, 64), decoders, lambda *_: None)


def joined(loaded: Loaded, **begun: Any) -> Compilation:
    told = Compilation(mode="auto", **begun)
    return settle("auto", Setup(loaded, 64), {"skip": decoder(5)}, lambda *_: None, told)


# On a CPU


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_on_a_cpu_nothing_is_compiled_and_the_reason_names_the_kernels(
    mode: str, loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = settled(loaded, mode, greedy=decoder(1), skip=decoder(5))
    assert found == Compilation(mode=mode, rows=[], why=ON_CPU)
    flat_ops.stand_in(monkeypatch)
    flat = load(ModelSpec(name=MODEL, device="cpu"), passes="flat")
    why = settled(flat, mode, greedy=decoder(1)).why
    assert why == f"nothing is compiled on a CPU, where passes run {flat.staged.path.kernels}"
    assert flat.staged.path.kernels.startswith("flat")
    assert asked == []


def both_ways(words: list[str], *device: str) -> tuple[StoredRun, StoredRun]:
    """A run with `--compile on` and the same without."""
    for mode in ("on", "off"):
        assert run([*words, *device, "--compile", mode, "--out", mode]) == 0
    return read_run("on"), read_run("off")


def facts(stored: StoredRun) -> list[tuple[Any, ...]]:
    """What was found, whatever the time."""
    found = []
    for each in stored.samples:
        ranks = getattr(each, "ranks", None)
        found.append((each.method, each.example_id, each.output_ids, ranks))
    return found


@pytest.mark.parametrize("words", [BENCH, SWEEP, PROBE], ids=COMMANDS)
def test_asked_for_on_a_cpu_it_is_one_note_and_changes_nothing(
    words: list[str], capsys: Captured
) -> None:
    asked_for, left_out = both_ways(words, "--device", "cpu")
    assert facts(asked_for) == facts(left_out)
    assert asked_for.header.compilation == Compilation(mode="on", rows=[], why=ON_CPU)
    assert left_out.header.compilation == Compilation(mode="off", rows=[], why="not asked for")
    said = [line for line in capsys.readouterr().err.splitlines() if "compile" in line]
    assert said == [f"note: --compile on: {ON_CPU}"]


def test_so_it_is_where_the_baseline_is_measured(capsys: Captured) -> None:
    assert run([*ENV, "--device", "cpu", "--compile", "on", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert f"note: --compile on: {ON_CPU}\n" in err
    assert json.loads(out)["compilation"] == {"mode": "on", "rows": [], "why": ON_CPU}


def amend(**parts: Any) -> None:
    """Put something else into the header of a run."""
    path = Path("run/run.json")
    content = {**json.loads(path.read_text("utf-8")), **parts}
    del content["checksum"]
    path.write_text(json.dumps(content), "utf-8")


def test_a_run_that_an_earlier_version_left_eager_goes_on(capsys: Captured) -> None:
    words = [*BENCH, "--device", "cpu", "--out", "run"]
    assert run(words) == 0
    amend(compilation={"mode": "auto", "rows": [], "why": "it would not pay", "saves_s": 12.0})
    assert run([*words, "--resume"]) == 0
    assert "it would not pay" not in capsys.readouterr().err


def test_a_run_that_an_earlier_version_compiled_is_read_and_not_gone_on_with(
    capsys: Captured,
) -> None:
    words = [*BENCH, "--device", "cpu", "--out", "run"]
    assert run(words) == 0
    passes = {"kernels": "compiled", "why": "asked for", "prepared_s": 0.0}
    told = {"mode": "auto", "rows": [1, 6], "eager_rows": [43], "seconds": 60.0}
    amend(passes=passes, compilation=told)
    assert read_run("run").header.compilation.eager_rows == [43]
    assert run(["report", "run", "--out", "page.html"]) == 0
    capsys.readouterr()
    assert run([*words, "--resume"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "ppdbench: this run began with compiled passes, which are out of reach here: nothing is "
        "compiled on a CPU; go on where they are not, or begin again with --compile off and "
        "another --out"
    )


# On a GPU


def test_a_gpu_captures_all_numbers_of_rows_but_only_where_that_was_asked_for(
    on_gpu: Loaded, asked: Asked
) -> None:
    told = settled(on_gpu, "on", medusa=decoder(26), skip=decoder(5))
    assert told.rows == [1, 5, 26]
    assert settled(on_gpu, "on", other=decoder(26, foreign=True)).rows == [1]
    assert asked == [(1, 5, 26), (1,)]
    assert "--compile on" in settled(on_gpu, "auto", greedy=decoder(1)).why
    assert settled(on_gpu, "off", greedy=decoder(1)).why == "not asked for"
    assert len(asked) == 2


def test_draft_models_are_captured_for_the_rows_of_drafting(on_gpu: Loaded, asked: Asked) -> None:
    setup = Setup(on_gpu, 64)
    setup.others[on_gpu.spec] = on_gpu
    settle("on", setup, {"speculative": decoder(5)}, lambda *_: None)
    assert asked == [(1, 5), compiling.DRAFTING]


def test_who_joins_a_run_does_as_it_began(on_gpu: Loaded, asked: Asked) -> None:
    assert joined(on_gpu, rows=[1, 5]).rows == [1, 5]
    assert asked == [(1, 5)]
    told = joined(on_gpu, rows=[], why="not asked for")
    assert told == Compilation(mode="auto", rows=[], why="not asked for")
    assert asked == [(1, 5)]


def test_what_cannot_be_captured_is_an_error_only_where_it_was_asked_for(
    on_gpu: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs.Graphs, "why_not", lambda self: "it remembers")
    assert settled(on_gpu, "auto", greedy=decoder(1)).why == f"{MODEL}: it remembers"
    with pytest.raises(ConfigError, match=r"--compile on: .*: it remembers; leave it out"):
        settled(on_gpu, "on", greedy=decoder(1))
    with pytest.raises(ConfigError, match=r"began with compiled passes.*: it r.* --compile off"):
        joined(on_gpu, rows=[1, 5])
    assert asked == []


def test_units_that_load_their_part_by_themselves_stay_eager(on_gpu: Loaded, asked: Asked) -> None:
    apart = decoder(4, units=2)
    assert "several units" in settled(on_gpu, "auto", ppd=apart).why
    with pytest.raises(ConfigError, match="several units"):
        settled(on_gpu, "on", ppd=apart)
    assert asked == []


@pytest.mark.parametrize(
    ("words", "rows"), [(BENCH, [1, 6, 43]), (SWEEP, [1, 3, 21]), (PROBE, [1])], ids=COMMANDS
)
def test_captured_passes_give_what_eager_ones_give(
    words: list[str], rows: list[int], monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr(graphs, "CudaCapture", Repeated)
    # It copies weights in another type, which pretended ones cannot do; it has tests of its own.
    monkeypatch.setattr(StagedModel, "hold_captured", lambda *_: None)
    with gpus(monkeypatch):
        captured, eager = both_ways(words, "--device", "cuda:0")
    assert facts(captured) == facts(eager)
    assert captured.header.compilation.rows == rows
    assert eager.header.compilation.rows == []
    assert "ran captured, ready after" in capsys.readouterr().err


# Bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["decode", "--compile", "yes"], "--compile yes: use auto, on, off"),
        (
            ["decode", "--compile", "on", "--strict"],
            "--strict runs eagerly; leave --compile on out",
        ),
        (
            ["probe", "--compile", "on", "--batch-size", "2"],
            "--compile on is for one sequence at a time; leave it or --batch-size out",
        ),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: Captured) -> None:
    assert run([*words, "--data", "builtin"]) == 2
    assert capsys.readouterr().err == f"ppdbench: {message}\n"
