"""`ppdbench report` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from tests import sweeps
from tests.report.page import made


def test_it_writes_the_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = made.bench(tmp_path / "run"), tmp_path / "new" / "page.html"
    assert run(["report", str(folder), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert out.read_text("utf-8").startswith("<!doctype html>")


def test_a_page_without_a_name_is_said_to_lie_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.bench(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert run(["report", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.out == "report.html\n"
    page = tmp_path / "report.html"
    assert page.exists()
    assert f"note: no --out given, so the page is {page}" in captured.err


def test_every_plot_becomes_two_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, plots = made.probe(tmp_path / "run"), tmp_path / "plots"
    words = ["report", str(folder), "--out", str(tmp_path / "p.html"), "--plots", str(plots)]
    assert run(words) == 0
    names = {path.name for path in plots.iterdir()}
    assert "run-match-gsm8k-greedy.svg" in names
    assert {Path(name).stem for name in names} == {Path(n).stem for n in names if n.endswith("png")}
    assert f"{len(names) // 2} plots" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--method", "greedy", "--method", "prompt-lookup", "--task", "xsum"],
        ["decode", "--method", "prompt-lookup", "--task", "xsum", "--task", "squad"],
        ["probe", "--task", "xsum", "--layers", "1,3"],
    ],
)
def test_a_run_prints_again_what_it_printed_when_it_was_made(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
    small = ["--model", model, "--data", "builtin", "--limit", "2", "--max-new-tokens", "6"]
    stored = str(tmp_path / "run")
    assert run([*words, *small, "--out", stored, "--format", "csv"]) == 0
    printed = capsys.readouterr().out
    assert run(["report", stored, "--format", "csv"]) == 0
    assert capsys.readouterr().out == printed
    for form in ("json", "markdown", "table"):
        assert run([*words, *small, "--out", stored, "--format", form, "--resume"]) == 0
        printed = capsys.readouterr().out
        assert run(["report", stored, "--format", form]) == 0
        assert capsys.readouterr().out == printed


def test_figures_of_an_unfinished_run_do_not_pass_for_all_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made.bench(tmp_path / "run")
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[:-2]), "utf-8")
    header = json.loads((folder / "run.json").read_text("utf-8"))
    examples = {json.loads(line)["example_id"] for line in lines}
    for source in header["data"].values():
        source["examples"] = len(examples)
    (folder / "run.json").write_text(json.dumps(header), "utf-8")
    for form in ("json", "csv"):
        run(["report", str(folder), "--format", form])
        assert "Unfinished: " in capsys.readouterr().err
    run(["report", str(folder), "--format", "markdown"])
    told = capsys.readouterr()
    assert "Unfinished: " in told.out
    assert "Unfinished: " not in told.err


RENDER = """
import sys
from ppdbench.cli.main import run
assert run(["report", {run!r}, "--format", "table"]) == 0
assert run(["report", {run!r}, "--out", {page!r}]) == 0
heavy = {{"torch", "transformers", "nltk", "rouge_score", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""


def test_stored_runs_are_shown_without_torch_and_without_scoring_a_text(tmp_path: Path) -> None:
    samples = [made.decoded("greedy", str(n), scores={"rouge1": 0.5}) for n in range(3)]
    data = {"gsm8k": {"metrics": ["rouge1"], "sha256": "a"}}
    head = made.header("bench", methods=made.methods("greedy"), data=data)
    folder = made.write(tmp_path / "run", head, samples)
    program = RENDER.format(run=str(folder), page=str(tmp_path / "page.html"))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "0.5000" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no run given"),
        (["{run}", "--format", "csv", "--out", "page.html"], "--format prints tables; leave --out"),
        (["{run}", "{run}2", "--format", "csv"], "the tables of one run"),
        (["{missing}"], "is no run folder"),
        (["{run}", "{run}"], "given twice"),
        (["{run}", "--out", "page.pdf"], "use .html, .htm"),
        (["{run}", "--out", "/dev/null/page.html"], "not a writable folder"),
        (["{run}", "--plots", "/dev/null/plots"], "--plots"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"run": made.bench(tmp_path / "run"), "missing": tmp_path / "missing"}
    assert run(["report", *(word.format(**places) for word in words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_failed_examples_give_code_3_and_a_page_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [
        made.decoded("swift", "1"),
        made.decoded("swift", "2", verdict="failed", output_ids=[], error="ran out of luck"),
    ]
    head = made.header("bench", methods=made.methods("swift"))
    folder, out = made.write(tmp_path / "run", head, samples), tmp_path / "page.html"
    assert run(["report", str(folder), "--out", str(out)]) == 3
    assert "ran out of luck" in capsys.readouterr().err
    assert out.is_file()


def test_a_mismatch_gives_code_1(tmp_path: Path) -> None:
    odd = made.decoded("swift", "1", verdict="mismatch", first_difference=0, baseline_ids=[1])
    head = made.header("bench", methods=made.methods("swift"))
    folder = made.write(tmp_path / "run", head, [odd])
    assert run(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 1


def test_a_torn_last_line_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made.bench(tmp_path / "run")
    with (folder / "samples.jsonl").open("a") as file:
        file.write('{"example_id": "to')
    assert run(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "incomplete" in capsys.readouterr().err
    assert "incomplete" in (tmp_path / "page.html").read_text("utf-8")


WITHOUT_TORCH = """
import sys
from ppdbench.cli.main import run
code = run(sys.argv[1:])
assert not {"torch", "transformers", "matplotlib"} & set(sys.modules), "too much was imported"
sys.exit(code)
"""


def test_it_imports_neither_torch_nor_what_draws_pictures(tmp_path: Path) -> None:
    swept = sweeps.cells({sweeps.label(exit_layer=2): 1.5})
    runs = [
        made.bench(tmp_path / "bench", model__name="reference"),
        made.probe(tmp_path / "probe"),
        made.pipelined(tmp_path / "pipelined"),
        sweeps.write(tmp_path / "sweep", sweeps.header({"exit_layer": [2]}, 2), swept),
    ]
    words = ["report", *map(str, runs), "--out", str(tmp_path / "page.html")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
