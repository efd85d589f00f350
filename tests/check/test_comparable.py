"""Runs that may be compared, and those that may not: of other things, or with less in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.check.comparison import compare_paths
from ppdbench.check.thresholds import Thresholds
from ppdbench.errors import ConfigError, DataError
from tests.check.made import (
    INEXACT,
    METHODS,
    Sample,
    bench_header,
    bench_run,
    compared,
    probe_run,
)

CONFIG = bench_header()["config"]
MODEL = bench_header()["model"]
SQUAD = bench_header()["data"]["squad"]
LONGER = {**METHODS, "layerskip": {**METHODS["layerskip"], "options": {"draft_length": 6}}}
RETRAINED = {**METHODS, "layerskip": {**METHODS["layerskip"], "loaded": {"addon": "ff"}}}


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


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"schema_version": 0}, "schema version 0, this ppdbench reads 1"),
        ({"model": {**MODEL, "weight_hash": "bb"}}, "model weights m (bb) here, m (aa) there"),
        ({"model": {**MODEL, "dtype": "bfloat16"}}, "dtype m (bfloat16) here, m (float32) there"),
        ({"data": {"squad": {**SQUAD, "sha256": "ee"}}}, "other examples or prompts of squad"),
        ({"config": {**CONFIG, "max_new_tokens": 64}}, "max_new_tokens 64 here, 11 there"),
        ({"config": {**CONFIG, "strict": True}}, "strict True here, False there"),
        ({"config": {**CONFIG, "prefill": 64}}, "prefill 64 here, apart there"),
        ({"methods": LONGER}, "layerskip draft_length 6 here, 4 there"),
        ({"methods": INEXACT}, "layerskip is not exact here, exact there"),
        ({"methods": RETRAINED}, "layerskip loaded other trained parts"),
        ({"kind": "drafts"}, "is a drafts run, which nothing checks; use one of probe, decode"),
        ({"data": {"squad": {**SQUAD, "examples": 9}}}, "is unfinished: 8 of 9 examples of squad"),
        ({"data": {"squad": {**SQUAD, "examples": 1}}}, "is unfinished: 8 of 1 example of squad"),
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


@pytest.mark.parametrize(("chosen", "words"), [(4, ""), (6, "draft_length 6 here, 4 there")])
def test_a_number_is_the_same_whether_it_was_asked_for_or_chosen(
    tmp_path: Path, chosen: int, words: str
) -> None:
    left_open = {**METHODS, "layerskip": {**METHODS["layerskip"], "options": {"draft_length": 0}}}
    header = {"methods": left_open, "chosen": {"layerskip": {"draft_length": chosen}}}
    if not words:
        assert compared(tmp_path, **header).exit_code == 0
        return
    with pytest.raises(DataError, match=words):
        compared(tmp_path, **header)
