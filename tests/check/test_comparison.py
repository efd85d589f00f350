"""What counts as worse between two runs, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.check.comparison import compare_paths
from ppdbench.check.thresholds import Thresholds
from ppdbench.errors import DataError
from tests.check.made import (
    Sample,
    bench_run,
    checked,
    compared,
    drafting,
    elsewhere,
    failed,
    one_accepted_less,
    probe_run,
    two_turns,
)


def test_conversations_are_counted_by_their_questions(tmp_path: Path) -> None:
    data = {"squad": {"version": 1, "sha256": "dd", "examples": 4}}
    now = bench_run(tmp_path / "now", two_turns, data=data)
    assert compare_paths(now, now, Thresholds(rules={})).exit_code == 0
    samples = (now / "samples.jsonl").read_text("utf-8").splitlines(keepends=True)
    (now / "samples.jsonl").write_text("".join(samples[:-1]), "utf-8")  # a later turn is lacking
    with pytest.raises(DataError, match="4 of 4 examples and 7 of 8 turns"):
        compare_paths(now, now, Thresholds(rules={}))
    firsts = "".join(line for line in samples if '"turn": 1' in line)
    (now / "samples.jsonl").write_text(firsts, "utf-8")
    compare_paths(now, now, Thresholds(rules={}))  # as runs that do not say how many there are
    header = json.loads((now / "run.json").read_text("utf-8"))
    header["data"]["squad"]["turns"] = 8
    (now / "run.json").write_text(json.dumps(header), "utf-8")
    with pytest.raises(DataError, match="4 of 4 examples and 4 of 8 turns"):
        compare_paths(now, now, Thresholds(rules={}))


def test_a_run_is_as_good_as_itself(tmp_path: Path) -> None:
    found = compared(tmp_path)
    assert found.exit_code == 0
    assert {check.verdict for check in found.checks} == {"ok"}
    assert not found.notes
    rates = {c.metric: c.now for c in found.checks if c.subject == "layerskip"}
    assert rates["committed_per_step"] == 2.0
    assert rates["accepted_per_proposed"] == 0.25
    assert rates["speedup"] == pytest.approx(80 / sum(5 * (1 + 0.01 * n) for n in range(8)))
    # Greedy drafts nothing, and its time over itself is the noise.
    assert [c.metric for c in found.checks if c.subject == "greedy"] == ["identity", "outputs"]


def test_exact_rates_fail_on_any_change_also_one_that_the_mean_hides(tmp_path: Path) -> None:
    up = drafting(lambda s: {"accepted": [2, *s["accepted"][1:]]}, 1)
    down = drafting(one_accepted_less, 6)
    found = compared(tmp_path, up, down)
    check = checked(found, "accepted_per_proposed")
    assert check.now == check.baseline
    assert check.failed
    assert "changed in examples 1, 6" in check.note


def test_on_another_machine_one_changed_example_passes_and_is_said(tmp_path: Path) -> None:
    found = compared(tmp_path, drafting(one_accepted_less, 6), environment=elsewhere())
    assert found.exit_code == 0
    check = checked(found, "accepted_per_proposed")
    assert check.limit == "95% interval"
    assert "another machine, changed in example 6" in check.note
    assert "cpu: another processor, baseline a processor" in found.notes[0]


def test_on_another_machine_a_drop_in_every_example_still_fails(tmp_path: Path) -> None:
    found = compared(tmp_path, drafting(one_accepted_less), environment=elsewhere())
    assert [c.metric for c in found.failed] == ["accepted_per_proposed"]
    assert "change -0.0500 [-0.0500, -0.0500]" in found.failed[0].note


def test_failed_examples_end_in_3_and_the_others_are_compared(tmp_path: Path) -> None:
    found = compared(tmp_path / "a", drafting(failed, 2))
    assert found.exit_code == 3
    assert found.unfinished == ("squad 2, layerskip: RuntimeError: no",)
    assert checked(found, "accepted_per_proposed").verdict == "ok"
    worse = compared(tmp_path / "b", drafting(failed, 2), drafting(one_accepted_less, 3))
    assert worse.exit_code == 1


def test_a_method_that_failed_everywhere_has_no_rates_and_ends_in_3(tmp_path: Path) -> None:
    found = compared(tmp_path, drafting(failed))
    assert found.exit_code == 3
    assert {c.metric for c in found.checks if c.subject == "layerskip"} == {"identity", "outputs"}


def test_a_method_that_drafts_nothing_any_more_fails(tmp_path: Path) -> None:
    found = compared(tmp_path, drafting(lambda s: {"proposed": [0] * 5, "accepted": [0] * 5}))
    check = checked(found, "accepted_per_proposed")
    assert check.failed
    assert check.sentence == "-, baseline 0.2500, limit some; nothing left to count"


def test_match_rates_are_checked_for_every_layer_k_and_head(tmp_path: Path) -> None:
    baseline = probe_run(tmp_path / "baseline")
    found = compare_paths(probe_run(tmp_path / "same"), baseline, Thresholds())
    rates = {c.subject: c.now for c in found.checks if c.metric == "match_rate"}
    assert rates == {
        "layer 1, k=1": 0.25,
        "layer 1, k=3": 0.75,
        "layer 2, k=1": 1.0,
        "layer 2, k=3": 1.0,
        "layer 1, k=1, trained head": 0.5,
        "layer 1, k=3, trained head": 0.75,
    }
    assert found.exit_code == 0

    def worse(sample: Sample) -> None:
        sample["head_ranks"]["1"][0] = 7

    now = probe_run(tmp_path / "now", worse)
    changed = compare_paths(now, baseline, Thresholds())
    assert {c.subject for c in changed.failed} == {s for s in rates if "trained" in s}


def test_a_probe_shown_with_other_ks_is_counted_with_those_of_the_baseline(tmp_path: Path) -> None:
    baseline = probe_run(tmp_path / "baseline")
    config = {"max_new_tokens": 4, "shots": 0, "seed": 0, "layers": [1, 2], "ks": [10]}
    config |= {"targets": [{"kind": "greedy"}], "stop_at_eos": False}
    found = compare_paths(probe_run(tmp_path / "now", config=config), baseline, Thresholds())
    assert found.exit_code == 0
    assert "layer 1, k=3" in {c.subject for c in found.checks}
