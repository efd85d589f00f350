"""`ppdbench table` as it is typed: what it shows, writes and refuses, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from tests.tables.made import probed, squad, write_run
from tests.tables.stored import about, decoded, sample


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the project's own runs lie."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_table_can_be_written_to_files(capsys: pytest.CaptureFixture[str]) -> None:
    folder = squad("a")
    assert run(["table", "ppd/2", folder, "--export", "t.md", "--export", "t.csv"]) == 0
    assert Path("t.md").read_text("utf-8").startswith("### Table 2: match rates, squad")
    assert Path("t.csv").read_text("utf-8").startswith("task,head,k,bucket,")


def test_a_picture_of_a_table_is_refused_before_anything_is_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["table", "ppd/2", "nowhere", "--plot", "f.svg"]) == 2
    assert "ppd/2 is no figure" in capsys.readouterr().err


def test_failed_examples_are_left_out_reported_and_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = {
        "example_id": "9",
        "task": "squad",
        "method": "probe",
        "target": "greedy",
        "verdict": "failed",
        "error": "NaN",
        "output_ids": [],
    }
    folder = write_run(Path("a"), "probe", [probed("squad", 0, {4: [0] * 16}), failed])
    assert run(["table", "ppd/6", str(folder), "--format", "csv"]) == 3
    captured = capsys.readouterr()
    assert "ppdbench: a: 1 example failed; the first: probe on squad 9: NaN" in captured.err
    assert ",16," in captured.out


def test_methods_that_did_not_run_are_reported_and_told_by_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    methods = {name: about(name) for name in ("greedy", "medusa")}
    samples = [sample("mt_bench", "greedy", number) for number in range(5)]
    folder = decoded(Path("a"), methods, samples, not_run={"medusa": "no add-on for m"})
    assert run(["table", "prompt_ppd/1", folder]) == 3
    captured = capsys.readouterr()
    assert "ppdbench: a: medusa did not run: no add-on for m" in captured.err
    assert "medusa did not run: no add-on for m" in " ".join(captured.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ppd/2"], "needs a run: ppdbench table ppd/2 --run, which is: ppdbench probe"),
        (["ppd/2", "--out", "nowhere"], "none lies in nowhere"),
        (["ppd/2", "--out="], "--out is empty"),
        (["ppd/2", "--out", __file__], "test_table_command.py is a file"),
        (["ppd/2", "a", "--run"], "not both"),
        (["ppd/2", "a", "--limit", "3"], "--limit goes with --run"),
        (["ppd/2", "a", "--as-stored"], "--as-stored goes with --run"),
        (["ppd/2", "a", "--out", "b"], "give the runs to show, or --out"),
        (["ppd/1", "a"], "ppd/1 needs no run"),
        (["ppd/1", "--run"], "ppd/1 needs no run"),
        (["ppd/2", "--run", "--limit", "0"], "Invalid value for '--limit': 0"),
        (["ppd/2", "a", "--export", "t.docx"], "t.docx"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["table", *arguments]) == 2
    said = capsys.readouterr().err.strip()
    assert words in said
    assert "\n" not in said


def test_runs_are_found_where_the_recipe_left_them(capsys: pytest.CaptureFixture[str]) -> None:
    squad("tables/ppd-matches")
    assert run(["table", "ppd/2", "--out", "tables"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["table", "ppd/2", "--out", "none"]) == 2


def test_rendering_never_imports_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from ppdbench.cli.main import run; code = run(sys.argv[1:]); "
        "sys.exit(code or 10 * bool({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "table", "ppd/2", squad("a")],
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


SHORT = ["--model", "synthetic:layers=4,hidden=32,vocab=300", "--data", "builtin", "--offline"]


@pytest.mark.slow
def test_a_table_is_measured_and_then_shown_from_what_was_stored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["table", "ppd/5", "--out", str(tmp_path)]
    scale = ["--limit", "1", "--max-new-tokens", "2"]
    assert run([*words, "--run", *SHORT, *scale]) == 0
    first = capfd.readouterr()
    assert "running: ppdbench probe" in first.err
    assert "random weights" in first.out
    assert run(words) == 0
    again = capfd.readouterr()
    assert (again.out, again.err) == (first.out, "")
    command = json.loads((tmp_path / "ppd-sampled" / "run.json").read_text("utf-8"))["command"]
    assert command[:2] == ["ppdbench", "probe"]


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_finished_and_leaves_nobody_working(tmp_path: Path) -> None:
    words = ["table", "ppd/5", "--run", "--out", str(tmp_path), *SHORT]
    words += ["--limit", "64", "--max-new-tokens", "96"]  # so that there is time to interrupt it
    command = [sys.executable, "-m", "ppdbench", *words]
    samples = tmp_path / "ppd-sampled" / "samples.jsonl"
    # What a shell starts in the background would hand on that nobody can interrupt it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as table:
        deadline = time.monotonic() + 60
        while not (samples.is_file() and samples.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        table.send_signal(signal.SIGINT)
        _, said = table.communicate(timeout=60)
    assert table.returncode == 130
    assert b"interrupted in step ppd-sampled" in said
    kept = samples.read_bytes()
    assert kept.endswith(b"\n")
    assert not (tmp_path / "ppd-sampled" / "step.json").exists()
    time.sleep(0.3)
    assert samples.read_bytes() == kept
