"""`ppdbench sweep`: runs, goes on after an interruption, and shows what is stored."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ppdbench.bench import sweep
from ppdbench.cli.main import run
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Proposer, Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.engine import loading
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, UnitError
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.runs import running
from ppdbench.runs.records import TIMES
from ppdbench.runs.store import RunFolder, read_run
from tests.filled import sample_key, to_line
from tests.report.test_sweep import GRID, SPEEDS
from tests.sweeps import cells, header, sample, write

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300,agree=0.9"
SMALL = ["--model", MODEL, "--data", "builtin", "--limit", "4", "--max-new-tokens", "6"]
SMALL += ["--warmup", "0", "--threads", "1"]
LOOKUP = ["--method", "prompt-lookup", "--grid", "max_draft=2,4", "--grid", "longest_suffix=1,2,3"]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def swept(*arguments: str, out: str = "run", code: int = 0) -> None:
    assert run(["sweep", *SMALL, "--out", out, *arguments]) == code


def parsed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    swept(*arguments, "--format", "json", code=code)
    return json.loads(capsys.readouterr().out)


def timeless(folder: str) -> list[dict[str, Any]]:
    samples = [
        {k: v for k, v in msgspec.to_builtins(s).items() if k not in TIMES}
        for s in read_run(folder).samples
    ]
    return sorted(samples, key=lambda s: (s["example_id"], s["method"]))


class Drafting(Proposer):
    """Drafts nonsense, or breaks in the way that it is told."""

    def __init__(self, how: str) -> None:
        self.how, self.rows = how, 3
        self.units = 2 if how == "dies" else 1
        self.threads = 1

    def begin(self) -> None:
        if self.how == "unready":
            raise UnitError("unit 1 is out of memory")

    def propose(self, session: Session, room: int) -> Draft:
        if self.how == "breaks":
            raise RuntimeError("no draft today")
        return Draft.chain([5, 6][:room])

    def decode(self, session: Session, request: Request) -> Decoded:
        if self.how == "dies":
            raise UnitError("unit 1 died")
        decoded = super().decode(session, request)
        if self.how != "lies":
            return decoded
        ids = (*decoded.output_ids[:-1], (decoded.output_ids[-1] + 1) % 300)
        return dataclasses.replace(decoded, output_ids=ids)


@pytest.fixture
def odd() -> Iterator[list[str]]:
    """A method with good cells and bad ones; which were closed, in order."""
    closed: list[str] = []

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd:
        how: str = "works"
        n: int = 0

        def prepare(self, setup: Setup) -> Proposer:
            if self.how == "absent":
                raise ConfigError("odd: no weights at hand")
            decoder = Drafting(self.how)
            decoder.close = lambda: closed.append(f"{self.how}{self.n}")  # type: ignore[method-assign]
            return decoder

    METHODS.add("odd", Method("odd", Odd, True, False, "Odd."))
    yield closed
    del METHODS._items["odd"]


# Whole runs


def test_every_cell_is_decoded_on_every_example_and_one_is_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = parsed(capsys, *LOOKUP, "--limit", "5")
    assert len(found["cells"]) == 6
    assert {(c["identical"], c["n_examples"]) for c in found["cells"]} == {(5, 5)}
    assert found["complete"] is True
    assert found["best"] in {c["label"] for c in found["cells"]}
    assert found["command"].startswith("ppdbench decode --method prompt-lookup --set max_draft=")
    stored = read_run("run")
    assert stored.header.kind == "sweep"
    assert len(stored.samples) == 30


def test_outputs_are_those_of_bench_with_the_same_settings() -> None:
    swept("--method", "prompt-lookup", "--grid", "max_draft=2,4")
    methods = [w for n in (2, 4) for w in ("--method", f"prompt-lookup:max_draft={n}")]
    assert run(["bench", *SMALL, *methods, "--out", "bench"]) == 0
    assert timeless("run") == timeless("bench")


def test_the_printed_command_runs_and_has_the_options_of_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--method", "prompt-lookup", "--grid", "max_draft=2,4", "--set", "longest_suffix=2"]
    swept(*words, "--limit", "5")
    printed = capsys.readouterr().out.splitlines()
    words = printed[-1].split()
    assert words[:2] == ["ppdbench", "decode"]
    assert run([*words[1:], "--format", "json"]) == 0
    decoded = json.loads(capsys.readouterr().out)
    assert decoded["options"]["longest_suffix"] == 2
    assert decoded["options"]["max_draft"] in (2, 4)
    assert (decoded["n_examples"], decoded["n_tokens"]) == (5, 30)


def test_at_most_so_many_cells_are_ready_at_once(
    odd: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "AT_ONCE", 2)
    swept("--method", "odd", "--grid", "n=1,2,3")
    # Each before and after passes are compiled, then in heats of two, the last one closed first.
    alone = ["works1", "works2", "works3"]
    assert odd == [*alone, *alone, "works2", "works1", "works3"]


def test_a_draft_model_is_loaded_once_for_all_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = loading.load

    def counted(spec: loading.ModelSpec, **how: Any) -> loading.Loaded:
        loads.append(spec.name)
        return load(spec, **how)

    monkeypatch.setattr(loading, "load", counted)
    drafter = "synthetic:layers=1,hidden=32,heads=2,vocab=300"
    swept(
        "--method", "speculative", "--set", f"draft_model={drafter}", "--grid", "draft_length=1,2"
    )
    assert loads == [drafter]


# Halving


def test_halving_measures_the_better_half_on_twice_as_many(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = parsed(capsys, *LOOKUP, "--search", "halving", "--limit", "5")
    rungs = [(6, 2), (3, 3), (2, 5)]
    assert found["rungs"] == [{"cells": n, "examples": of} for n, of in rungs]
    assert sorted(c["n_examples"] for c in found["cells"]) == [2, 2, 2, 3, 5, 5]
    left = {c["standing"] for c in found["cells"] if c["n_examples"] < 5}
    assert left == {"too few examples"}
    first, second = (next(c for c in found["cells"] if c["n_examples"] == n) for n in (5, 3))
    assert first["label"] == found["best"]
    assert second["label"] != found["second"]


def test_an_interrupted_halving_goes_on_with_the_cells_it_had_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(*LOOKUP, "--search", "halving", out="whole")
    lines = (Path("whole") / "samples.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 18
    capsys.readouterr()
    for kept in (0, 5, 12, 14, 17):
        folder = Path(f"cut-{kept}")
        folder.mkdir()
        (folder / "run.json").write_bytes((Path("whole") / "run.json").read_bytes())
        (folder / "samples.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:9])
        swept(*LOOKUP, "--search", "halving", "--resume", out=folder.name)
        assert (folder / "samples.jsonl").read_bytes().startswith(b"".join(lines[:kept]))
        if kept >= 12:  # the first rung was done, so its times had decided
            assert timeless(folder.name) == timeless("whole")
        assert len(read_run(folder).samples) == 18


def test_results_are_kept_as_they_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    append, seen = RunFolder.append, []

    def interrupted(self: RunFolder, sample: Any) -> None:
        append(self, sample)
        seen.append(sample)
        if len(seen) == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", interrupted)
        swept(*LOOKUP, code=130)
    assert len(read_run("run").samples) == 7
    swept(*LOOKUP, "--resume")
    swept(*LOOKUP, out="whole")
    assert timeless("run") == timeless("whole")


def test_a_sweep_is_resumed_with_its_own_grid_alone(capsys: pytest.CaptureFixture[str]) -> None:
    swept("--method", "prompt-lookup", "--grid", "max_draft=2,4")
    swept("--method", "prompt-lookup", "--grid", "max_draft=2,5", "--resume", code=2)
    assert "cannot resume" in capsys.readouterr().err


# What goes wrong


def test_a_cell_that_fails_is_recorded_and_the_sweep_goes_on(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "sweep",
                *SMALL,
                "--out",
                "run",
                "--method",
                "odd",
                "--grid",
                "how=works,breaks,absent,unready,dies",
            ]
        )
        == 3
    )
    captured = capsys.readouterr()
    assert "absent did not run: odd: no weights at hand" in captured.err
    assert "unready did not run: unit 1 is out of memory" in captured.err
    assert "8 examples failed" in captured.err
    assert "NOT RUN" in captured.out
    errors = {s.method: getattr(s, "error", None) for s in read_run("run").samples}
    assert errors == {
        "odd:how=works": None,
        "odd:how=breaks": "RuntimeError: no draft today",
        "odd:how=dies": "unit 1 died",
    }


def test_a_mismatch_has_no_speedup_and_exits_1_again_when_shown(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    grid = ["--method", "odd", "--grid", "how=works,lies", "--limit", "5"]
    found = parsed(capsys, *grid, code=1)
    lying = next(c for c in found["cells"] if c["label"] == "odd:how=lies")
    assert (lying["standing"], lying["speedup"]) == ("mismatch", None)
    assert found["best"] == "odd:how=works"
    assert run(["sweep", "--show", "run"]) == 1
    captured = capsys.readouterr()
    assert "✗differs" in captured.out
    assert "5 outputs differ from greedy" in captured.err


def test_a_sweep_of_which_nothing_can_run_is_an_error(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for how, why in (("absent", "odd: no weights at hand"), ("unready", "unit 1 is out of memory")):
        swept("--method", "odd", "--grid", f"how={how}", code=2)
        assert capsys.readouterr().err == f"ppdbench: no cell can run: {why}\n"
        assert not Path("run").exists()


def test_a_method_whose_units_do_not_start_is_left_out_of_a_bench(
    odd: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", *SMALL, "--method", "greedy", "--method", "odd:how=unready", "--out", "run"]
    assert run(words) == 3
    header = read_run("run").header
    assert header.not_run == {"odd": "unit 1 is out of memory"}
    assert odd == ["unready0"]  # closed all the same
    assert run([*words[:-4], "--method", "odd:how=unready", "--out", "other"]) != 0


def test_a_bench_that_goes_on_forgets_what_could_not_run_before(
    odd: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["bench", *SMALL, "--method", "greedy", "--method", "odd:how=unready", "--out", "run"]
    assert run(words) == 3
    before = read_run("run").header
    assert "odd" not in before.memory.methods
    monkeypatch.setattr(Drafting, "begin", lambda self: None)
    monkeypatch.setattr(Drafting, "facts", {"seen": 1}, raising=False)
    monkeypatch.setattr(Drafting, "loaded", {"addon": "abc"}, raising=False)
    assert run([*words, "--resume"]) == 0
    after = read_run("run")
    assert after.header.not_run == {}
    assert after.header.facts == {"odd": {"seen": 1}}
    assert after.header.methods["odd"].loaded == {"addon": "abc"}
    assert after.header.memory.methods.keys() == {"greedy", "odd"}
    assert after.header.environment == before.environment
    assert sum(s.method == "odd" for s in after.samples) == 4
    # What was read since is part of the run: another addon is another method.
    monkeypatch.setattr(Drafting, "loaded", {"addon": "abd"})
    assert run([*words, "--resume"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--method", "layerskip", "--grid", "exit_layer=1,9"],
            "this model has 3 layers; use 1..2",
        ),
        (["--method", "early-exit", "--grid", "exit_layer=1,3"], "this model has 3 layers"),
        (["--method", "ppd", "--grid", "exit_after=2,3"], "this model has 3 layers"),
        (["--method", "layerskip", "--grid", "draft_length=0,2"], "draft_length=0; use 1 or more"),
        (["--method", "layerskip"], "--grid KEY=VALUE"),
        (["--grid", "exit_layer=1,2"], "give --method and --grid, or --show"),
        (["--method", "layrskip", "--grid", "a=1"], "did you mean layerskip"),
        ([*LOOKUP, "--plot", "map.jpg"], "no picture format"),
        ([*LOOKUP, "--search", "halving", "--limit", "1"], "use --search grid"),
        ([*LOOKUP, "--search", "luck"], "'luck' is not one of 'grid', 'halving'"),
        (["--show", "nowhere"], "nowhere is no run folder"),
    ],
)
def test_bad_input_is_one_line_before_weights_load(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(running, "load", lambda *_, **__: pytest.fail("weights were loaded"))
    words = arguments if "--show" in arguments else [*SMALL, *arguments]
    assert run(["sweep", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not Path("results").exists()


# Stored sweeps


@pytest.fixture
def stored() -> str:
    write(Path("stored"), header(GRID, 4), cells(SPEEDS))
    return "stored"


def test_a_stored_sweep_is_shown_without_torch(stored: str) -> None:
    program = (
        "import sys; from ppdbench.cli.main import run; "
        f"code = run(['sweep', '--show', '{stored}', '--plot', 'map.svg', '--format', 'json']); "
        "sys.exit(code or bool({'torch', 'transformers'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"] == list(SPEEDS)[3]
    assert Path("map.svg").read_text("utf-8").startswith("<?xml")


@pytest.mark.usefixtures("narrow")
def test_every_form_names_the_cells_and_their_standing(
    stored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--show", stored]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines()[:-1])) <= 80
    assert "\x1b" not in table
    assert table.splitlines()[-1].startswith(
        "ppdbench decode --method layerskip --set exit_layer=2"
    )
    assert run(["sweep", "--show", stored, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["standing"] for row in rows] == ["faster", "faster", "no difference", "slower"]
    for form, mark in (("markdown", "| 0.80x slower |"), ("latex", "0.80x slower &")):
        assert run(["sweep", "--show", stored, "--format", form]) == 0
        assert mark in capsys.readouterr().out


def test_results_are_exported(stored: str, capsys: pytest.CaptureFixture[str]) -> None:
    exports = [word for end in ("json", "csv", "md") for word in ("--export", f"out/map.{end}")]
    assert run(["sweep", "--show", stored, *exports]) == 0
    assert json.loads(Path("out/map.json").read_text())["distinguishable"] is True
    assert Path("out/map.csv").read_text().count("\n") == 5
    assert "Best setting" in Path("out/map.md").read_text()


def test_failures_of_a_stored_sweep_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = SPEEDS
    broken = [sample(first, n, 1.0, "failed") for n in range(4)]
    write(Path("stored"), header(GRID, 4), broken + cells(dict.fromkeys(others, 1.2)))
    assert run(["sweep", "--show", "stored"]) == 3
    assert "4 examples failed; the first: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "layerskip"], "--show reads a stored sweep; leave --method out"),
        (["--limit", "2"], "leave --limit out"),
    ],
)
def test_show_takes_no_options_of_a_run(
    stored: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", "--show", stored, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_other_runs_are_no_sweeps(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("bench"), header(GRID, 4, kind="bench"), cells(SPEEDS))
    assert run(["sweep", "--show", "bench"]) == 2
    assert "a run of `ppdbench bench` is no sweep" in capsys.readouterr().err


def test_cells_that_were_chosen_stay_chosen_whatever_times_say_later() -> None:
    swept(*LOOKUP, "--search", "halving", out="whole")
    folder = Path("whole")
    chosen = json.loads((folder / "run.json").read_bytes())["rungs"][1]["going"]
    lines = (folder / "samples.jsonl").read_bytes().splitlines(keepends=True)
    told = [json.loads(line) for line in lines]
    for one in told:
        del one["checksum"]
        slow = 1e4 if one["method"] in chosen else 1.0
        one["step_ms"] = [slow * ms for ms in one["step_ms"]]
    before = {sample_key(one) for one in told}
    assert {one["method"] for one in told} > set(chosen)
    (folder / "samples.jsonl").write_bytes(b"".join(map(to_line, told[:-1])))
    swept(*LOOKUP, "--search", "halving", "--resume", out="whole")
    again = (folder / "samples.jsonl").read_bytes().splitlines()
    assert {sample_key(json.loads(line)) for line in again} == before
