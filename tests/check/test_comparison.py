"""What counts as worse, what does not, and what cannot be compared at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.check.comparison import Comparison, compare_paths
from ppdbench.check.judge import Check
from ppdbench.check.metrics import Rule
from ppdbench.check.thresholds import Thresholds
from ppdbench.errors import ConfigError, DataError
from tests.check.made import (
    METHODS,
    Change,
    Sample,
    bench_header,
    bench_run,
    drafting,
    elsewhere,
    failed,
    probe_run,
)

CONFIG = bench_header()["config"]


def compared(
    tmp_path: Path, *changes: Change, rules: dict[str, Rule] | None = None, **header: Any
) -> Comparison:
    """A changed bench run against the plain one."""
    baseline = bench_run(tmp_path / "baseline")
    now = bench_run(tmp_path / "now", *changes, **header)
    return compare_paths(now, baseline, Thresholds(rules=rules or {}))


def checked(found: Comparison, metric: str, subject: str = "layerskip") -> Check:
    (check,) = [c for c in found.checks if (c.metric, c.subject) == (metric, subject)]
    return check


def one_accepted_less(sample: Sample) -> Sample:
    return {"accepted": [0, *sample["accepted"][1:]]}


def slower(factor: float) -> Change:
    return drafting(lambda s: {"step_ms": [factor * ms for ms in s["step_ms"]]})


def test_targets_of_earlier_versions_had_what_they_have_gained_at_its_default(
    tmp_path: Path,
) -> None:
    gained = {"min_p": 0.05, "repetition_penalty": 1.0, "logit_bias": []}
    full = {**CONFIG, "target": {**CONFIG["target"], **gained}}
    assert not gained.keys() & CONFIG["target"].keys()
    assert compared(tmp_path, config=full).exit_code == 0
    other = {**CONFIG, "target": {**CONFIG["target"], "repetition_penalty": 1.1}}
    with pytest.raises(DataError, match="not comparable with the baseline: target"):
        compared(tmp_path / "other", config=other)


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


def test_on_another_machine_a_share_of_the_outputs_may_differ(tmp_path: Path) -> None:
    def other(*numbers: int) -> Change:
        return drafting(lambda s: {"output_ids": [9, *s["output_ids"][1:]]}, *numbers)

    there = {"environment": elsewhere()}
    assert compared(tmp_path / "a", other(1, 2), **there).exit_code == 0
    assert compared(tmp_path / "b", other(1, 2, 3), **there).exit_code == 1
    none = {"outputs": Rule("other_machines", 0.0)}
    assert compared(tmp_path / "c", other(1), rules=none, **there).exit_code == 1


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


MODEL = bench_header()["model"]
SQUAD = bench_header()["data"]["squad"]
LONGER = {**METHODS, "layerskip": {**METHODS["layerskip"], "options": {"draft_length": 6}}}
INEXACT = {**METHODS, "layerskip": {**METHODS["layerskip"], "exact": False}}
RETRAINED = {**METHODS, "layerskip": {**METHODS["layerskip"], "loaded": {"addon": "ff"}}}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"schema_version": 0}, "schema version 0, this ppdbench reads 1"),
        ({"model": {**MODEL, "weight_hash": "bb"}}, "model weights m (bb) here, m (aa) there"),
        ({"model": {**MODEL, "dtype": "bfloat16"}}, "dtype m (bfloat16) here, m (float32) there"),
        ({"data": {"squad": {**SQUAD, "sha256": "ee"}}}, "other examples or prompts of squad"),
        ({"config": {**CONFIG, "max_new_tokens": 64}}, "max_new_tokens 64 here, 11 there"),
        ({"config": {**CONFIG, "strict": True}}, "strict True here, False there"),
        ({"methods": LONGER}, "layerskip draft_length 6 here, 4 there"),
        ({"methods": INEXACT}, "layerskip is not exact here, exact there"),
        ({"methods": RETRAINED}, "layerskip loaded other trained parts"),
        ({"kind": "drafts"}, "is a drafts run, which nothing checks; use one of probe, decode"),
        ({"data": {"squad": {**SQUAD, "examples": 9}}}, "is unfinished: 8 of 9 examples of squad"),
    ],
)
def test_runs_of_other_things_are_refused(
    tmp_path: Path, header: dict[str, Any], words: str
) -> None:
    with pytest.raises((DataError, ConfigError)) as caught:
        compared(tmp_path, **header)
    assert words in str(caught.value)


def test_a_probe_is_not_compared_with_a_bench(tmp_path: Path) -> None:
    runs = probe_run(tmp_path / "probe"), bench_run(tmp_path / "bench")
    with pytest.raises(DataError, match="a run of probe here, bench there"):
        compare_paths(*runs, Thresholds())


def test_another_task_is_refused(tmp_path: Path) -> None:
    def moved(sample: Sample) -> None:
        sample["task"] = "xsum"

    with pytest.raises(DataError, match="tasks xsum here, squad there"):
        compared(tmp_path, moved, data={"xsum": SQUAD})


def test_fewer_examples_are_refused(tmp_path: Path) -> None:
    baseline = bench_run(tmp_path / "baseline")
    now = bench_run(tmp_path / "now", data={"squad": {**SQUAD, "examples": 4}})
    lines = (now / "samples.jsonl").read_text().splitlines(keepends=True)
    (now / "samples.jsonl").write_text("".join(lines[:8]))
    with pytest.raises(DataError, match="squad examples 4 here, 8 there"):
        compare_paths(now, baseline, Thresholds())


def test_a_missing_method_is_named_with_the_command_that_runs_it(tmp_path: Path) -> None:
    now = bench_run(tmp_path / "now")
    lines = (now / "samples.jsonl").read_text().splitlines(keepends=True)
    (now / "samples.jsonl").write_text("".join(line for line in lines if "layerskip" not in line))
    with pytest.raises(DataError, match=r"methods missing: layerskip.*ppdbench bench --task squad"):
        compare_paths(now, bench_run(tmp_path / "baseline"), Thresholds())


def test_an_empty_run_is_refused(tmp_path: Path) -> None:
    now = bench_run(tmp_path / "now")
    (now / "samples.jsonl").write_text("")
    with pytest.raises(DataError, match="no finished samples"):
        compare_paths(now, bench_run(tmp_path / "baseline"), Thresholds())


def test_a_probe_without_the_trained_heads_of_the_baseline_is_refused(tmp_path: Path) -> None:
    def headless(sample: Sample) -> None:
        del sample["head_ranks"]

    now, baseline = probe_run(tmp_path / "now", headless), probe_run(tmp_path / "baseline")
    with pytest.raises(DataError, match="no match_rate of layer 1, k=1, trained head"):
        compare_paths(now, baseline, Thresholds())
