"""Methods that nobody typed one by one: all of ours, and the peers that stand beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.bench.choices import every_method, with_peers
from ppdbench.bench.grid import Grid
from ppdbench.bench.runner import Choice
from ppdbench.cli.main import run
from ppdbench.files import resources
from ppdbench.methods import METHODS, method
from ppdbench.runs.store import read_run

ALL = [
    *("transformers:greedy", "transformers:greedy-static", "transformers:early-exit"),
    *("transformers:prompt-lookup", "transformers:assistant"),
]
MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=1024,agree=0.9"
SMALL = "synthetic:layers=2,hidden=32,heads=2,vocab=300"
OURS = {name for name in METHODS.names() if ":" not in name}


# Peers


def peers(*methods: str, model: str = "reference") -> list[str]:
    choices = list(map(Choice.parse, methods))
    found, _ = with_peers(choices, model)
    assert found[: len(choices)] == choices
    return [str(choice) for choice in found[len(choices) :]]


def test_the_reference_model_gets_every_peer_and_its_own_draft_model() -> None:
    *others, assistant = peers("greedy")
    assert others == ALL[:-1]
    assert assistant == "transformers:assistant:draft_model=reference-draft"


def test_peers_have_the_options_of_the_methods_that_they_are_counterparts_of() -> None:
    found = peers(
        "layerskip:exit_layer=2,draft_length=6,confidence=0.3",
        "layerskip:exit_layer=3",
        "prompt-lookup:max_draft=4",
        "speculative:draft_model=./small,draft_length=2",
    )
    assert found[2:] == [
        "transformers:early-exit:exit_layer=2,draft_length=6",
        "transformers:early-exit:exit_layer=3",
        "transformers:prompt-lookup:max_draft=4",
        "transformers:assistant:draft_model=./small,draft_length=2",
    ]


def test_without_a_draft_model_the_assistant_stays_away_and_says_so() -> None:
    found, note = with_peers([Choice(name="greedy")], "./my-model")
    assert "transformers:assistant" not in map(str, found)
    assert note is not None
    assert "--method speculative:draft_model=NAME" in note


def test_a_peer_that_was_asked_for_is_not_added_again() -> None:
    assert "transformers:greedy" not in peers("transformers:greedy")
    assert len(peers("layerskip", "layerskip:confidence=0.5")) == len(ALL)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("transformers:greedy", "transformers:greedy", {}),
        ("transformers:early-exit:exit_layer=2", "transformers:early-exit", {"exit_layer": "2"}),
        ("layerskip:exit_layer=2", "layerskip", {"exit_layer": "2"}),
    ],
)
def test_names_with_a_colon_are_names(text: str, name: str, options: dict[str, str]) -> None:
    choice = Choice.parse(text)
    assert (choice.name, choice.options) == (name, options)
    assert str(choice) == text


@pytest.mark.usefixtures("undoubted")
def test_peers_are_methods_of_the_run_with_verdicts_and_times_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["bench", "--model", MODEL, "--data", "builtin", "--task", "xsum", "--limit", "5"]
    words += ["--max-new-tokens", "8", "--warmup", "0", "--against", "transformers"]
    words += ["--method", "speculative:draft_model=synthetic:demo", "--method", "layerskip"]
    assert run([*words, "--format", "json", "--out", "run"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    by_name = {s["method"]: s for s in found}
    assert list(by_name) == ["speculative", "layerskip", *ALL]
    for name in ALL:
        assert by_name[name]["identical"] == 5
        assert by_name[name]["ms_per_token"] > 0
        assert by_name[name]["speedup"] > 0


def test_peers_draw_tokens_with_a_seed_and_leave_the_global_generator_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["decode", "--model", MODEL, "--data", "builtin", "--task", "xsum", "--limit", "2"]
    words += ["--method", "transformers:prompt-lookup", "--target", "top-k", "--warmup", "0"]
    words += ["--max-new-tokens", "6"]
    before = torch.random.get_rng_state()
    outputs = []
    for seed in ("1", "1", "2"):
        out = f"run-{len(outputs)}"
        assert run([*words, "--seed", seed, "--out", out]) == 0
        outputs.append([sample.output_ids for sample in read_run(out).samples])
    assert outputs[0] == outputs[1] != outputs[2]
    assert torch.equal(torch.random.get_rng_state(), before)


def test_an_unknown_peer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--data", "builtin", "--method", "transformers:gready"]) == 2
    assert "did you mean transformers:greedy" in capsys.readouterr().err
    assert run(["bench", "--against", "vllm"]) == 2
    assert "'vllm' is not 'transformers'" in capsys.readouterr().err


def test_a_suite_file_may_ask_for_peers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "suite.yaml"
    text = f"version: 1\ntasks: [xsum]\nlimit: 1\nmethods: [greedy]\nmodel: '{MODEL}'\n"
    words = ["bench", "--suite", str(suite), "--data", "builtin", "--max-new-tokens", "4"]
    suite.write_text(f"{text}against: transformers\ncompile: 'off'\n", "utf-8")
    assert run([*words, "--out", str(tmp_path / "run"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [s["method"] for s in found] == ["greedy", *ALL[:-1]]
    suite.write_text(f"{text}against: vllm\n", "utf-8")
    assert run(words) == 2
    assert capsys.readouterr().err == "ppdbench: --against vllm: use transformers\n"


# All methods of ours


def test_on_the_embedded_model_every_method_of_ours_runs() -> None:
    choices, lacking = every_method("reference")
    assert {choice.name for choice in choices} == OURS
    assert lacking == []


def test_parts_that_came_with_the_embedded_model_are_named() -> None:
    options = {choice.name: choice.options for choice in every_method("reference")[0]}
    assert options["speculative"] == {"draft_model": "reference-draft"}
    assert options["rest"] == {"datastore": "reference"}
    assert options["layerskip"] == {}


def test_of_another_model_of_the_package_those_parts_are_taken_that_came_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PACKAGE", tmp_path)
    for part in ("eagle", "datastore"):
        (tmp_path / "smollm2" / part).mkdir(parents=True)
    choices, lacking = every_method("smollm2")
    options = {choice.name: choice.options for choice in choices}
    assert options["eagle"] == {}
    assert options["rest"] == {"datastore": "smollm2"}
    left = {why.split(":")[0] for why in lacking}
    assert left == {"hidden-transfer", "hybrid", "medusa", "prompt-tokens", "speculative"}


def test_parts_that_came_with_a_model_serve_where_none_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["bench", "--method", "rest", "--method", "speculative", "--data", "builtin"]
    words += ["--task", "xsum", "--limit", "1", "--max-new-tokens", "3", "--warmup", "0"]
    assert run([*words, "--offline", "--out", "run"]) == 0
    told = {m.name: m.options for m in read_run("run").header.methods.values()}
    assert told["rest"]["datastore"] == "reference"
    assert told["speculative"]["draft_model"] == "reference-draft"


def test_a_part_that_is_named_is_the_one_that_serves() -> None:
    _, strategy = Choice(name="rest", options={"datastore": "./mine"}).build("reference")
    assert method("rest").values(strategy)["datastore"] == "./mine"
    cells = Grid.parse("rest", ("max_nodes=2,3",), ()).build("smollm2").values()
    assert [each.values(cell)["datastore"] for each, cell in cells] == ["smollm2"] * 2


@pytest.mark.parametrize("name", ["rest", "speculative"])
def test_on_another_model_they_are_asked_for_before_it_is_loaded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", "--method", name, "--model", SMALL, "--offline"]) == 2
    assert f"{name}: no d" in capsys.readouterr().err


def test_on_another_model_what_needs_a_part_is_left_out_with_its_reason() -> None:
    choices, lacking = every_method(SMALL)
    trained = {"eagle", "hidden-transfer", "medusa", "prompt-tokens"}
    others = {"hybrid", "rest", "speculative"}
    assert {choice.name for choice in choices} == OURS - trained - others
    assert {why.split(":")[0] for why in lacking} == trained | others
    assert any("ppdbench datastore" in why for why in lacking)


def test_all_methods_on_ones_own_model_leave_out_what_cannot_run_and_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["bench", "--methods", "all", "--model", SMALL, "--data", "builtin", "--task", "xsum"]
    words += ["--limit", "1", "--max-new-tokens", "3", "--warmup", "0", "--compile", "off"]
    assert run([*words, "--target", "top-p", "--format", "json", "--out", "run"]) == 0
    captured = capsys.readouterr()
    ran = {s["method"] for s in json.loads(captured.out)}
    assert {"greedy", "layerskip", "prompt-lookup", "lookahead"} <= ran
    left_out = [line for line in captured.err.splitlines() if line.startswith("left out: ")]
    assert any("no add-on" in line for line in left_out)
    header = read_run("run").header
    assert "lookahead" not in (header.left_out or {})
    assert header.not_run == {}
    assert run(["report", "run", "--format", "json"]) == 0
