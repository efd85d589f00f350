"""The baseline file: small, the same as the run it was made from, and never half understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppdbench.check.baseline import open_baseline, write_baseline
from ppdbench.check.comparison import compare_paths
from ppdbench.check.metrics import Rule
from ppdbench.check.thresholds import Thresholds, read_thresholds
from ppdbench.cli.main import run as command
from ppdbench.errors import ConfigError, DataError
from tests.check.made import bench_run, drafting, failed, probe_run
from tests.conftest import ROOT

Content = dict[str, Any]
COMMITTED = ROOT / "results" / "baselines"


@pytest.mark.parametrize("make", [bench_run, probe_run])
def test_a_file_says_what_the_folder_says(tmp_path: Path, make: Any) -> None:
    run = make(tmp_path / "run")
    write_baseline(tmp_path / "baseline.json", run)
    from_file, from_folder = open_baseline(tmp_path / "baseline.json")[0], open_baseline(run)[0]
    assert from_file.outputs == from_folder.outputs
    assert from_file.data == from_folder.data
    assert from_file.machine == from_folder.machine
    # What a run counted nothing of is not kept.
    assert set(from_file.figures) < set(from_folder.figures) or make is probe_run
    found = compare_paths(run, tmp_path / "baseline.json", Thresholds())
    assert found.exit_code == 0
    assert found.checks == compare_paths(run, run, Thresholds()).checks


def test_a_file_says_what_methods_chose(tmp_path: Path) -> None:
    run = bench_run(tmp_path / "run", chosen={"layerskip": {"draft_length": 4}})
    write_baseline(tmp_path / "baseline.json", run)
    kept = {m.label: m.chosen for m in open_baseline(tmp_path / "baseline.json")[0].methods}
    assert kept["layerskip"] == {"draft_length": 4}


def test_a_change_of_one_figure_is_a_change_of_one_line(tmp_path: Path) -> None:
    files = []
    for name, changes in (("a", ()), ("b", (drafting(lambda s: {"accepted": [0] * 5}, 3),))):
        write_baseline(tmp_path / f"{name}.json", bench_run(tmp_path / name, *changes))
        files.append((tmp_path / f"{name}.json").read_text("utf-8").splitlines())
    differing = [pair for pair in zip(*files, strict=True) if pair[0] != pair[1]]
    assert len(differing) == 2
    assert "accepted_per_proposed" in differing[0][0]
    assert "checksum" in differing[1][0]


def test_a_changed_baseline_is_refused_and_one_without_a_checksum_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = bench_run(tmp_path / "run"), tmp_path / "baseline.json"
    write_baseline(file, run)
    content = json.loads(file.read_text("utf-8"))
    asked = ["check", str(run), "--baseline", str(file)]
    assert command(asked) == 0
    assert str(file) not in capsys.readouterr().err
    content["peak_memory_bytes"] += 1
    file.write_text(json.dumps(content), "utf-8")
    assert command(asked) == 2
    assert f"baseline {file}: its checksum does not fit" in capsys.readouterr().err
    del content["checksum"]
    file.write_text(json.dumps(content), "utf-8")
    assert command(asked) == 0
    assert f"note: {file} has no checksums" in capsys.readouterr().err
    # A run folder of an earlier version, on either side.
    lines = (run / "samples.jsonl").read_text("utf-8").splitlines()
    plain = [{**json.loads(line)} for line in lines]
    for one in plain:
        one.pop("checksum", None)
    text = "".join(json.dumps(one) + "\n" for one in plain)
    (run / "samples.jsonl").write_text(text, "utf-8")
    assert command(["check", str(run), "--baseline", str(run)]) == 0
    assert capsys.readouterr().err.count(f"note: {run} has no checksums") == 2


def test_no_prompt_and_no_text_goes_into_it(tmp_path: Path) -> None:
    def wordy(sample: dict[str, Any]) -> None:
        sample |= {"text": "a secret", "prompt_ids": [987654], "references": ["a secret"]}

    write_baseline(tmp_path / "baseline.json", bench_run(tmp_path / "run", wordy))
    written = (tmp_path / "baseline.json").read_text("utf-8")
    assert "secret" not in written
    assert "987654" not in written


def test_runs_with_failures_or_mismatches_cannot_become_one(tmp_path: Path) -> None:
    broken = bench_run(tmp_path / "a", drafting(failed, 2))
    with pytest.raises(DataError, match="1 example with verdict failed, the first layerskip on"):
        write_baseline(tmp_path / "baseline.json", broken)
    wrong = bench_run(tmp_path / "b", drafting(lambda s: {"verdict": "mismatch"}, 2))
    with pytest.raises(DataError, match="verdict mismatch"):
        compare_paths(bench_run(tmp_path / "now"), wrong, Thresholds())
    missing = bench_run(tmp_path / "c", not_run={"medusa": "no add-on"})
    with pytest.raises(DataError, match="medusa did not run: no add-on"):
        write_baseline(tmp_path / "baseline.json", missing)
    assert not (tmp_path / "baseline.json").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "version 2, but this ppdbench reads 1"),
        ({"format": "calibration"}, "its format is 'calibration'"),
        ({"schema_version": 7}, "made from a run of schema version 7"),
        ({"figures": [{"task": "squad"}]}, "figure 1: the key parts is missing"),
        ({"figures": 3}, "figures must be a list"),
        ({"surprise": 1}, "unknown key surprise"),
        ({"model": {"name": "m"}}, "the key model.weight_hash is missing"),
        ({"data": []}, "8 entries of squad with greedy, but 0 examples"),
    ],
)
def test_files_that_cannot_be_used_are_told_in_a_line(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, bench_run(tmp_path / "run"))
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **change}), "utf-8")
    with pytest.raises((ConfigError, DataError)) as caught:
        open_baseline(path)
    assert "baseline.json" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize("part", [[1], [1, "2"], 3, [True, 1], None])
def test_counts_that_are_no_pair_of_numbers_are_refused(tmp_path: Path, part: Any) -> None:
    path = tmp_path / "baseline.json"
    write_baseline(path, bench_run(tmp_path / "run"))
    content = json.loads(path.read_text("utf-8"))
    content["figures"][0]["parts"][2] = part
    path.write_text(json.dumps(content), "utf-8")
    with pytest.raises(ConfigError, match="figure 1: a part must be two numbers"):
        open_baseline(path)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 10**400])
def test_counts_that_are_not_finite_are_refused(tmp_path: Path, number: float) -> None:
    path = written(
        tmp_path, lambda content: content["figures"][1]["parts"].__setitem__(0, [number, 1])
    )
    with pytest.raises(ConfigError, match=r"baseline.json: figure 2: a part must be two finite"):
        open_baseline(path)


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("figures", "squad, greedy, noise"),
        ("outputs", "squad, greedy"),
        ("methods", "greedy"),
        ("data", "squad"),
    ],
)
def test_what_stands_there_twice_is_refused(tmp_path: Path, name: str, whose: str) -> None:
    path = written(tmp_path, lambda content: content[name].append(content[name][0]))
    with pytest.raises(ConfigError) as caught:
        open_baseline(path)
    assert f"{path}: {name} has two entries for {whose}; write it again" in str(caught.value)


@pytest.mark.parametrize("kind", ["bench", "probe"])
def test_outputs_that_every_run_has_are_missed(tmp_path: Path, kind: str) -> None:
    def two_tasks(content: Content) -> None:
        content["data"].append({**content["data"][0], "task": "gsm8k"})

    path = written(tmp_path / "a", two_tasks, kind)
    with pytest.raises(ConfigError, match="outputs of gsm8k with greedy are missing; write it"):
        open_baseline(path)
    path = written(tmp_path / "b", lambda content: content["outputs"].clear(), kind)
    words = {"bench": "outputs of squad with greedy are missing", "probe": "outputs has no entries"}
    with pytest.raises(ConfigError, match=words[kind]):
        open_baseline(path)


def test_outputs_of_a_method_that_is_not_there_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, lambda content: content["methods"].pop())
    with pytest.raises(ConfigError, match="outputs of layerskip, which methods does not have"):
        open_baseline(path)


def written(tmp_path: Path, change: Callable[[Content], object], kind: str = "bench") -> Path:
    """The file of a plain run, then changed by hand and without its checksum."""
    path, make = tmp_path / "baseline.json", {"bench": bench_run, "probe": probe_run}[kind]
    write_baseline(path, make(tmp_path / "run"))
    content = json.loads(path.read_text("utf-8"))
    del content["checksum"]
    change(content)
    path.write_text(json.dumps(content), "utf-8")
    return path


# Figures that a file has not, where only the run shows whether it should


@pytest.mark.parametrize("metric", ["committed_per_step", "accepted_per_proposed", "speedup"])
@pytest.mark.parametrize("zeros", [False, True])
def test_a_figure_that_was_taken_out_or_emptied_fails(
    tmp_path: Path, metric: str, zeros: bool
) -> None:
    def change(content: Content) -> None:
        (figure,) = [f for f in content["figures"] if f["metric"] == metric]
        if zeros:
            figure["parts"] = [[0, 0] for _ in figure["parts"]]
        else:
            content["figures"].remove(figure)

    found = compare_paths(tmp_path / "run", written(tmp_path, change), Thresholds())
    (check,) = found.failed
    assert (check.subject, check.metric, check.baseline) == ("layerskip", metric, None)
    assert "missing from the baseline" in check.sentence
    ignored = Thresholds(rules={metric: Rule("ignored")})
    found = compare_paths(tmp_path / "run", tmp_path / "baseline.json", ignored)
    assert found.exit_code == 0


def test_a_speedup_that_was_taken_out_is_told_where_none_may_be_claimed(tmp_path: Path) -> None:
    def change(content: Content) -> None:
        content["figures"] = [f for f in content["figures"] if f["metric"] != "speedup"]

    path = written(tmp_path, change)
    gap = bench_run(tmp_path / "gap", drafting(lambda s: {"wall_ms": 99.0}))
    found = compare_paths(gap, path, Thresholds())
    assert found.exit_code == 0
    words = "squad: layerskip, speedup: times do not add up, so it is not judged."
    assert found.notes == (words,)


def test_a_figure_of_a_probe_that_was_taken_out_fails(tmp_path: Path) -> None:
    path = written(tmp_path, lambda content: content["figures"].pop(0), "probe")
    found = compare_paths(tmp_path / "run", path, Thresholds())
    assert [c.subject for c in found.failed] == ["layer 1, k=1"]


def test_heads_that_were_trained_since_are_told(tmp_path: Path) -> None:
    def own_heads(content: Content) -> None:
        content["figures"] = [f for f in content["figures"] if "trained" not in f["subject"]]

    path = written(tmp_path, own_heads, "probe")
    found = compare_paths(tmp_path / "run", path, Thresholds())
    assert found.exit_code == 0
    assert found.notes == ("Not in the baseline, so not checked: trained heads.",)


def test_memory_that_was_taken_out_fails(tmp_path: Path) -> None:
    path = written(tmp_path, lambda content: content.update(peak_memory_bytes=0))
    found = compare_paths(tmp_path / "run", path, Thresholds())
    assert [(c.metric, c.now, c.baseline) for c in found.failed] == [("peak_memory", 100, None)]


def test_a_method_that_proposes_nothing_has_nothing_to_miss(tmp_path: Path) -> None:
    idle = drafting(lambda s: {"proposed": [0] * 5, "accepted": [0] * 5})
    run, file = bench_run(tmp_path / "run", idle), tmp_path / "baseline.json"
    write_baseline(file, run)
    for baseline in (file, run):
        found = compare_paths(run, baseline, Thresholds())
        assert found.exit_code == 0
        assert "accepted_per_proposed" not in {c.metric for c in found.checks}
    busy = bench_run(tmp_path / "busy")
    for baseline in (file, run):
        found = compare_paths(busy, baseline, Thresholds())
        assert [c.metric for c in found.failed] == ["accepted_per_proposed"]


def test_a_missing_file_says_how_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not exist; `ppdbench check RUN .* --update`"):
        open_baseline(tmp_path / "baseline.json")


# Those that this project checks itself against


@pytest.mark.parametrize("name", ["probe", "bench"])
def test_the_committed_baselines_are_small_and_their_thresholds_fit(name: str) -> None:
    path = COMMITTED / f"{name}.json"
    assert path.stat().st_size < 200_000
    baseline = open_baseline(path)[0]
    assert baseline.kind == name
    assert baseline.model["name"] == "reference"
    read_thresholds(COMMITTED / f"{name}.yaml").refuse_misfits(baseline)


def test_the_committed_baselines_cover_what_they_are_for() -> None:
    probe, bench = (open_baseline(COMMITTED / f"{name}.json")[0] for name in ("probe", "bench"))
    layers = {figure.subject.split(",")[0] for figure in probe.figures}
    assert layers == {f"layer {n}" for n in range(1, 9)}
    assert len(probe.data) == 3
    names = {method.name for method in bench.methods if method.exact}
    assert {"greedy", "layerskip", "prompt-lookup", "lookahead", "ppd", "speculative"} <= names
    for method in ("layerskip", "prompt-lookup", "lookahead"):
        assert ("gsm8k", method, "accepted_per_proposed") in {f.key for f in bench.figures}


def test_the_committed_baselines_were_made_as_the_makefile_makes_their_runs() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for name in ("probe", "bench"):
        words = open_baseline(COMMITTED / f"{name}.json")[0].command
        options = [word for word in words[2:] if not word.startswith("results/")]
        assert words[:2] == ("ppdbench", name)
        assert all(option in makefile for option in options)
