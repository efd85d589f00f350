"""`ppdbench list`, and what every command says about itself."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

import click
import pytest

from ppdbench.cli import catalog
from ppdbench.cli.main import COMMANDS, cli, run
from ppdbench.engine.families import FAMILIES
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.tables import TABLES
from ppdbench.tasks import load_task, task_names

KINDS = ("methods", "tasks", "models", "tables")


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run([*arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def parsed(capsys: pytest.CaptureFixture[str], kind: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(printed(capsys, "list", kind, "--format", "json"))
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Patient:
    wait: int = field(default=3, metadata={"help": "Steps to wait."})
    eager: bool = False


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Method("patient", Patient, False, True, "Waits.")
    monkeypatch.setitem(METHODS._items, "patient", method)


# What is listed


def test_methods_have_name_exactness_training_and_options(
    patient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {entry["name"]: entry for entry in parsed(capsys, "methods")}
    assert set(entries) == set(METHODS.names())
    for entry in entries.values():
        assert set(entry) >= {"name", "exact", "trained", "options"}
    greedy, ours = entries["greedy"], entries["patient"]
    assert (greedy["exact"], greedy["trained"], greedy["options"]) == (True, False, [])
    assert (ours["exact"], ours["trained"]) == (False, True)
    assert ours["options"] == [
        {"name": "wait", "type": "int", "default": 3, "help": "Steps to wait."},
        {"name": "eager", "type": "bool", "default": False, "help": ""},
    ]


def test_the_table_of_methods_shows_options_with_defaults(
    patient: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = " ".join(printed(capsys, "list", "methods").split())
    assert "wait=3, eager=False" in out


def test_tasks_are_the_shipped_ones_with_length_and_bucket(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = {entry["name"]: entry for entry in parsed(capsys, "tasks")}
    assert sorted(entries) == task_names()
    for name, entry in entries.items():
        task = load_task(name)
        assert (entry["tokens"], entry["bucket"]) == (task.max_new_tokens, task.bucket)
        assert entry["dataset"] == task.dataset.hub_id
        assert entry["metrics"] == list(task.metrics)
    assert (entries["squad"]["tokens"], entries["squad"]["bucket"]) == (16, 2)


def test_models_name_the_embedded_one_the_synthetic_shapes_and_every_family(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = parsed(capsys, "models")
    columns = {"model", "family", "kind", "runs", "why", "what"}
    assert all(set(entry) == columns for entry in entries)
    assert entries[0]["model"] == "reference"
    assert {"synthetic:llama-7b", "synthetic:demo"} <= {entry["model"] for entry in entries}
    assert {entry["family"] for entry in entries} >= set(FAMILIES)


def test_families_that_do_not_run_say_why() -> None:
    families = [e for e in catalog.models() if e["model"] == catalog.FAMILY_MODEL]
    assert sum(e["runs"] for e in families) >= 60
    assert all(e["runs"] != bool(e["why"]) for e in families)
    kinds = {e["family"]: (e["kind"], e["runs"]) for e in families}
    assert kinds["llama"] == ("dense", True)
    assert kinds["mixtral"] == ("experts", True)
    assert kinds["mamba"] == ("recurrent", True)
    assert kinds["rwkv"] == ("recurrent", False)


def test_tables_are_named_paper_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    entries = parsed(capsys, "tables")
    names = [entry["table"] for entry in entries]
    assert {f"ppd/{n}" for n in range(1, 9)} | {f"layerskip/{n}" for n in range(1, 11)} <= set(
        names
    )
    assert len(set(names)) == len(names)
    assert names.index("layerskip/2") < names.index("layerskip/10")
    assert all(entry["title"] and entry["rows"] > 0 for entry in entries)


def test_tables_say_whether_they_have_a_recipe_and_all_can_be_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = {entry["table"]: entry for entry in parsed(capsys, "tables")}
    assert set(entries) == set(TABLES.names())
    assert (entries["ppd/2"]["recipe"], entries["ppd/2"]["steps"]) == (True, ["ppd-matches"])
    assert (entries["ppd/1"]["recipe"], entries["ppd/1"]["steps"]) == (False, [])


@pytest.mark.parametrize("kind", KINDS)
def test_csv_has_the_columns_and_rows_of_json(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    entries = parsed(capsys, kind)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, "list", kind, "--format", "csv"))))
    assert [list(row) for row in rows] == [list(entry) for entry in entries]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["markdown", "latex", "table"])
def test_every_kind_can_be_written_in_every_format(
    capsys: pytest.CaptureFixture[str], kind: str, form: str
) -> None:
    out = printed(capsys, "list", kind, "--format", form)
    n_rows = len(parsed(capsys, kind))
    marks = {"markdown": "\n| ", "latex": "\\\\\n", "table": "\n "}
    assert out.count(marks[form]) > n_rows  # and a header
    assert "\x1b" not in out


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("kind", KINDS)
def test_names_to_type_again_are_not_cut_at_eighty_columns(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    out = printed(capsys, "list", kind)
    assert max(map(len, out.splitlines())) <= 80
    for entry in parsed(capsys, kind):
        name = next(iter(entry.values()))
        assert any(line.strip().startswith(name) for line in out.splitlines()), name


# What commands say about themselves


def test_the_top_level_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--help")
    for name, what in COMMANDS.items():
        assert name in out
        assert what in out


def test_no_command_at_all_shows_the_help_in_readable_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys)
    assert max(map(len, out.splitlines())) <= 80
    assert "ppdbench probe --task" in out


def examples(name: str) -> list[list[str]]:
    """The command lines that the help of a command shows."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    lines = [line.strip() for line in (command.help or "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("ppdbench ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_shows_examples_that_can_be_typed(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = printed(capsys, name, "--help")
    shown = examples(name)
    assert shown
    for words in shown:
        assert f"ppdbench {' '.join(words)}" in out
        assert words[0] == name
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        command.make_context(name, words[1:])  # raises what the parser would refuse


NO_TORCH = """
import sys
from ppdbench.cli.main import run
code = run(sys.argv[1:])
heavy = sorted({"torch", "transformers", "datasets", "matplotlib"} & set(sys.modules))
sys.exit(f"exit code {code}, imported {heavy}" if code or heavy else 0)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    + [["list", kind] for kind in KINDS],
    ids=" ".join,
)
def test_help_and_lists_do_not_wait_for_torch(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_one_method_is_listed_with_what_its_options_mean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "list", "methods", "layerskip")
    assert "layers that draft" in out
    entry = json.loads(printed(capsys, "list", "methods", "layerskip", "--format", "json"))
    assert {o["name"] for o in entry["options"]} >= {"exit_layer", "draft_length"}
    assert all(o["help"] for o in entry["options"])
    assert run(["list", "methods", "layerskp"]) == 2
    assert "did you mean layerskip?" in capsys.readouterr().err
    assert run(["list", "tasks", "gsm8k"]) == 2


def test_every_method_of_a_paper_names_it_with_its_link(
    capsys: pytest.CaptureFixture[str],
) -> None:
    methods = {entry["name"]: entry for entry in parsed(capsys, "methods")}
    own = [name for name in methods if name != "greedy" and ":" not in name]
    out = printed(capsys, "list", "methods")
    for name in own:
        assert methods[name]["papers"], name
        for work in methods[name]["papers"]:
            assert work["link"].startswith("https://")
            assert f"{name}: {work['title']}, {work['link']}" in out
    assert "https://arxiv.org/abs/2404.16710" in printed(capsys, "list", "methods", "layerskip")


def test_every_table_names_its_paper_with_its_link(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "list", "tables")
    for entry in parsed(capsys, "tables"):
        assert f"{entry['paper']}, {entry['link']}" in out
