"""`ppdbench bench`, and what `decode` shares with it: strict, sampled, exports, failures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ppdbench.bench.interleaved import Interleaved, PreparedMethod
from ppdbench.cli.main import run
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Proposer, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.runs.store import read_run
from ppdbench.runs.workload import Item

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "2", "--max-new-tokens", "8"]
SMALL += ["--warmup", "1"]

SUITE = """
version: 1
methods: [greedy, "prompt-lookup:max_draft=3"]
tasks: [squad]
limit: 1
max_new_tokens: 6
data: builtin
model: "{model}"
"""


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def bench(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run(["bench", *SMALL, "--out", "run", "--format", "json", *arguments]) == code
    return json.loads(capsys.readouterr().out)


class Odd(Proposer):
    """Breaks on prompts of even length, and before it starts if told so."""

    rows = 4

    def propose(self, session: Session, room: int) -> Draft:
        if session.tokens[0] == 999 or len(session.tokens) % 2 == 0:
            raise RuntimeError("even length")
        return Draft.chain([5, 6])


@pytest.fixture
def odd() -> Iterator[None]:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Breaking:
        late: bool = True

        def prepare(self, setup: Setup) -> Proposer:
            if not self.late:
                raise ConfigError("odd: no weights at hand")
            return Odd()

    METHODS.add("odd", Method("odd", Breaking, True, False, "Breaks."))
    yield
    del METHODS._items["odd"]


def test_one_object_per_task_and_method_with_the_keys_of_decode(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = bench(
        capsys,
        "--method",
        "greedy",
        "--method",
        "prompt-lookup",
        "--task",
        "squad",
        "--task",
        "xsum",
    )
    assert [(s["task"], s["method"]) for s in found] == [
        ("squad", "greedy"),
        ("squad", "prompt-lookup"),
        ("xsum", "greedy"),
        ("xsum", "prompt-lookup"),
    ]
    assert run(["decode", *SMALL, "--task", "squad", "--format", "json"]) == 0
    decoded = json.loads(capsys.readouterr().out)
    assert all(set(s) == set(decoded) for s in found)
    assert all((s["identical"], s["tie"], s["mismatch"]) == (2, 0, 0) for s in found)


def test_one_method_may_run_with_several_settings(capsys: pytest.CaptureFixture[str]) -> None:
    both = ["--method", "prompt-lookup:max_draft=2", "--method", "prompt-lookup:max_draft=5"]
    found = bench(capsys, *both, "--max-new-tokens", "40")
    assert [s["label"] for s in found] == ["prompt-lookup:max_draft=2", "prompt-lookup:max_draft=5"]
    assert [s["options"]["max_draft"] for s in found] == [2, 5]
    samples = read_run("run").samples
    assert all(p <= 2 for s in samples if "=2" in s.method for p in s.proposed)
    assert any(p > 2 for s in samples if "=5" in s.method for p in s.proposed)


def test_examples_that_fail_are_recorded_and_the_rest_goes_on(
    odd: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", *SMALL, "--out", "run", "--format", "json"]
    arguments += ["--method", "odd", "--method", "greedy", "--limit", "4", "--task", "xsum"]
    assert run(arguments) == 3
    captured = capsys.readouterr()
    by_method = {s["method"]: s for s in json.loads(captured.out)}
    assert by_method["odd"]["failed"] > 0
    assert by_method["greedy"]["identical"] == 4
    failed = [s for s in read_run("run").samples if s.verdict == "failed"]
    assert {s.error for s in failed} == {"RuntimeError: even length"}
    assert "examples failed; the first: odd on xsum" in captured.err


def test_failed_examples_are_tried_again_on_resume(
    odd: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", *SMALL, "--out", "run", "--method", "odd", "--method", "greedy"]
    assert run(arguments) == 3
    monkeypatch.setattr(Odd, "propose", lambda self, session, room: Draft.empty())
    assert run([*arguments, "--resume"]) == 0
    samples = read_run("run").samples
    assert sorted((s.method, s.verdict) for s in samples) == [
        ("greedy", "identical"),
        ("greedy", "identical"),
        ("odd", "identical"),
        ("odd", "identical"),
    ]


def test_a_resumed_run_decodes_only_with_the_methods_that_lack_a_result(
    odd: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", *SMALL, "--out", "run", "--method", "odd", "--method", "prompt-lookup"]
    assert run(arguments) == 3
    before = {(s.method, s.example_id): s for s in read_run("run").samples}
    monkeypatch.setattr(Odd, "propose", lambda self, session, room: Draft.empty())
    decoded: list[str] = []
    attempt = Interleaved._attempt

    def noted(self: Interleaved, item: Item, method: PreparedMethod) -> Decoded | str:
        decoded.append(method.label)
        return attempt(self, item, method)

    monkeypatch.setattr(Interleaved, "_attempt", noted)
    assert run([*arguments, "--resume"]) == 0
    assert set(decoded[2:]) == {"odd"}  # all were warmed up
    after = {(s.method, s.example_id): s for s in read_run("run").samples}
    assert all(after[key] == before[key] for key in before if key[0] == "prompt-lookup")
    assert all(s.baseline_step_ms for s in after.values())


def test_a_method_that_cannot_start_leaves_the_others_running(
    odd: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", *SMALL, "--out", "run", "--method", "odd:late=false"]
    assert run([*arguments, "--method", "greedy"]) == 3
    captured = capsys.readouterr()
    assert "odd did not run: odd: no weights at hand" in captured.err
    assert "greedy" in captured.out
    assert run(["decode", *SMALL, "--method", "odd", "--set", "late=false"]) == 2
    assert capsys.readouterr().err == "ppdbench: odd: no weights at hand\n"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strict_runs_have_no_ties_and_say_that_they_are_strict(
    dtype: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = bench(capsys, "--method", "prompt-lookup", "--strict", "--dtype", dtype)
    assert found["strict"] is True
    assert (found["identical"], found["tie"], found["mismatch"]) == (2, 0, 0)


def test_sampled_runs_follow_the_seed_and_have_no_verdict_against_greedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = []
    for out, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        arguments = ["decode", *SMALL, "--method", "prompt-lookup", "--target", "top-p"]
        assert run([*arguments, "--temperature", "2", "--seed", seed, "--out", out]) == 0
        assert "sampled (top-p)" in capsys.readouterr().out
        samples = read_run(out).samples
        assert {s.verdict for s in samples} == {"sampled"}
        outputs.append([s.output_ids for s in samples])
    assert outputs[0] == outputs[1] != outputs[2]


def test_a_suite_file_says_what_is_run_and_what_is_typed_wins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("suite.yaml").write_text(SUITE.format(model=MODEL))
    assert run(["bench", "--suite", "suite.yaml", "--out", "a", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(s["task"], s["label"], s["n_tokens"]) for s in found] == [
        ("squad", "greedy", 6),
        ("squad", "prompt-lookup", 6),
    ]
    arguments = ["bench", "--suite", "suite.yaml", "--out", "b", "--format", "json"]
    assert run([*arguments, "--max-new-tokens", "4", "--method", "greedy", "--task", "xsum"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(s["task"], s["label"], s["n_tokens"]) for s in found] == [("xsum", "greedy", 4)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("methods: [greedy]", "the key 'methods' is given twice"),
        ("metods: [greedy]", "unknown key metods: did you mean methods?"),
        ("strict: often", "strict must be true or false"),
        ("version: 2", "given twice"),
    ],
)
def test_a_bad_suite_file_is_one_line(
    change: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("suite.yaml").write_text(SUITE.format(model=MODEL) + change + "\n")
    assert run(["bench", "--suite", "suite.yaml"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_results_are_exported_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    exports = [w for end in ("json", "csv", "md", "tex") for w in ("--export", f"out/table.{end}")]
    assert run(["bench", *SMALL, "--method", "prompt-lookup", "--out", "run", *exports]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("written: ")] == [
        f"written: out/table.{end}" for end in ("json", "csv", "md", "tex")
    ]
    (found,) = json.loads(Path("out/table.json").read_text())
    assert found["method"] == "prompt-lookup"
    assert "| prompt-lookup |" in Path("out/table.md").read_text()
    assert Path("out/table.csv").read_text().count("\n") == 2
    assert "\\toprule" in Path("out/table.tex").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--export", "table.docx"], "no table format has this suffix; use .json, .csv, .md, .tex"),
        (["--method", "promt-lookup"], "did you mean prompt-lookup"),
        (["--method", "prompt-lookup:max_drafts=3"], "did you mean max_draft?"),
        (["--method", "prompt-lookup:max_draft=-1"], "max_draft=-1; use 0 or more"),
        (["--method", "prompt-lookup:max_draft=many"], "is not a value of type int"),
        (["--method", "prompt-lookup:max_draft"], "use key=value"),
        (["--method", "greedy", "--method", "greedy"], "method greedy is given twice"),
        (["--target", "top-z"], "target 'top-z' is not known"),
        (["--strict", "--target", "top-p"], "--strict compares with greedy decoding"),
        (["--top-k", "4"], "--top-k needs --target top-k"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--data", "builtin", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not Path("results").exists()
