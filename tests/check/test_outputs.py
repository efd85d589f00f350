"""What CI systems read: JUnit XML, the page of a job, annotations."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree as Xml

from rich.console import Console

from ppdbench.check.annotations import to_github
from ppdbench.check.baseline import write_baseline
from ppdbench.check.comparison import Comparison, compare_paths
from ppdbench.check.junit import to_junit
from ppdbench.check.thresholds import Thresholds
from ppdbench.report.check_tables import sheets, stored, summary
from ppdbench.report.terminal import print_sheets
from tests.check.made import Change, bench_run, drafting, failed

WORSE = drafting(lambda s: {"accepted": [0] * 5}, 1)


def compared(tmp_path: Path, *changes: Change) -> Comparison:
    baseline, now = bench_run(tmp_path / "baseline"), bench_run(tmp_path / "now", *changes)
    return compare_paths(now, baseline, Thresholds())


def test_junit_has_a_case_per_check_and_the_numbers_in_its_failures(tmp_path: Path) -> None:
    found = compared(tmp_path, WORSE)
    suites = Xml.fromstring(to_junit(found))
    assert suites.tag == "testsuites"
    (suite,) = suites
    cases = suite.findall("testcase")
    assert len(cases) == len(found.checks) == int(suite.attrib["tests"])
    assert (suite.attrib["failures"], suite.attrib["errors"]) == ("1", "0")
    (failure,) = suite.findall("testcase/failure")
    accepted = f"{35 / 160:.4f}, baseline 0.2500, limit equal; changed in example 1"
    assert failure.attrib["message"] == failure.text == accepted
    names = {(case.attrib["classname"], case.attrib["name"]) for case in cases}
    assert len(names) == len(cases)
    assert ("ppdbench.squad", "layerskip accepted_per_proposed") in names


def test_junit_counts_examples_that_did_not_run_as_errors(tmp_path: Path) -> None:
    def odd(sample: dict[str, object]) -> None:
        if sample["verdict"] == "failed":
            sample["error"] = "ValueError: <bell \x07 & \ud800>"

    suite = Xml.fromstring(to_junit(compared(tmp_path, drafting(failed, 2), odd)))[0]
    assert suite.attrib["errors"] == "1"
    error = suite.find("testcase/error")
    assert error is not None
    assert error.text == r"squad 2, layerskip: ValueError: <bell \x07 & \ud800>"


def test_the_page_shows_what_failed_before_all_else(tmp_path: Path) -> None:
    page = summary(compared(tmp_path, WORSE))
    assert page.startswith("## ppdbench check (bench): **failed**\n")
    top, rest = page.split("<details>")
    assert "| squad | layerskip | accepted_per_proposed | 0.2500 |" in top
    assert "identity" not in top
    assert rest.count("\n| ") > 8
    assert rest.rstrip().endswith("</details>")


def test_the_page_of_a_good_run_says_so_and_folds_the_rest(tmp_path: Path) -> None:
    page = summary(compared(tmp_path))
    assert "(bench): passed\n" in page
    assert "|" not in page.split("<details>")[0]


def test_annotations_are_errors_for_checks_and_warnings_for_examples(tmp_path: Path) -> None:
    def wordy(sample: dict[str, object]) -> None:
        if sample["verdict"] == "failed":
            sample["error"] = "100%: two\nlines"

    lines = list(to_github(compared(tmp_path, WORSE, drafting(failed, 2), wordy)))
    assert len(lines) == 2
    assert lines[0].startswith("::error title=squad%3A layerskip%2C accepted_per_proposed::0.2")
    assert lines[1] == "::warning title=example not run::squad 2, layerskip: 100%25: two%0Alines"
    assert not list(to_github(compared(tmp_path / "good")))


def test_a_baseline_shows_why_a_speedup_is_none(tmp_path: Path) -> None:
    first_token = {"output_ids": [1], "step_ms": [], "accepted": [], "proposed": []}
    for change, words in (
        (drafting(lambda s: {"wall_ms": 99.0}), "times do not add up"),
        (drafting(lambda s: first_token, *range(4)), "too few examples"),
    ):
        made = write_baseline(tmp_path / "baseline.json", bench_run(tmp_path / words, change))
        shown = {row[2]: row[3] for row in stored(made).rows}
        assert shown["speedup"] == words
        assert shown["committed_per_step"] == "2.000"


def test_a_narrow_terminal_keeps_the_verdicts(tmp_path: Path) -> None:
    out = io.StringIO()
    print_sheets(sheets(compared(tmp_path, WORSE))[:1], Console(file=out, width=60))
    head, *lines = [line.rstrip() for line in out.getvalue().splitlines() if line.strip()][1:]
    assert head.split() == ["what", "figure", "now", "verdict"]
    assert sum(line.endswith(("ok", "FAILED")) for line in lines) > 3
    assert "2 more columns (limit, baseline)" in " ".join(lines)
