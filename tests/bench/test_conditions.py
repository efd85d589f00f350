"""Runs under load say so beside their figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from ppdbench.machine import load
from ppdbench.report import outputs
from ppdbench.report.page.runs import read_runs
from tests.filled import add_up, conditions_of
from tests.report.page import made

METHODS = made.methods("swift")
QUIET = load.LoadSpan(seconds=1.0, cores=2, others_s=0.1, stolen_s=0.0, load_average=1.9)


def samples(again_ms: float = 12.0, **changes: Any) -> list[dict[str, Any]]:
    seen = {**QUIET.to_dict(), **changes}
    return [
        made.decoded("swift", str(i), 2.0, load=seen, baseline_again_ms=again_ms) for i in range(6)
    ]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (samples(), None),
        (samples(load_average=None), None),
        (samples(load_average=8.53), "load average 8.5 on 2 cores"),
        (samples(others_s=0.9), "other programs used 45% of 2 cores"),
        (samples(stolen_s=0.2), "the host took 10% of the processor's time"),
        (samples(again_ms=18.0), "greedy decoding took 1.50 times as long in one of its two runs"),
        (
            [made.decoded("swift", baseline_again_ms=8.0)],
            "took 1.50 times as long in one of its two runs",
        ),
        ([made.decoded("swift", verdict="failed", output_ids=[])], None),
    ],
)
def test_what_disturbs_times_is_told(found: list[dict[str, Any]], words: str | None) -> None:
    told = conditions_of(METHODS, add_up(found)).under_load
    assert told == words if words is None else words in str(told)


def test_tables_of_decode_and_bench_say_that_a_run_was_under_load(tmp_path: Path) -> None:
    for kind in ("decode", "bench"):
        head = made.header(kind, methods=METHODS)
        calm = made.write(tmp_path / f"{kind}-calm", head, samples())
        busy = made.write(tmp_path / kind, head, samples(load_average=18.0))
        for run, told in ((calm, False), (busy, True)):
            output = outputs.of_run(read_runs([run])[0])
            notes = [note for sheet in output.sheets for note in sheet.notes]
            assert any("Under load: load average 18.0" in note for note in notes) == told
            content = output.content if isinstance(output.content, dict) else output.content[0]
            assert (content["under_load"] is not None) == told


class Machine:
    """A machine of two usable cores and a third, whose counters go on with each look."""

    def __init__(self) -> None:
        self.looks = 0

    def cpu_times(self, *, percpu: bool) -> list[SimpleNamespace]:
        assert percpu
        self.looks += 1
        core = {"user": 2.0, "system": 1.0, "nice": 0.5, "steal": 0.25}
        return [SimpleNamespace(**{n: s * self.looks for n, s in core.items()})] * 3

    def Process(self) -> SimpleNamespace:
        return self.process(1.5, [self.process(1.0), self.process(None)])

    def process(
        self, seconds: float | None, children: Sequence[SimpleNamespace] = ()
    ) -> SimpleNamespace:
        def cpu_times() -> SimpleNamespace:
            if seconds is None:
                raise psutil.NoSuchProcess(1)
            return SimpleNamespace(user=seconds * self.looks, system=0.5 * self.looks)

        return SimpleNamespace(cpu_times=cpu_times, children=lambda recursive: children)


def test_what_this_process_and_its_children_do_is_not_other_programs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine()
    monkeypatch.setattr(load.psutil, "cpu_times", machine.cpu_times)
    monkeypatch.setattr(load.psutil, "Process", machine.Process)
    monkeypatch.setattr(load, "_usable", lambda: [0, 1])
    with load.LoadMeter() as watch:
        pass
    # Of two cores 3.5 s each; ours: 2 s and a child's 1.5 s, another child is gone.
    assert watch.load.others_s == pytest.approx(2 * 3.5 - 2.0 - 1.5)
    assert watch.load.stolen_s == pytest.approx(0.5)
    assert watch.load.cores == 2


def test_a_real_machine_can_be_watched() -> None:
    with load.LoadMeter() as watch:
        sum(range(10_000))
    assert 0 < watch.load.seconds < 60
    assert watch.load.others_s >= 0
    assert set(watch.load.to_dict()) == set(QUIET.to_dict())


def test_a_method_that_was_added_later_has_the_conditions_of_its_own_day(tmp_path: Path) -> None:
    methods = made.methods("greedy", "swift")
    of_swift = samples(again_ms=30.0, load_average=18.0)
    calm = {**QUIET.to_dict()}
    of_greedy = [made.decoded("greedy", str(i), load=calm) for i in range(6)]
    found = {}
    for name, added in (("together", None), ("apart", {"swift": "2026-11-29T15:36:41+00:00"})):
        head = made.header("bench", methods=methods, added=added)
        (run,) = read_runs([made.write(tmp_path / name, head, of_greedy + of_swift)])
        notes = " ".join(note for sheet in outputs.of_run(run).sheets for note in sheet.notes)
        found[name] = {s["label"]: s for s in run.summaries}, notes
    together, told = found["together"]
    assert all(s["noise_high"] == pytest.approx(2.5) for s in together.values())
    assert all(s["no_difference"] for s in together.values())
    assert "added" not in told
    apart, told = found["apart"]
    assert apart["greedy"]["noise_high"] < 1.1
    assert apart["greedy"]["under_load"] is None
    assert apart["swift"]["noise_high"] == pytest.approx(2.5)
    assert apart["swift"]["no_difference"]
    assert "swift (2026-11-29, noise [0.40, 2.50])" in told
    assert "Under load on 2026-11-29: load average 18.0" in told
    assert "Greedy against itself: [0.98, 1.02]" in told or "Greedy against itself: [0.99" in told
