"""Where a step of a batch goes: every moment belongs to one part, and waiting to none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from greenlet import getcurrent, greenlet

from benchmarks import batch_steps, readme
from benchmarks.batch_steps import BOOKKEEPING, PARTS, PartClock
from ppdbench.decoding.batch import BatchRound

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
WORDS = ["--model", MODEL, "--batch", "4", "--tokens", "8", "--rounds", "1"]


def test_the_parts_of_a_step_are_measured_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    kept = tmp_path / "results" / "batches" / "steps-small.json"
    methods = ["greedy", "prompt-lookup", "layerskip"]
    words = [*WORDS, "--methods", *methods, "--dtype", "float32", "--save", str(kept)]
    assert batch_steps.main(words) == 0
    assert torch.get_num_threads() == threads
    found = batch_steps.stored(kept)
    assert [each.method for each in found.steps] == methods
    for each in found.steps:
        assert each.steps > 0
        assert set(each.parts) == set(PARTS)
        assert all(each.parts[part] > 0 for part in ("passes", *BOOKKEEPING))
        assert (each.parts["drafting"] > 0) == (each.method != "greedy")
        assert each.share(*PARTS) == pytest.approx(1)
    (sheet,) = batch_steps.sheets(found)
    assert sheet.title in capsys.readouterr().out
    assert found.machine in sheet.notes
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "BATCHES", kept.parent)
    block = "<!-- results/batches/steps-small.json: Where a step goes -->\n<!-- end -->"
    assert "prompt-lookup" in readme.rendered(block)


def test_what_one_waits_for_runs_on_the_part_of_who_does_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def work(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(batch_steps, "perf_counter", lambda: now)
    clock, host = PartClock(since=now), getcurrent()
    wait = clock.during("joining")(lambda: host.switch())

    def guess() -> None:
        wait()
        work(4)

    def loop() -> None:
        work(1)
        clock.during("drafting")(guess)()

    member = greenlet(clock.during("loops")(loop))
    member.switch()
    clock.during("passes")(work)(2)
    member.switch()
    assert {part: spent for part, spent in clock.spent.items() if spent} == {
        "loops": 1,
        "passes": 2,
        "drafting": 4,
    }


def test_only_steps_with_all_places_taken_count() -> None:
    clock = PartClock()
    clock.ends = [dict.fromkeys(PARTS, float(n)) for n in (1, 3, 6, 10)]
    rounds = [BatchRound(2, 2, 1), BatchRound(2, 0, 2), BatchRound(2, 1, 2), BatchRound(1, 0, 1)]
    assert batch_steps.full_steps(clock, rounds, 2) == [dict.fromkeys(PARTS, 2.0)]


def test_what_cannot_be_measured_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["--batch", "999"], "--batch 999: gsm8k has 18 examples here"),
        (["--methods", "ppd"], "no batches with this method"),
        (["--tokens", "1", "--methods", "greedy"], "no step with all places taken"),
    ):
        assert batch_steps.main([*WORDS, "--dtype", "float32", *words]) == 2
        assert told in capsys.readouterr().err.splitlines()[-1]
