"""`ppdbench check` as it is typed: exit codes, files, refusals, and no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.check.made import bench_run, drafting, failed

WORSE = drafting(lambda s: {"accepted": [0] * 5}, 1)


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    bench_run(tmp_path / "good")
    bench_run(tmp_path / "worse", WORSE)
    bench_run(tmp_path / "broken", drafting(failed, 2))
    bench_run(tmp_path / "wrong", drafting(lambda s: {"verdict": "mismatch"}, 2))


def check(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> tuple[int, Any, str]:
    code = run(["check", name, "--baseline", "good", "--format", "json", *words])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None, captured.err


@pytest.mark.parametrize(("name", "code"), [("good", 0), ("worse", 1), ("wrong", 1), ("broken", 3)])
def test_the_exit_code_decides(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    found, content, said = check(capsys, name)
    assert found == code == content["exit_code"]
    assert bool(said) == bool(code)
    assert [c["verdict"] for c in content["checks"]].count("FAILED") == content["failed"]


def test_a_baseline_written_with_update_is_what_the_run_is_checked_against(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["check", "worse", "--baseline", "new/base.json", "--update"]) == 0
    captured = capsys.readouterr()
    assert "accepted_per_proposed" in captured.out
    assert "baseline: new/base.json" in captured.err
    assert run(["check", "worse", "--baseline", "new/base.json"]) == 0
    assert run(["check", "good", "--baseline", "new/base.json"]) == 1


@pytest.mark.usefixtures("narrow")
def test_the_table_fits_80_columns_and_gives_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["check", "worse", "--baseline", "good"]) == 1
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "FAILED" in captured.out
    _, failures = captured.out.split("\nFailed\n")
    assert "accepted_per_proposed" in failures
    assert "example 1" in failures
    assert "1 of 8 checks failed" in captured.err


@pytest.mark.parametrize("form", ["csv", "markdown", "latex"])
def test_every_format_holds_every_check(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "good", "--baseline", "good", "--format", form]) == 0
    written = capsys.readouterr().out.replace("\\_", "_")
    in_words = written.count("identity: outputs that are not greedy's")
    assert in_words == (form != "csv")
    assert written.count("identity") - in_words == 2
    assert "peak_memory" in written


def test_files_for_ci_are_written_also_when_a_check_fails(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("page.md").write_text("what was there\n", "utf-8")
    words = ["--junit", "ci/check.xml", "--summary", "page.md", "--annotations", "github"]
    code, _, said = check(capsys, "worse", *words)
    assert code == 1
    assert Path("ci/check.xml").read_text("utf-8").startswith("<?xml")
    assert Path("page.md").read_text("utf-8").startswith("what was there\n## ppdbench check")
    assert said.startswith("::error title=squad%3A layerskip%2C accepted_per_proposed::")


def test_thresholds_are_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    Path("limits.yaml").write_text(
        "version: 1\nmethods: {layerskip: {accepted_per_proposed: interval}}\n", "utf-8"
    )
    assert check(capsys, "worse", "--thresholds", "limits.yaml")[0] == 0


def test_a_rule_that_nothing_reads_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("limits.yaml").write_text(
        "version: 1\nmethods: {greedy: {speedup: {max_drop: 0.2}}}\n", "utf-8"
    )
    code, content, said = check(capsys, "good", "--thresholds", "limits.yaml")
    assert code == 2
    assert content is None
    assert "limits.yaml: speedup of greedy is never checked" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("--baseline", ["check", "good"]),
        ("is no run folder", ["check", "nowhere", "--baseline", "good"]),
        ("does not exist", ["check", "good", "--baseline", "none.json"]),
        ("cannot be a baseline", ["check", "good", "--baseline", "wrong"]),
        ("cannot be a baseline", ["check", "broken", "--baseline", "b.json", "--update"]),
        ("suffix", ["check", "good", "--baseline", "baseline.txt", "--update"]),
        ("suffix", ["check", "good", "--baseline", "worse", "--update"]),
        ("no other option", ["check", "good", "--baseline", "b.json", "--update", "--junit", "x"]),
        ("is a directory", ["check", "good", "--baseline", "good", "--junit", "worse"]),
        ("does not exist", ["check", "good", "--baseline", "good", "--thresholds", "no.yaml"]),
    ],
)
def test_bad_input_is_one_line(
    words: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


def test_no_model_library_is_imported() -> None:
    code = (
        "import sys; from ppdbench.cli.main import run; "
        "code = run(['check', 'good', '--baseline', 'good', '--junit', 'x.xml']); "
        "sys.exit(code or bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
