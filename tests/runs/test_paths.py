"""A run that is gone on with keeps the kernels that its header names, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine.flat import choice
from ppdbench.engine.flat.choice import PairedTime, Unavailable
from ppdbench.engine.flat.library import Kernels
from ppdbench.runs.store import read_run
from tests import flat_ops

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300"
DECODE = ["decode", "--model", MODEL, "--device", "cpu", "--dtype", "float32", "--data", "builtin"]
DECODE += ["--task", "gsm8k", "--limit", "2", "--max-new-tokens", "4", "--warmup", "0"]
DECODE += ["--method", "prompt-lookup", "--out", "run"]
FASTER = [PairedTime(rows, flat_s=1e-3, eager_s=2e-3) for rows in choice.ROWS]
SLOWER = [PairedTime(rows, flat_s=2e-3, eager_s=1e-3) for rows in choice.ROWS]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flat_ops.stand_in(monkeypatch)


def begin(monkeypatch: pytest.MonkeyPatch, times: list[PairedTime]) -> str:
    """Begin a run where flat passes took these times; the first of its samples is left."""
    monkeypatch.setattr(choice, "measure", lambda *_: times)
    assert run(DECODE) == 0
    samples = Path("run/samples.jsonl")
    samples.write_text(samples.read_text().splitlines(keepends=True)[0])
    kernels: str = read_run("run").header.passes.kernels
    return kernels


@pytest.mark.parametrize(("begun", "now"), [(FASTER, SLOWER), (SLOWER, FASTER)])
def test_the_path_of_the_header_is_taken_whatever_is_faster_now(
    begun: list[PairedTime], now: list[PairedTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = begin(monkeypatch, begun)
    assert kernels.startswith("flat" if begun is FASTER else "eager")
    taken = list[str]()
    real = choice.lay_out

    def lay_out(adapter, text, passes):  # type: ignore[no-untyped-def]
        found = real(adapter, text, passes)
        taken.append(found[1].kernels)
        return found

    monkeypatch.setattr("ppdbench.engine.staged.lay_out", lay_out)
    monkeypatch.setattr(choice, "measure", lambda *_: now)
    assert run([*DECODE, "--resume"]) == 0
    assert taken == [kernels]
    assert len(list(read_run("run").samples)) == 2


def test_without_the_kernels_of_the_header_a_run_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    kernels = begin(monkeypatch, FASTER)

    def missing(dtype: torch.dtype) -> None:
        raise Unavailable("no C++ compiler found")

    monkeypatch.setattr(choice, "library", missing)
    capsys.readouterr()
    assert run([*DECODE, "--resume"]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("ppdbench: ")]
    assert f"began with passes that run {kernels}; here they run eager" in line
    assert "no C++ compiler found" in line


def test_a_run_that_is_refused_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "measure", lambda *_: FASTER)
    begun = ["bench", *DECODE[1:], "--method", "greedy"]
    assert run(begun) == 0
    before = read_run("run").header

    def missing(dtype: torch.dtype) -> None:
        raise Unavailable("no C++ compiler found")

    monkeypatch.setattr(choice, "library", missing)
    assert run([*begun, "--method", "jacobi", "--resume"]) == 2
    assert read_run("run").header == before


def test_kernels_of_another_kind_do_not_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    begin(monkeypatch, FASTER)

    monkeypatch.setattr(choice, "library", lambda _: Kernels("of another kind"))
    capsys.readouterr()
    assert run([*DECODE, "--resume"]) == 2
    assert "here they run flat, of another kind" in capsys.readouterr().err
