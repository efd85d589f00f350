"""What a run is reduced to, to be compared: examples in one order, and how outputs were drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.check.snapshot import snapshot
from ppdbench.errors import DataError
from ppdbench.runs.store import read_whole
from tests.check.made import N_EXAMPLES, bench_header, bench_run, elsewhere, probe_run, two_turns


def drawn(kind: str) -> dict[str, Any]:
    settings = bench_header()["config"]
    return {**settings, "target": {**settings["target"], "kind": kind}}


@pytest.mark.parametrize(("kind", "told"), [("greedy", None), ("top-p", "top-p")])
def test_how_outputs_were_drawn_is_told(kind: str, told: str | None, tmp_path: Path) -> None:
    run = bench_run(tmp_path / "run", config=drawn(kind))
    assert snapshot(read_whole(run)).drawn == told


def test_a_probe_draws_no_outputs_of_methods(tmp_path: Path) -> None:
    made = snapshot(read_whole(probe_run(tmp_path / "run")))
    assert made.drawn is None
    assert made.subjects == ["greedy"]
    assert {figure.metric for figure in made.figures} == {"match_rate"}


def test_everything_kept_by_example_is_in_one_order(tmp_path: Path) -> None:
    half = N_EXAMPLES // 2
    data = {"squad": {**bench_header()["data"]["squad"], "examples": half, "turns": N_EXAMPLES}}
    made = snapshot(read_whole(bench_run(tmp_path / "run", two_turns, data=data)))
    examples = [name for n in range(half) for name in (str(n), f"{n}/2")]
    assert sorted(made.examples("squad")) == sorted(examples)
    assert list(made.questions("squad")) == [e.partition("/")[0] for e in made.examples("squad")]
    assert made.subjects == ["greedy", "layerskip"]
    for figure in made.figures:
        assert len(figure.parts) == N_EXAMPLES
    for outputs in made.outputs:
        hashes = dict(zip(made.examples("squad"), outputs.hashes, strict=True))
        assert len(set(hashes.values())) == N_EXAMPLES


def test_of_the_machine_stays_what_rounding_hangs_on(tmp_path: Path) -> None:
    here, there = (
        snapshot(read_whole(bench_run(tmp_path / name, environment=machine)))
        for name, machine in (("a", bench_header()["environment"]), ("b", elsewhere()))
    )
    assert here.machine != there.machine
    assert here.outputs == there.outputs


def test_nothing_is_made_of_a_run_without_samples(tmp_path: Path) -> None:
    run = bench_run(tmp_path / "run")
    (run / "samples.jsonl").write_text("", "utf-8")
    with pytest.raises(DataError, match="holds no finished samples"):
        snapshot(read_whole(run))
