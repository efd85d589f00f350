"""The functions for notebooks and scripts: the same runs, tables and errors as the commands."""

from __future__ import annotations

import csv
import inspect
import io
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import ppdbench
from ppdbench.cli.main import run
from ppdbench.report import progress
from ppdbench.report.result import BROKEN, WRONG, Result
from tests.conftest import ROOT
from tests.filled import problems
from tests.pages import DOCS, blocks

SPEC = "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=600"
METHODS = ["prompt-lookup:max_draft=4", "layerskip:exit_layer=2"]
OPTIONS = {"data": "builtin", "limit": 2, "max_new_tokens": 6, "warmup": 1}
WORDS = ["--data", "builtin", "--limit", "2", "--max-new-tokens", "6", "--warmup", "1"]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model() -> ppdbench.Model:
    return ppdbench.load(SPEC)


@pytest.fixture(scope="module")
def found(model: ppdbench.Model, tmp_path_factory: pytest.TempPathFactory) -> Result:
    out = tmp_path_factory.mktemp("api") / "bench"
    return ppdbench.bench(model, METHODS, ["gsm8k", "xsum"], out=out, **OPTIONS)


def test_the_import_alone_loads_nothing_heavy() -> None:
    code = "import sys, ppdbench; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "rich", "pandas"} & set(done.stdout.split())


def test_packages_of_the_same_names_are_called_like_the_functions() -> None:
    import ppdbench.bench.runner
    import ppdbench.probe.runner
    from ppdbench import api

    for name in ("bench", "probe"):
        verb = getattr(ppdbench, name)
        assert inspect.ismodule(verb)
        assert inspect.signature(verb) == inspect.signature(getattr(api, name))
    assert all(getattr(ppdbench, name) for name in ppdbench.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tune'"):
        ppdbench.tune  # noqa: B018


def test_a_run_is_that_of_the_command(found: Result, tmp_path: Path, capsys: Capture) -> None:
    words = [w for name in METHODS for w in ("--method", name)]
    tasks = ["--task", "gsm8k", "--task", "xsum"]
    out = str(tmp_path / "typed")
    assert run(["bench", "--model", SPEC, *words, *tasks, *WORDS, "--out", out]) == 0
    printed = capsys.readouterr().out
    typed = ppdbench.read(out)
    assert typed.header.config == ppdbench.read(found.path).header.config
    kept = ("task", "example_id", "method", "verdict", "output_ids", "accepted")
    ours, theirs = (
        [[getattr(s, name) for name in kept] for s in r.samples] for r in (found, typed)
    )
    assert ours == theirs
    assert str(typed) == printed.rstrip("\n")


def test_a_result_prints_the_same_when_it_is_read_again(found: Result) -> None:
    again = ppdbench.read(found.path)
    assert str(again) == str(found)
    assert repr(again) == f"<bench run {found.path}>"
    for task in ("gsm8k", "xsum"):
        assert f"{task}: 2 examples" in str(found)


def test_rich_and_notebooks_show_the_tables(found: Result) -> None:
    console = Console(width=200, file=io.StringIO())
    console.print(found)
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    html = found._repr_html_()
    for sheet in found.output.sheets:
        assert sheet.title in drawn
        assert f"<caption>{sheet.title}</caption>" in html
    assert html.count("<table>") == len(found.output.sheets)


def test_a_frame_holds_what_csv_holds(found: Result, capsys: Capture) -> None:
    assert run(["report", str(found.path), "--format", "csv"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    frame = found.frame()
    assert list(frame.columns) == head
    assert len(frame) == len(rows) == 4
    for name in ("task", "label", "identical", "n_tokens", "ms_per_token"):
        assert [str(value) for value in frame[name]] == [row[head.index(name)] for row in rows]


def test_a_probe_and_a_decode_keep_quiet(
    model: ppdbench.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    rates = ppdbench.probe(model, task="gsm8k", data="builtin", limit=2, max_new_tokens=4)
    one = ppdbench.decode(model, METHODS[0], task="squad", **OPTIONS)
    assert capsys.readouterr() == ("", "")
    assert [r.path.parent.name for r in (rates, one)] == ["results", "results"]
    assert set(rates.frame().columns) > {"layer", "k", "match_rate", "low", "high"}
    assert "Match rate in %" in str(rates)
    assert "Against greedy" in str(one)
    assert one.header.command == [
        f"ppdbench.decode(model=ppdbench.load('{SPEC}'), method='{METHODS[0]}', task='squad', "
        "warmup=1, data='builtin', limit=2, max_new_tokens=6)"
    ]


def test_progress_is_shown_where_it_is_asked_for(
    model: ppdbench.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.005)
    ppdbench.decode(model, out=tmp_path / "run", progress=True, **OPTIONS)
    told = capsys.readouterr()
    assert told.out == ""
    assert "ppdbench: " in told.err


def test_threads_are_given_back(model: ppdbench.Model, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        result = ppdbench.decode(model, threads=1, out=tmp_path / "run", **OPTIONS)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert result.header.config.threads == 1


@pytest.mark.parametrize(
    ("methods", "options", "words"),
    [
        (["greedy"], {"limit": 0}, ["--limit", "0"]),
        (["no-such"], {"limit": 1}, ["--limit", "1"]),
        (["greedy"], {"target": "hot"}, ["--target", "hot"]),
        (["layerskip:exit_layer=9"], {"limit": 1}, ["--limit", "1"]),
        (["greedy"], {"resume": True}, ["--resume"]),
    ],
)
def test_errors_are_those_of_the_command(
    methods: list[str], options: dict[str, object], words: list[str], capsys: Capture
) -> None:
    typed = [w for name in methods for w in ("--method", name)]
    assert run(["bench", "--model", SPEC, "--data", "builtin", *typed, *words]) == 2
    line = capsys.readouterr().err.strip()
    with pytest.raises(ppdbench.PpdbenchError) as caught:
        ppdbench.bench(SPEC, methods, data="builtin", **options)
    assert line == f"ppdbench: {caught.value}"


@pytest.mark.parametrize(
    ("verb", "options", "said"),
    [
        ("decode", {"task": []}, "--task is empty"),
        (
            "decode",
            {"task": None},
            "task must be text, a path or a list of texts or paths, not None",
        ),
        ("probe", {"task": ["gsm8k", 3]}, r"task must be .*, not \['gsm8k', 3\]"),
        ("probe", {"targets": ()}, "no --target is given; use greedy, top-k"),
        ("probe", {"targets": "hot"}, "target 'hot' is not known"),
        ("probe", {"targets": [3]}, "targets must be text, a Target or a list of texts or Targets"),
        ("probe", {"k": []}, "-k nothing"),
        ("probe", {"k": 1.5}, "k must be a whole number or a list of whole numbers, not 1.5"),
        ("probe", {"layers": []}, "--layers ''"),
        ("probe", {"layers": [1, 9]}, "layer 9, but this model has 4"),
        ("decode", {"batch": []}, "--batch is empty"),
        ("decode", {"batch": "2"}, "batch must be a whole number, a list of whole numbers or None"),
        ("decode", {"prefill": 0}, "--prefill 0"),
        ("decode", {"prefill": 2.5}, "prefill must be text or a whole number, not 2.5"),
        ("decode", {"limit": 2.5}, "limit must be a whole number or None, not 2.5"),
        ("decode", {"limit": True}, "limit must be a whole number or None, not True"),
        (
            "decode",
            {"max_new_tokens": "4"},
            "max_new_tokens must be a whole number or None, not '4'",
        ),
        ("decode", {"method": ["greedy"]}, r"method must be text, not \['greedy'\]"),
        ("decode", {"chat": False}, "chat must be 'auto', 'on' or 'off', not False"),
        ("decode", {"chat_set": ["a"]}, r"chat_set must be a mapping from texts or None"),
        ("decode", {"strict": 1}, "strict must be True or False, not 1"),
        ("bench", {"methods": []}, "no method given"),
        ("bench", {"model": 3}, "model must be text, a path or a Model, not 3"),
        ("load", {"offline": "no"}, "offline must be True or False, not 'no'"),
        ("read", {"folder": None}, "folder must be text or a path, not None"),
    ],
)
def test_arguments_that_cannot_be_are_one_line_and_no_run(
    verb: str,
    options: dict[str, object],
    said: str,
    model: ppdbench.Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if verb not in ("load", "read"):
        options = {"model": model, "data": "builtin", "limit": 2, "max_new_tokens": 4, **options}
    with pytest.raises(ppdbench.PpdbenchError, match=said) as caught:
        getattr(ppdbench, verb)(**options)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_paths_single_values_and_lists_are_taken(model: ppdbench.Model, tmp_path: Path) -> None:
    task = tmp_path / "asked.yaml"
    task.write_text(
        (ROOT / "tasks" / "gsm8k.yaml").read_text("utf-8").replace(": gsm8k", ": asked", 1)
    )
    data = ROOT / "ppdbench" / "builtin" / "gsm8k" / "test.jsonl"
    asked = {"data": data, "limit": 2, "max_new_tokens": 4}
    one = ppdbench.probe(model, task, k=3, layers=2, targets="greedy", out=tmp_path / "a", **asked)
    few = ppdbench.probe(
        model, [task], k=[3], layers=[2], targets=["greedy"], **asked, out=tmp_path / "b"
    )
    assert one.header.config == few.header.config
    assert (one.header.config.ks, one.header.config.layers) == ([3], [2])
    assert one.header.config.data == str(data)
    numbers = ppdbench.probe(
        model,
        k=np.arange(1, 3),
        layers=range(1, 4),
        bucket=np.int64(2),
        out=tmp_path / "c",
        **asked,
    )
    assert (numbers.header.config.ks, numbers.header.config.layers) == ([1, 2], [1, 2, 3])
    rows = ppdbench.decode(model, batch=2, prefill=8, out=tmp_path / "d", **asked)
    assert rows.header.config.prefill == 8


def test_the_page_names_the_options_of_the_command_line_alone() -> None:
    page = (DOCS / "python.md").read_text("utf-8")
    section = page.partition("## Options of the command line alone")[2]
    named = set(re.findall(r"`(--[a-z-]+)`", section))
    loaded = inspect.signature(ppdbench.load).parameters
    missing = set()
    for verb in ("probe", "decode", "bench"):
        taken = {*inspect.signature(getattr(ppdbench, verb)).parameters, *loaded}
        for option in import_module(f"ppdbench.cli.{verb}_command").command.params:
            known = {option.name, *(name.lstrip("-").replace("-", "_") for name in option.opts)}
            if not known & taken:
                missing |= {name for name in option.opts if name.startswith("--")}
    assert missing
    assert named - {"--target", "--full-length"} == missing


def test_problems_are_told_with_their_codes() -> None:
    sample = {"verdict": "identical", "method": "m", "task": "t", "example_id": "1"}
    failed = {**sample, "verdict": "failed", "error": "out of luck"}
    wrong = {**sample, "verdict": "mismatch"}
    assert problems({"not_run": {}}, [sample]) == []
    told = problems({"not_run": {"x": "no file"}}, [failed, wrong, sample])
    assert [(p.text, p.code) for p in told] == [
        ("x did not run: no file", BROKEN),
        ("1 example failed; the first: m on t 1: out of luck", BROKEN),
        ("1 output differs from greedy (see verdict in the run's samples)", WRONG),
    ]


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(DOCS / "python.md", "python"):
        exec(compile(block, "python.md", "exec"), names)
    assert "exit_layer" in capsys.readouterr().out
    assert len(list(tmp_path.glob("results/*/run.json"))) == 4
