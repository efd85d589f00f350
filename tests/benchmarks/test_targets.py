"""The table of goals: rows are measured as they say, and goals are those of the kernels."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.engines.__main__ import EngineSpeeds, MeasuredEngines
from benchmarks.targets import __main__ as targets
from benchmarks.targets import memory, methods, speed
from benchmarks.targets.rows import TargetRow, in_another_process

TINY = "synthetic:layers=2,hidden=64"
ANY = tuple(range(64))


def test_a_row_shows_the_median_and_the_range_or_why_there_are_none() -> None:
    assert TargetRow("a", "1 or more", [3.0, 1.0, 2.0], "n").cells() == (
        "a",
        "1 or more",
        2,
        1,
        3,
        "n",
    )
    assert TargetRow("a", "b", [], "absent").cells() == ("a", "b", None, None, None, "absent")


@pytest.mark.parametrize(
    ("dtype", "kernels", "most"),
    [
        ("bfloat16", "flat, bfloat16 AMX", speed.IN_TILES),
        ("bfloat16", "flat, bfloat16 AMX, 211 of 211 weights as stored", speed.IN_TILES),
        ("bfloat16", "flat, bfloat16 AVX-512 products", {9: 1.4}),
        ("bfloat16", "flat, bfloat16 widened, without AMX: a product is off", {9: 1.4}),
        ("float32", "flat, float32 AVX-512", {9: 1.35, 16: 1.8}),
    ],
)
def test_matrix_tiles_have_stricter_goals(dtype: str, kernels: str, most: dict[int, float]) -> None:
    assert speed.most_of_one(dtype, kernels) == most


def test_engines_that_are_absent_are_named_and_others_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speeds = (
        EngineSpeeds(name=speed.STORED, said="flat", tokens_per_s=[100.0, 106.0, 110.0]),
        EngineSpeeds(name="llama.cpp", said="4 bits", tokens_per_s=[140.0, 142.0, 143.0]),
        EngineSpeeds(name="OpenVINO GenAI", said="not installed: pip"),
    )

    def found(asked: argparse.Namespace) -> MeasuredEngines:
        assert asked.model == "smollm2" and asked.rounds == 3
        about = {"model": asked.model, "threads": asked.threads, "machine": "here"}
        return MeasuredEngines(**about, prompt_tokens=64, tokens=128, engines=[*speeds])

    monkeypatch.setattr(speed.other_engines, "measured", found)
    llama, openvino = speed.engines(3)
    assert llama.values == [106.0 / 142.0]
    assert llama.goal == "1.0 or more"
    assert not openvino.values
    assert openvino.note == "not installed: pip"


@pytest.mark.slow
def test_two_units_are_held_against_what_the_theorem_promises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "REAL", "reference")
    monkeypatch.setattr(methods, "DTYPES", ("float32",))
    rows = list(methods.split(5))
    assert [row.goal for row in rows] == ["0.85 or more", "0.75 or more"]
    for row, k in zip(rows, (1, 3), strict=True):
        assert f"k={k}, share of the gain, reference, float32" in row.what
        said = r"p 0\.\d+, promised [\d.]+x, with a memory each [\d.]+x, with one [\d.]+x"
        assert re.fullmatch(said, row.note)
        assert all(map(math.isfinite, row.values)) and len(row.values) == 1


def test_memory_beyond_weights_is_measured() -> None:
    words = "synthetic:layers=8,hidden=512", "float32"
    extra, libraries = in_another_process(memory.__name__, *words)
    assert -0.5 < extra < 1
    assert libraries > 50e6


def test_readiness_is_of_the_passes() -> None:
    assert 0 < speed.ready_s(TINY, "float32") < 60


def test_what_is_asked_for_is_measured_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def growth(rounds: int) -> Iterator[TargetRow]:
        yield TargetRow("growth of time", "1.3 or less", [float(rounds)])

    def probing(_: int) -> Iterator[Any]:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(targets, "MEASUREMENTS", (growth, probing))
    monkeypatch.setattr("sys.argv", ["targets", "--only", "growth", "--rounds", "2"])
    targets.main()
    assert "| growth of time | 1.3 or less | 2.000 |" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["targets", "--only", "grwth"])
    with pytest.raises(SystemExit):
        targets.main()
    assert "--only grwth: use growth, probing" in capsys.readouterr().err


def test_answers_that_say_nothing_are_told_apart_in_what_speculation_gains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(methods, "REAL", TINY)
    monkeypatch.setattr(methods, "DTYPES", ("float32",))
    monkeypatch.setattr(methods, "FREE", ("greedy", "prompt-lookup"))
    monkeypatch.setattr(methods, "TRAINED", ())
    monkeypatch.setattr(methods, "TASKS", ("gsm8k",))
    real = methods.decoded

    def cut(*args: Any, **more: Any) -> Any:
        assert more.pop("max_new_tokens") is None  # whole answers
        header, samples = real(*args, **more)
        first, *_ = (sample.question for sample in samples)
        outputs = {first: (7,) * 64}
        return header, [
            replace(s, output_ids=outputs.get(s.question, ANY), text="words") for s in samples
        ]

    monkeypatch.setattr(methods, "decoded", cut)
    gain, beside_peer = methods.speculation(6)
    assert gain.what == f"prompt-lookup / greedy, {TINY}, float32"
    assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\] without 1 endless or empty answers", gain.note)
    assert beside_peer.goal == "2.5 or more"
    assert len(beside_peer.values) == 6
