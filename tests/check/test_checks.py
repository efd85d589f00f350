"""Every check of a run: identity, outputs, what is not judged, and memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from ppdbench.check.baseline import write_baseline
from ppdbench.check.checks import Checks
from ppdbench.check.comparison import compare_paths
from ppdbench.check.metrics import Rule
from ppdbench.check.snapshot import snapshot
from ppdbench.check.thresholds import Thresholds
from ppdbench.errors import DataError
from ppdbench.runs.store import read_run
from tests.check.made import (
    INEXACT,
    METHODS,
    Change,
    Sample,
    bench_run,
    checked,
    compared,
    drafting,
    elsewhere,
    failed,
    slower,
)


def test_a_mismatch_fails_and_takes_its_speedup_with_it(tmp_path: Path) -> None:
    found = compared(tmp_path, drafting(lambda s: {"verdict": "mismatch"}, 3))
    assert found.exit_code == 1
    assert [c.metric for c in found.failed] == ["identity"]
    assert "1 mismatches, 0 ties, 7 identical" in checked(found, "identity").sentence
    assert "speedup" not in {c.metric for c in found.checks}


def test_ties_are_reported_and_count_only_where_that_is_asked(tmp_path: Path) -> None:
    ties = drafting(lambda s: {"verdict": "tie"}, 1, 2)
    found = compared(tmp_path / "a", ties)
    assert found.exit_code == 0
    assert "2 ties" in checked(found, "identity").note
    assert compared(tmp_path / "b", ties, rules={"identity": Rule("max_ties", 1)}).exit_code == 1
    assert compared(tmp_path / "c", ties, rules={"identity": Rule("max_ties", 2)}).exit_code == 0


def test_methods_that_are_not_exact_owe_no_identity(tmp_path: Path) -> None:
    changed = drafting(lambda s: {"verdict": "inexact"})
    runs = [bench_run(tmp_path / name, changed, methods=INEXACT) for name in ("now", "then")]
    found = compare_paths(*runs, Thresholds())
    assert found.exit_code == 0
    assert [c.subject for c in found.checks if c.metric == "identity"] == ["greedy"]


def test_another_output_fails_and_is_named(tmp_path: Path) -> None:
    found = compared(tmp_path, drafting(lambda s: {"output_ids": [9, *s["output_ids"][1:]]}, 5))
    assert [c.metric for c in found.failed] == ["outputs"]
    assert "other output in 5" in checked(found, "outputs").sentence


def test_on_another_machine_a_share_of_the_outputs_may_differ(tmp_path: Path) -> None:
    def other(*numbers: int) -> Change:
        return drafting(lambda s: {"output_ids": [9, *s["output_ids"][1:]]}, *numbers)

    there = {"environment": elsewhere()}
    assert compared(tmp_path / "a", other(1, 2), **there).exit_code == 0
    assert compared(tmp_path / "b", other(1, 2, 3), **there).exit_code == 1
    none = {"outputs": Rule("other_machines", 0.0)}
    assert compared(tmp_path / "c", other(1), rules=none, **there).exit_code == 1


def test_a_new_method_has_no_baseline_but_its_identity_is_checked(tmp_path: Path) -> None:
    def renamed(sample: Sample) -> None:
        if sample["method"] == "layerskip":
            sample |= {"method": "jacobi", "verdict": "mismatch"}

    both = {**METHODS, "jacobi": {**METHODS["layerskip"], "name": "jacobi"}}
    now = bench_run(tmp_path / "now", methods=both)
    extra = bench_run(tmp_path / "extra", renamed, methods=both)
    lines = [x for x in (extra / "samples.jsonl").read_text().splitlines() if "jacobi" in x]
    with (now / "samples.jsonl").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    found = compare_paths(now, bench_run(tmp_path / "baseline"), Thresholds())
    assert [(c.subject, c.metric) for c in found.failed] == [("jacobi", "identity")]
    assert "jacobi" in found.notes[0]


def test_more_memory_than_allowed_fails(tmp_path: Path) -> None:
    def more(sample: Sample) -> None:
        sample["peak_memory_bytes"] = 130 << 20

    found = compared(tmp_path, more)
    assert [c.sentence for c in found.failed] == ["130 MiB, baseline 100 MiB, limit <= 120 MiB"]


def test_ignored_metrics_are_not_checked(tmp_path: Path) -> None:
    rules = {"speedup": Rule("ignored"), "outputs": Rule("ignored"), "peak_memory": Rule("ignored")}
    found = compared(tmp_path, slower(9), rules=rules)
    assert found.exit_code == 0
    assert not {c.metric for c in found.checks} & rules.keys()


def test_a_speedup_of_some_examples_is_not_judged_and_that_is_said(tmp_path: Path) -> None:
    found = compared(tmp_path, slower(9), drafting(failed, 0))
    assert "speedup" not in {c.metric for c in found.checks}
    assert "squad: layerskip, speedup: failed examples, so it is not judged." in found.notes
    assert checked(found, "accepted_per_proposed").verdict == "ok"


def test_a_speedup_whose_times_do_not_add_up_is_not_judged_and_that_is_said(tmp_path: Path) -> None:
    gap = drafting(lambda s: {"wall_ms": 99.0})
    plain, slow = bench_run(tmp_path / "plain"), bench_run(tmp_path / "slow", slower(9))
    odd, both = bench_run(tmp_path / "odd", gap), bench_run(tmp_path / "both", slower(9), gap)
    write_baseline(tmp_path / "odd.json", odd)
    for now, then in ((both, plain), (slow, odd), (slow, tmp_path / "odd.json")):
        found = compare_paths(now, then, Thresholds())
        assert found.exit_code == 0
        assert "speedup" not in {c.metric for c in found.checks}
        assert found.notes == (
            "squad: layerskip, speedup: times do not add up, so it is not judged.",
        )


def test_a_figure_that_the_run_lacks_is_refused_by_name(tmp_path: Path) -> None:
    run, then = (read_run(bench_run(tmp_path / name)) for name in ("now", "baseline"))
    now, baseline = snapshot(run), snapshot(then)
    lacking = tuple(f for f in now.figures if f.metric != "committed_per_step")
    checks = Checks(run, dataclasses.replace(now, figures=lacking), baseline, Thresholds())
    with pytest.raises(DataError, match="squad has no committed_per_step of layerskip"):
        list(checks)
