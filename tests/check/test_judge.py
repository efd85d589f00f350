"""Figures under rules: what they let through, and what they call worse or better."""

from __future__ import annotations

from pathlib import Path

from ppdbench.check.baseline import write_baseline
from ppdbench.check.comparison import compare_paths
from ppdbench.check.metrics import Rule
from ppdbench.check.thresholds import Thresholds
from tests.check.made import (
    METHODS,
    Change,
    Sample,
    bench_run,
    checked,
    compared,
    drafting,
    one_accepted_less,
    slower,
    two_turns,
)


def test_a_tolerance_on_counts_is_firm_and_one_sided(tmp_path: Path) -> None:
    rules = {"accepted_per_proposed": Rule("max_drop", 0.1)}
    little = compared(tmp_path / "a", drafting(one_accepted_less, 1, 2), rules=rules)
    assert checked(little, "accepted_per_proposed").verdict == "ok"
    # 4 of 40 fewer is exactly the tenth; 5 is more, though the interval is wide.
    for n, fails in ((4, False), (5, True)):
        found = compared(tmp_path / f"{n}", drafting(one_accepted_less, *range(n)), rules=rules)
        assert bool(found.failed) == fails
    more = compared(tmp_path / "d", drafting(lambda s: {"accepted": [2] * 5}), rules=rules)
    assert checked(more, "accepted_per_proposed").verdict == "better"
    assert more.exit_code == 0


def test_an_interval_lets_through_what_few_examples_changed(tmp_path: Path) -> None:
    rules = {"accepted_per_proposed": Rule("interval")}
    assert not compared(tmp_path / "a", drafting(one_accepted_less, 1), rules=rules).failed
    assert compared(tmp_path / "b", drafting(one_accepted_less, *range(7)), rules=rules).failed


def test_a_speedup_may_fall_to_its_limit_and_no_further(tmp_path: Path) -> None:
    rules = {"speedup": Rule("max_drop", 0.2)}
    assert not compared(tmp_path / "a", slower(1.2), rules=rules).failed
    found = compared(tmp_path / "b", slower(1.3), rules=rules)
    assert [c.metric for c in found.failed] == ["speedup"]
    assert checked(found, "speedup").limit == ">= 1.55x"
    found = compared(tmp_path / "c", slower(0.8), rules=rules)
    assert checked(found, "speedup").verdict == "better"


def test_a_slowdown_within_the_noise_of_greedy_is_none(tmp_path: Path) -> None:
    def noisy(sample: Sample) -> None:
        sample["baseline_again_ms"] = 16.0 if int(sample["example_id"]) % 2 else 10.0

    found = compared(tmp_path, slower(1.3), noisy, rules={"speedup": Rule("max_drop", 0.1)})
    assert not found.failed
    assert checked(found, "speedup").limit.startswith("noise: ")


LARGE = "layerskip (batch 4)"
SIZES = {"layerskip": METHODS["layerskip"], LARGE: {**METHODS["layerskip"], "batch": 4}}


def in_batches(again_ms: float) -> Change:
    """Decodes in batches what greedy decoding had; every other example of these again so slowly."""

    def apply(sample: Sample) -> None:
        if sample["method"] == "greedy":
            again = again_ms if int(sample["example_id"]) % 2 else 10.0
            sample.update(method=LARGE, batch=4)
            sample["full"] = {"ms": sum(sample["step_ms"]) / 2, "steps": 5, "tokens": 10}
            sample["baseline_full"] = {"ms": 10.0, "steps": 10, "tokens": 10}
            sample["baseline_again_full"] = {"ms": again, "steps": 10, "tokens": 10}

    return apply


def test_the_noise_of_a_large_batch_excuses_nothing_in_a_small_one(tmp_path: Path) -> None:
    def slow(factor: float) -> Change:
        def apply(sample: Sample) -> None:
            if sample["method"] == LARGE:
                sample["full"]["ms"] *= factor

        return apply

    baseline = bench_run(tmp_path / "baseline", in_batches(16.0), methods=SIZES)
    rules = Thresholds(rules={"speedup": Rule("max_drop", 0.1)})
    now = bench_run(tmp_path / "a", slower(1.3), in_batches(16.0), slow(1.3), methods=SIZES)
    found = compare_paths(now, baseline, rules)
    assert [(c.subject, c.metric) for c in found.failed] == [("layerskip", "speedup")]
    assert checked(found, "speedup").limit == ">= 1.74x"
    assert checked(found, "speedup", LARGE).limit.startswith("noise: ")
    # The file that is committed knows the sizes too.
    write_baseline(tmp_path / "baseline.json", tmp_path / "baseline")
    assert compare_paths(now, tmp_path / "baseline.json", rules).checks == found.checks


def test_turns_of_few_conversations_are_too_few_to_judge_a_speedup(tmp_path: Path) -> None:
    data = {"squad": {"version": 1, "sha256": "dd", "examples": 4}}
    baseline = bench_run(tmp_path / "baseline", two_turns, data=data)
    now = bench_run(tmp_path / "now", slower(1.3), two_turns, data=data)
    found = compare_paths(now, baseline, Thresholds(rules={}))
    assert not [check for check in found.checks if check.metric == "speedup"]
    assert found.notes == ("squad: layerskip, speedup: too few examples, so it is not judged.",)


def test_a_slowdown_that_one_example_made_is_not_beyond_the_interval(tmp_path: Path) -> None:
    slow = drafting(lambda s: {"step_ms": [20.0] * 5}, 4)
    found = compared(tmp_path, slow, rules={"speedup": Rule("max_drop", 0.1)})
    assert not found.failed
    assert "may be none" in checked(found, "speedup").note


def test_a_faster_machine_is_no_speedup(tmp_path: Path) -> None:
    def halved(sample: Sample) -> None:
        for name in ("step_ms", "baseline_step_ms"):
            sample[name] = [ms / 2 for ms in sample[name]]
        sample["baseline_again_ms"] /= 2

    assert checked(compared(tmp_path, halved), "speedup").verdict == "ok"
