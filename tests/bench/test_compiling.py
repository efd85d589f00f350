"""Runs are compiled where that was asked for or pays, and say why they are not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ppdbench.bench import compiling
from ppdbench.bench.compiling import settle
from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Decoder, Setup
from ppdbench.engine import artefacts
from ppdbench.engine.compiled import CompiledLayers
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.machine.cores import confined
from ppdbench.machine.environment import usable_cores
from ppdbench.runs.records import Compilation

Asked = list[tuple[int | str, ...]]
MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=96"
HOURS, SECONDS = 10**9, 100


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(CompiledLayers, "why_not", lambda self: None)
    monkeypatch.setattr(artefacts, "why_not", lambda: None)
    return load(ModelSpec(name=MODEL, device="cpu"), passes="eager")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The counts that were to be compiled, and whether wider passes go beside them."""
    found: Asked = []

    def note(self: StagedModel, counts: Collection[int], *, wider: bool = False) -> None:
        found.append((*sorted(counts), "and wider") if wider else tuple(sorted(counts)))

    monkeypatch.setattr(StagedModel, "compile", note)
    return found


def on_disk(monkeypatch: pytest.MonkeyPatch, there: Callable[[int], bool]) -> None:
    monkeypatch.setattr(
        CompiledLayers, "missing", lambda self, counts: [n for n in counts if not there(n)]
    )


def decoder(rows: int, *, foreign: bool = False) -> Decoder:
    made = Decoder()
    made.rows, made.foreign = rows, foreign
    return made


def settled(loaded: Loaded, mode: str, tokens: int, **decoders: Decoder) -> Compilation:
    return settle(mode, Setup(loaded, 64), decoders, tokens, lambda *_: None)


def test_long_runs_are_compiled_and_short_ones_are_not(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: False)
    assert settled(loaded, "auto", HOURS, greedy=decoder(1), skip=decoder(5)).rows == [1, 5]
    short = settled(loaded, "auto", SECONDS, greedy=decoder(1), skip=decoder(5))
    assert short.rows == []
    assert "about 60 s and save about 0 s" in short.why
    assert asked == [(1, 5)]


def test_what_was_compiled_before_is_used_in_short_runs_too(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: True)
    assert settled(loaded, "auto", SECONDS, greedy=decoder(1)).rows == [1]
    assert asked == [(1,)]


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_beside_wide_trees_narrow_passes_are_compiled(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    on_disk(monkeypatch, lambda n: True)
    told = settled(loaded, mode, HOURS, medusa=decoder(26), skip=decoder(5))
    assert (told.rows, told.eager_rows) == ([1, 5], [26])
    told = settled(loaded, mode, HOURS, other=decoder(26, foreign=True))
    assert (told.rows, told.eager_rows) == ([1], [])
    assert asked == [(1, 5, "and wider"), (1,)]


def test_wide_trees_get_no_copy_of_the_weights_that_memory_has_no_room_for(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: True)
    free = SimpleNamespace(available=loaded.staged.weight_bytes())
    monkeypatch.setattr(compiling.psutil, "virtual_memory", lambda: free)
    why = settled(loaded, "auto", HOURS, medusa=decoder(26)).why
    assert why.startswith("passes of 26 rows stay eager and want a copy of the weights")
    assert settled(loaded, "on", HOURS, medusa=decoder(26)).eager_rows == [26]
    assert settled(loaded, "auto", HOURS, skip=decoder(5)).rows == [1, 5]
    assert asked == [(1,), (1, 5)]


def joined(loaded: Loaded, begun: dict[str, Any], mode: str = "auto") -> Compilation:
    decoders = {"skip": decoder(5)}
    return settle(mode, Setup(loaded, 64), decoders, SECONDS, lambda *_: None, Compilation(**begun))


def test_who_joins_a_run_does_as_it_began_whatever_is_on_its_disk(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: False)
    assert joined(loaded, {"mode": "auto", "rows": [1, 5]}).rows == [1, 5]
    assert asked == [(1, 5)]
    on_disk(monkeypatch, lambda n: True)
    told = joined(loaded, {"mode": "auto", "rows": [], "why": "too short"})
    assert told == Compilation(mode="auto", rows=[], why="too short")
    assert asked == [(1, 5)]


def test_who_cannot_go_on_compiled_says_so(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: False)
    monkeypatch.setattr(artefacts, "why_not", lambda: "no C++ compiler found")
    with pytest.raises(ConfigError, match=r"began with compiled passes.*: no C.* --compile off"):
        joined(loaded, {"mode": "auto", "rows": [1, 5]})


def test_a_gpu_captures_all_numbers_of_rows_but_only_where_that_was_asked_for(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded.staged, "device", torch.device("cuda"))
    told = settled(loaded, "on", SECONDS, medusa=decoder(26), skip=decoder(5))
    assert (told.rows, told.eager_rows) == ([1, 5, 26], [])
    assert asked == [(1, 5, 26)]
    assert "--compile on" in settled(loaded, "auto", HOURS, greedy=decoder(1)).why


def test_without_a_compiler_what_is_on_disk_still_runs(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "why_not", lambda: "no C++ compiler found")
    on_disk(monkeypatch, lambda n: n == 1)
    assert settled(loaded, "auto", HOURS, greedy=decoder(1)).rows == [1]
    assert settled(loaded, "auto", HOURS, skip=decoder(5)).why == "no C++ compiler found"
    with pytest.raises(ConfigError, match="--compile on: no C"):
        settled(loaded, "on", HOURS, skip=decoder(5))


def spread(rows: int, *, compiles: bool = True) -> Decoder:
    made = decoder(rows)
    made.units, made.threads, made.compiles = 2, 1, compiles
    return made


def test_passes_of_units_are_compiled_for_the_threads_that_they_have(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = min(2, usable_cores())
    found: dict[int, list[int]] = {}

    def note(self: StagedModel, counts: Collection[int], *, wider: bool = False) -> None:
        found[torch.get_num_threads()] = sorted(counts)

    monkeypatch.setattr(StagedModel, "compile", note)
    on_disk(monkeypatch, lambda n: False)
    with confined((), threads + 1):
        told = settled(loaded, "on", SECONDS, ppd=spread(3), skip=decoder(5))
    assert told.rows == [1, 3, 5]
    # Greedy decoding is timed on one unit and on the threads of all.
    assert found == {threads + 1: [1, 5], threads: [1]} | {1: [1, 3]}
    short = settled(loaded, "auto", SECONDS, ppd=spread(3))
    assert "compiling would take about" in short.why


def test_units_that_load_their_part_by_themselves_stay_eager(loaded: Loaded, asked: Asked) -> None:
    apart = spread(4, compiles=False)
    assert "several units" in settled(loaded, "auto", HOURS, ppd=apart).why
    with pytest.raises(ConfigError, match="several units"):
        settled(loaded, "on", HOURS, ppd=apart)


def test_off_is_off(loaded: Loaded, asked: Asked) -> None:
    assert settled(loaded, "off", HOURS, greedy=decoder(1)).rows == asked == []


def test_a_model_that_cannot_be_compiled_is_an_error_only_where_it_was_asked_for() -> None:
    loaded = load(ModelSpec(name=MODEL, dtype="float16", device="cpu"), passes="eager")
    assert "float16" in settled(loaded, "auto", HOURS, greedy=decoder(1)).why
    with pytest.raises(ConfigError, match=r"--compile on: .*not for float16.*; leave it out"):
        settled(loaded, "on", HOURS, greedy=decoder(1))


@pytest.mark.parametrize("features", [["avx2"], None])
def test_bfloat16_is_compiled_by_itself_but_where_the_processor_has_amx(
    features: list[str] | None, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = load(ModelSpec(name=MODEL, dtype="bfloat16", device="cpu"), passes="eager")
    on_disk(monkeypatch, lambda n: True)
    monkeypatch.setattr(compiling, "cpu_features", lambda: features)
    assert settled(half, "auto", HOURS, greedy=decoder(1)).rows == [1]
    monkeypatch.setattr(compiling, "cpu_features", lambda: ["avx2", "amx_bf16"])
    assert "AMX" in settled(half, "auto", HOURS, greedy=decoder(1)).why
    assert settled(half, "on", HOURS, greedy=decoder(1)).rows == [1]


def test_draft_models_are_compiled_for_the_rows_of_drafting(
    loaded: Loaded, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: True)
    setup = Setup(loaded, 64)
    setup.others[loaded.spec] = loaded
    settle("on", setup, {"speculative": decoder(5)}, SECONDS, lambda *_: None)
    assert asked == [(1, 5), compiling.DRAFTING]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compile", "yes"], "--compile yes: use auto, on, off"),
        (["--compile", "on", "--strict"], "--strict runs eagerly; leave --compile on out"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", "--method", "greedy", "--data", "builtin", *words]) == 2
    assert capsys.readouterr().err == f"ppdbench: {message}\n"
