"""Thresholds: what is demanded where, and what no file can ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppdbench.check.baseline import open_baseline, write_baseline
from ppdbench.check.comparison import compare_paths
from ppdbench.check.figures import DECODED
from ppdbench.check.metrics import METRICS, Rule
from ppdbench.check.snapshot import Snapshot
from ppdbench.check.thresholds import Thresholds, read_thresholds
from ppdbench.errors import ConfigError
from tests.check.made import INEXACT, bare, bench_header, bench_run, drafting


def read(tmp_path: Path, text: str) -> Thresholds:
    (tmp_path / "limits.yaml").write_text(text, "utf-8")
    return read_thresholds(tmp_path / "limits.yaml")


def test_a_methods_own_rule_wins_over_the_general_one_and_that_over_the_default(
    tmp_path: Path,
) -> None:
    limits = read(
        tmp_path,
        "version: 1\nmetrics: {speedup: {max_drop: 0.2}}\nmethods: {ppd: {speedup: ignored}}\n",
    )
    assert limits.rule("speedup", "ppd") == Rule("ignored")
    assert limits.rule("speedup", "layerskip") == Rule("max_drop", 0.2)
    assert limits.rule("match_rate", "ppd") == METRICS.get("match_rate").default


def test_every_default_is_something_a_file_may_say() -> None:
    for name in METRICS:
        assert METRICS.get(name).default.kind in METRICS.get(name).rules


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version: 2", "version 2, but this ppdbench reads version 1"),
        ("version: 1\nmetrics: {comitted_per_step: exact}", "did you mean committed_per_step"),
        ("version: 1\nmethods: {ppd: {speed: ignored}}", "unknown metric 'speed'"),
        ("version: 1\nmetrics: {speedup: exact}", "speedup cannot be exact; use interval or"),
        ("version: 1\nmetrics: {speedup: max_drop}", "use interval or {max_drop: NUMBER}"),
        ("version: 1\nmetrics: {speedup: {max_rise: 1}}", "speedup cannot be max_rise"),
        ("version: 1\nmetrics: {speedup: {max_drop: 20}}", "max_drop 20; use 0 to 1"),
        ("version: 1\nmetrics: {peak_memory: {max_rise: -1}}", "use 0 or more"),
        ("version: 1\nmetrics: {speedup: {max_drop: .nan}}", "speedup: max_drop nan; use 0 to 1"),
        ("version: 1\nmetrics: {speedup: {max_drop: .inf}}", "speedup: max_drop inf; use 0 to 1"),
        ("version: 1\nmetrics: {committed_per_step: {max_drop: .nan}}", "nan; use 0 to 1"),
        ("version: 1\nmethods: {ppd: {match_rate: {max_drop: .nan}}}", "nan; use 0 to 1"),
        ("version: 1\nmetrics: {outputs: {other_machines: .nan}}", "nan; use 0 to 1"),
        (
            "version: 1\nmetrics: {peak_memory: {max_rise: .nan}}",
            "nan; use 0 or more, but a finite",
        ),
        (
            "version: 1\nmetrics: {peak_memory: {max_rise: .inf}}",
            "inf; use 0 or more, but a finite",
        ),
        ("version: 1\nmetrics: {peak_memory: {max_rise: -.inf}}", "-inf; use 0 or more, but a"),
        ("version: 1\nmetrics: {identity: {max_ties: .inf}}", "identity: max_ties inf; use 0 or"),
        ("version: 1\nmetrics: {speedup: {max_drop: lots}}", "must be a number"),
        ("version: 1\nmetrics: {speedup: {}}", "takes one limit"),
        ("version: 1\nmetrics: {match_rate: {exact: 1}}", "match_rate cannot be exact; use"),
        ("version: 1\nmetrics: {identity: ignored}", "identity cannot be ignored"),
        ("version: 1\nlimits: {}", "unknown key limits"),
        ("version: 1\nmetrics: {speedup: 3}", "must be text"),
    ],
)
def test_what_a_file_cannot_ask_for_is_told_with_what_it_can(
    tmp_path: Path, text: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert "limits.yaml" in str(caught.value)
    assert words in str(caught.value)


def test_rules_for_what_the_run_does_not_have_are_refused(tmp_path: Path) -> None:
    limits = read(tmp_path, "version: 1\nmetrics: {speedup: ignored}\n")
    with pytest.raises(ConfigError, match="a probe run has no speedup; it has outputs, match_rate"):
        limits.refuse_misfits(bare("probe", "greedy"))
    limits = read(tmp_path, "version: 1\nmethods: {layerskp: {speedup: ignored}}\n")
    with pytest.raises(ConfigError, match="unknown method 'layerskp': did you mean layerskip"):
        limits.refuse_misfits(bare("bench", "greedy", "layerskip"))


@pytest.mark.parametrize(
    ("kind", "rules", "words"),
    [
        ("bench", "peak_memory: {max_rise: 0.1}", "peak_memory of a bench run is of the process"),
        ("decode", "peak_memory: ignored", "peak_memory of a decode run is of the process"),
        ("probe", "match_rate: ignored", "match_rate of a probe run is of layers"),
    ],
)
def test_rules_of_a_method_for_what_is_of_no_method_are_refused(
    tmp_path: Path, kind: str, rules: str, words: str
) -> None:
    limits = read(tmp_path, f"version: 1\nmethods: {{greedy: {{{rules}}}}}\n")
    with pytest.raises(ConfigError, match=f"{words}, not of greedy; give its rule under metrics"):
        limits.refuse_misfits(bare(kind, "greedy"))
    read(tmp_path, f"version: 1\nmetrics: {{{rules}}}\n").refuse_misfits(bare(kind, "greedy"))


def test_what_a_method_has_of_its_own_may_have_a_rule_of_its_own(tmp_path: Path) -> None:
    limits = read(tmp_path, "version: 1\nmethods: {ppd: {match_rate: interval}}\n")
    limits.refuse_misfits(bare("bench", "ppd"))
    limits = read(tmp_path, "version: 1\nmethods: {greedy: {outputs: ignored}}\n")
    limits.refuse_misfits(bare("probe", "greedy"))


@pytest.mark.parametrize("label", ["greedy", "greedy (batch 4)"])
@pytest.mark.parametrize("metric", DECODED)
def test_rules_for_figures_that_greedy_has_not_are_refused(
    tmp_path: Path, metric: str, label: str
) -> None:
    limits = read(tmp_path, f"version: 1\nmethods: {{{label}: {{{metric}: interval}}}}\n")
    baseline = bare("bench", label, "layerskip")
    with pytest.raises(ConfigError) as caught:
        limits.refuse_misfits(baseline)
    assert f"limits.yaml: {metric} of {label} is never checked: greedy drafts" in str(caught.value)
    assert "leave the rule out" in str(caught.value)
    limits = read(tmp_path, f"version: 1\nmethods: {{layerskip: {{{metric}: interval}}}}\n")
    limits.refuse_misfits(baseline)


def test_an_identity_rule_of_a_method_that_is_not_exact_is_refused(tmp_path: Path) -> None:
    limits = read(tmp_path, "version: 1\nmethods: {early-exit: {identity: {max_ties: 1}}}\n")
    words = "identity of early-exit is never checked: the method is not exact; .* for outputs"
    with pytest.raises(ConfigError, match=words):
        limits.refuse_misfits(bare("bench", "early-exit", exact=False))
    limits.refuse_misfits(bare("bench", "early-exit"))
    limits = read(tmp_path, "version: 1\nmetrics: {identity: {max_ties: 1}}\n")
    limits.refuse_misfits(bare("bench", "early-exit", exact=False))


def test_an_identity_rule_of_outputs_that_are_drawn_is_refused(tmp_path: Path) -> None:
    config = bench_header()["config"]
    drawn = {**config, "target": {**config["target"], "kind": "top-p"}}
    run = bench_run(tmp_path / "run", config=drawn)
    assert "identity" not in {c.metric for c in compare_paths(run, run, Thresholds()).checks}
    limits = read(tmp_path, "version: 1\nmethods: {layerskip: {identity: no_mismatch}}\n")
    words = r"identity of layerskip is never checked: outputs are drawn \(top-p\), .* leave the"
    with pytest.raises(ConfigError, match=words):
        compare_paths(run, run, limits)


def test_a_rule_for_candidates_of_a_method_that_has_none_is_refused(tmp_path: Path) -> None:
    run = bench_run(tmp_path / "run")
    limits = read(tmp_path, "version: 1\nmethods: {layerskip: {match_rate: interval}}\n")
    words = "match_rate of layerskip is never checked: the method has nothing that counts for it"
    file = tmp_path / "baseline.json"  # which has no figure of what was not counted
    write_baseline(file, run)
    for baseline in (run, file):
        with pytest.raises(ConfigError, match=words):
            compare_paths(run, baseline, limits)
    matched = drafting(lambda s: {"matches": [1] * 10})
    again = bench_run(tmp_path / "again", matched)
    found = compare_paths(again, again, limits)
    assert ("layerskip", "match_rate") in {(c.subject, c.metric) for c in found.checks}


def test_a_method_may_have_rules_for_what_is_checked_of_it_and_no_more(tmp_path: Path) -> None:
    inexact = drafting(lambda s: {"verdict": "inexact"})
    run = bench_run(tmp_path / "run", inexact, methods=INEXACT)
    baseline = open_baseline(run)[0]
    checks = compare_paths(run, run, Thresholds()).checks
    for label in INEXACT:
        taken = {metric for metric in METRICS if takes(baseline, label, metric)}
        assert taken == {c.metric for c in checks if c.subject == label}


def takes(baseline: Snapshot, label: str, metric: str) -> bool:
    rules = {metric: METRICS.get(metric).default}
    try:
        Thresholds(of_methods={label: rules}).refuse_misfits(baseline)
    except ConfigError:
        return False
    return True
