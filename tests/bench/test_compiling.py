"""Runs are compiled where that was asked for or pays, and say why they are not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest

from ppdbench.bench import compiling
from ppdbench.bench.compiling import settle
from ppdbench.cli.main import run
from ppdbench.engine import artefacts
from ppdbench.engine.compiled import CompiledLayers
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.strategies.base import Decoder, Setup

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=96"
HOURS, SECONDS = 10**9, 100


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(CompiledLayers, "why_not", lambda self: None)
    monkeypatch.setattr(artefacts, "why_not", lambda: None)
    return load(ModelSpec(name=MODEL, device="cpu"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The counts that were to be compiled."""
    found: list[tuple[int, ...]] = []

    def note(self: StagedModel, counts: Collection[int]) -> None:
        found.append(tuple(sorted(counts)))

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


def settled(loaded: Loaded, mode: str, tokens: int, **decoders: Decoder) -> dict[str, Any]:
    return settle(mode, Setup(loaded, 64), decoders, tokens, lambda *_: None)


def test_long_runs_are_compiled_and_short_ones_are_not(
    loaded: Loaded, asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: False)
    assert settled(loaded, "auto", HOURS, greedy=decoder(1), skip=decoder(5))["rows"] == [1, 5]
    short = settled(loaded, "auto", SECONDS, greedy=decoder(1), skip=decoder(5))
    assert short["rows"] == []
    assert "about 60 s and save about 0 s" in short["why"]
    assert asked == [(1, 5)]


def test_what_was_compiled_before_is_used_in_short_runs_too(
    loaded: Loaded, asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: True)
    assert settled(loaded, "auto", SECONDS, greedy=decoder(1))["rows"] == [1]
    assert asked == [(1,)]


def test_wide_trees_stay_eager_unless_it_was_asked_for(
    loaded: Loaded, asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk(monkeypatch, lambda n: True)
    assert "medusa runs 26 rows" in settled(loaded, "auto", HOURS, medusa=decoder(26))["why"]
    assert settled(loaded, "on", SECONDS, medusa=decoder(26), skip=decoder(5))["rows"] == [1, 5]
    assert settled(loaded, "auto", HOURS, other=decoder(26, foreign=True))["rows"] == [1]


def test_without_a_compiler_what_is_on_disk_still_runs(
    loaded: Loaded, asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "why_not", lambda: "no C++ compiler found")
    on_disk(monkeypatch, lambda n: n == 1)
    assert settled(loaded, "auto", HOURS, greedy=decoder(1))["rows"] == [1]
    assert settled(loaded, "auto", HOURS, skip=decoder(5))["why"] == "no C++ compiler found"
    with pytest.raises(ConfigError, match="--compile on: no C"):
        settled(loaded, "on", HOURS, skip=decoder(5))


def test_methods_on_several_units_stay_eager(loaded: Loaded, asked: list[tuple[int, ...]]) -> None:
    spread = decoder(4)
    spread.units = 2
    assert "several units" in settled(loaded, "auto", HOURS, ppd=spread)["why"]
    with pytest.raises(ConfigError, match="several units"):
        settled(loaded, "on", HOURS, ppd=spread)


def test_off_is_off(loaded: Loaded, asked: list[tuple[int, ...]]) -> None:
    assert settled(loaded, "off", HOURS, greedy=decoder(1))["rows"] == asked == []


def test_a_model_that_cannot_be_compiled_is_an_error_only_where_it_was_asked_for() -> None:
    loaded = load(ModelSpec(name=MODEL, dtype="bfloat16", device="cpu"))
    assert "bfloat16" in settled(loaded, "auto", HOURS, greedy=decoder(1))["why"]
    with pytest.raises(ConfigError, match=r"--compile on: .*bfloat16.*; leave it out"):
        settled(loaded, "on", HOURS, greedy=decoder(1))


def test_draft_models_are_compiled_for_the_rows_of_drafting(
    loaded: Loaded, asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
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
