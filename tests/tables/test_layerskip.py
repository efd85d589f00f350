"""LayerSkip's tables: which of our runs stands beside which printed row, and what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.files.resources import reference_model
from tests.conftest import ROOT
from tests.tables.stored import about, decoded, sample, table

Capture = pytest.CaptureFixture[str]

# Of 8 layers, 2 are as deep as the paper's 8 of 32, and 3 as its 15 of 40.
METHODS = {
    "greedy": about("greedy"),
    "early": about("early-exit", exit_layer=2, confidence=0.0),
    "skip": about(
        "layerskip", exit_layer=2, draft_length=12, confidence=0.0, adaptive=False, reuse="kvq"
    ),
    "adaptive": about(
        "layerskip", exit_layer=3, draft_length=12, confidence=0.0, adaptive=True, reuse="kvq"
    ),
}


def summaries(folder: Path, *labels: str, task: str = "cnn_dailymail", **more: Any) -> str:
    samples = [sample(task, label, number) for label in labels for number in range(5)]
    return decoded(folder, METHODS, samples, **more)


def rows_of(content: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(r["task"], r["model"], r["method"]): r for r in content["rows"]}


def test_the_same_share_of_layers_and_draft_length_stand_side_by_side(
    tmp_path: Path, capsys: Capture
) -> None:
    rows = rows_of(table(capsys, "layerskip/2", summaries(tmp_path / "a", *METHODS)))
    ours = rows["cnn_dailymail", "7B", "layerskip"]
    assert (ours["E paper"], ours["E"], ours["d"]) == ("8/32", "2/8", 12)
    assert (ours["accepted paper"], ours["accepted"]) == (0.689, 0.4)
    assert ours["accepted diff"] == pytest.approx(0.4 - 0.689)
    assert (ours["tokens/s paper"], ours["tokens/s"]) == (127.9, pytest.approx(400))
    assert (ours["speedup paper"], ours["speedup"]) == (1.86, pytest.approx(1.6))
    assert (ours["ROUGE-2 paper"], ours["ROUGE-2"]) == (0.078, 1)
    assert rows["cnn_dailymail", "7B", "greedy"]["speedup"] == 1
    assert rows["cnn_dailymail", "7B", "early-exit"]["tokens/s"] == pytest.approx(400)
    # What was adaptive is not what the paper ran; nothing else ran three layers, or xsum.
    assert rows["cnn_dailymail", "13B", "layerskip"]["tokens/s"] is None
    assert rows["xsum", "7B", "layerskip"]["speedup"] is None


def test_what_a_method_chose_counts_like_what_it_was_told(tmp_path: Path, capsys: Capture) -> None:
    left_open = {**METHODS["skip"]["options"], "exit_layer": 0, "draft_length": 0}
    methods = {"skip": {**METHODS["skip"], "options": left_open}}
    samples = [sample("cnn_dailymail", "skip", number) for number in range(5)]
    chosen = {"skip": {"exit_layer": 2, "draft_length": 12}}
    run = decoded(tmp_path / "a", methods, samples, chosen=chosen)
    row = rows_of(table(capsys, "layerskip/2", run))["cnn_dailymail", "7B", "layerskip"]
    assert (row["E"], row["d"], row["speedup"]) == ("2/8", 12, pytest.approx(1.6))


def test_another_draft_length_is_not_the_papers(tmp_path: Path, capsys: Capture) -> None:
    methods = {"skip": {**METHODS["skip"], "options": {**METHODS["skip"]["options"]}}}
    methods["skip"]["options"]["draft_length"] = 5
    stored = decoded(tmp_path / "a", methods, [sample("cnn_dailymail", "skip")])
    content = table(capsys, "layerskip/2", stored)
    assert all(row["tokens/s"] is None for row in content["rows"])
    assert any("22 of 22 rows have nothing of ours" in note for note in content["notes"])


def test_no_speedup_stands_beside_a_mismatch(tmp_path: Path, capsys: Capture) -> None:
    samples = [sample("cnn_dailymail", "skip", verdict="mismatch", first_difference=3)]
    assert run(["table", "layerskip/2", decoded(tmp_path / "a", METHODS, samples)]) == 1
    assert "differs from greedy" in capsys.readouterr().err


def test_random_weights_have_no_score(tmp_path: Path, capsys: Capture) -> None:
    stored = summaries(tmp_path / "a", "greedy", synthetic=True)
    rows = rows_of(table(capsys, "layerskip/2", stored))
    assert rows["cnn_dailymail", "7B", "greedy"]["ROUGE-2"] is None
    assert rows["cnn_dailymail", "7B", "greedy"]["tokens/s"] is not None


def test_from_scratch_drafts_are_twelve_tokens_as_in_table_2(
    tmp_path: Path, capsys: Capture
) -> None:
    rows = rows_of(table(capsys, "layerskip/3", summaries(tmp_path / "a", "greedy", "skip")))
    assert rows["cnn_dailymail", "7B", "layerskip"]["speedup"] == pytest.approx(1.6)
    assert rows["cnn_dailymail", "1.5B", "layerskip"]["E"] == "3/8"
    assert rows["cnn_dailymail", "1.5B", "layerskip"]["speedup"] is None


@pytest.mark.parametrize(("name", "length"), [("layerskip/5", 8), ("layerskip/10", 7)])
def test_parses_are_exact_or_not(name: str, length: int, tmp_path: Path, capsys: Capture) -> None:
    options = {**METHODS["skip"]["options"], "draft_length": length}
    methods = {"greedy": about("greedy"), "skip": about("layerskip", **options)}
    parse = {"text": "[IN:A  b]", "references": ["[IN:A b]"]}
    wrong = {"text": "[IN:C b]", "references": ["[IN:A b]"]}
    samples = [
        sample("topv2", "greedy", **parse),
        sample("topv2", "skip", 0, **parse),
        sample("topv2", "skip", 1, **wrong),
    ]
    content = table(capsys, name, decoded(tmp_path / "a", methods, samples))
    rows = {(r["method"], r["E"]): r for r in content["rows"]}
    ours = rows["layerskip", "2/8"]
    assert (ours["exact match paper"], ours["exact match"]) == (0.829, 0.5)
    assert ours["ms/token"] == pytest.approx(2.5)
    assert rows["greedy", None]["exact match"] == 1
    printed = {"layerskip/5": 2.0, "layerskip/10": 165 / 87}[name]
    assert ours["speedup paper"] == pytest.approx(printed)


def test_what_is_reused_decides_the_row(tmp_path: Path, capsys: Capture) -> None:
    options = {**METHODS["skip"]["options"], "exit_layer": 6}
    methods = {r: about("layerskip", **{**options, "reuse": r}) for r in ("kvq", "kv", "none")}
    samples = [
        sample("topv2", reuse, step_ms=[ms] * 4)
        for reuse, ms in (("kvq", 5.0), ("kv", 6.0), ("none", 8.0))
    ]
    content = table(capsys, "layerskip/6", decoded(tmp_path / "a", methods, samples))
    rows = {(r["task"], r["E"], r["reuse"]): r for r in content["rows"]}
    found = {
        reuse: (
            rows["topv2", "6/8", reuse]["ms/token paper"],
            rows["topv2", "6/8", reuse]["ms/token"],
        )
        for reuse in methods
    }
    assert found == {
        "kvq": (134.0, pytest.approx(2.5)),
        "kv": (None, pytest.approx(3)),
        "none": (143.0, pytest.approx(4)),
    }
    assert rows["cnn_dailymail", "4/8", "none"]["ms/token"] is None
    assert rows["topv2", "6/8", "kv"]["d"] == 12


def test_reuse_is_compared_among_drafts_of_one_length(tmp_path: Path, capsys: Capture) -> None:
    options = {**METHODS["skip"]["options"], "exit_layer": 6}
    kvq, none = (about("layerskip", **{**options, "reuse": reuse}) for reuse in ("kvq", "none"))
    adaptive = about("layerskip", **{**options, "adaptive": True})
    shorter = about("layerskip", **{**options, "reuse": "none", "draft_length": 2})
    samples = [sample("topv2", "kvq", step_ms=[5.0] * 4), sample("topv2", "other")]
    methods = {"kvq": kvq, "other": adaptive}
    content = table(capsys, "layerskip/6", decoded(tmp_path / "a", methods, samples))
    rows = {(r["task"], r["E"], r["reuse"]): r for r in content["rows"]}
    assert rows["topv2", "6/8", "kvq"]["ms/token"] == pytest.approx(2.5)  # not the adaptive one's
    table(capsys, "layerskip/6", decoded(tmp_path / "b", {"kvq": kvq, "other": none}, samples))
    mixed = decoded(tmp_path / "c", {"kvq": kvq, "other": shorter}, samples)
    assert run(["table", "layerskip/6", mixed]) == 2
    assert "drafts 12 tokens and 2, but this table compares reuse alone" in capsys.readouterr().err


# Table 1


def test_the_embedded_models_exits_are_those_that_were_measured(
    tmp_path: Path, capsys: Capture
) -> None:
    right = {"text": "#### 4", "references": ["#### 4"]}
    methods = {
        "greedy": about("greedy"),
        "half": about("early-exit", exit_layer=4, confidence=0.0),
        "deeper": about("early-exit", exit_layer=6, confidence=0.0),
    }
    samples = [sample("gsm8k", label, **right) for label in ("greedy", "deeper")]
    samples.append(sample("gsm8k", "half", text="#### 5", references=["#### 4"]))
    stored = decoded(tmp_path / "a", methods, samples, name="reference")
    content = table(capsys, "layerskip/1", stored)
    rows = {(row["task"], row["model"]): row for row in content["rows"]}
    quality = json.loads(reference_model("quality.json").read_text("utf-8"))
    perplexity = rows["held-out text, perplexity", "reference"]
    assert perplexity["middle layerskip"] == quality["reference"][3]["perplexity"]
    assert perplexity["middle baseline"] == quality["twin"][3]["perplexity"]
    assert perplexity["last baseline"] == quality["twin"][7]["perplexity"]
    gsm8k = rows["gsm8k", "Llama2-7B"]
    assert (gsm8k["last layerskip"], gsm8k["middle layerskip"]) == (1, 0)
    assert gsm8k["last baseline"] is None
    assert rows["wikipedia", "Llama2-7B"]["middle baseline paper"] == 1900
    assert len(rows) == 21 * 2 + 2


def test_another_models_exits_come_from_its_own_training(tmp_path: Path, capsys: Capture) -> None:
    home = tmp_path / "model"
    home.mkdir()
    measured = [{"layer": n, "perplexity": 10.0 * n, "accuracy": 0.1 * n} for n in range(1, 9)]
    (home / "quality.json").write_text(json.dumps(measured), "utf-8")
    for name, there in ((str(home), True), ("nowhere", False)):
        stored = decoded(
            tmp_path / f"run-{there}",
            METHODS,
            [sample("gsm8k", "greedy", text="#### 1", references=["#### 1"])],
            name=name,
        )
        rows = {row["task"]: row for row in table(capsys, "layerskip/1", stored)["rows"]}
        assert ("held-out text, perplexity" in rows) == there
        if there:
            assert rows["held-out text, perplexity"]["middle layerskip"] == 40
            assert rows["held-out text, perplexity"]["middle baseline"] is None


@pytest.mark.parametrize(
    ("name", "variant", "note"),
    [
        ("smollm2", "baseline", "smollm2 stands as the baseline, since neither its name nor a"),
        ("facebook/layerskip-llama2-7B", "layerskip", "nor has the baseline on tasks, which is"),
    ],
)
def test_a_model_that_nobody_calls_trained_so_stands_as_the_baseline(
    name: str, variant: str, note: str, tmp_path: Path, capsys: Capture
) -> None:
    found = [sample("gsm8k", "greedy", text="#### 1", references=["#### 1"])]
    stored = decoded(tmp_path / "run", METHODS, found, name=name)
    content = table(capsys, "layerskip/1", stored)
    (row, *_) = [row for row in content["rows"] if row["task"] == "gsm8k"]
    scored = {which for which in ("baseline", "layerskip") if row[f"last {which}"] is not None}
    assert scored == {variant}
    assert any(note in each for each in content["notes"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "it is not JSON"),
        ("{}", "expected array, got object"),
        ('[{"layer": 8, "accuracy": 0.5}]', "perplexity is missing"),
        ('[{"layer": 8, "accuracy": 5, "perplexity": 9}]', "accuracy: expected float <= 1"),
        ('[{"layer": 8, "accuracy": "x", "perplexity": 9}]', "accuracy: expected float, got str"),
        ('[{"layer": 8, "accuracy": 1, "perplexity": 9, "x": 1}]', "x is no field"),
    ],
)
def test_damaged_figures_of_a_training_are_named(
    content: str, words: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "quality.json").write_text(content, "utf-8")
    found = [sample("gsm8k", "greedy", text="#### 1", references=["#### 1"])]
    stored = decoded(tmp_path / "run", METHODS, found, name=str(tmp_path))
    assert run(["table", "layerskip/1", str(stored)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path / 'quality.json'} is damaged: " in said
    assert words in said
    assert said.count("\n") == 1


# Settings


def test_our_training_is_what_the_makefile_says() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    first, second = json.loads(reference_model("training.json").read_text("utf-8"))
    for name, stage in (("SHORT", first), ("LONG", second)):
        line = re.search(rf"^{name} := (.*)$", makefile, flags=re.MULTILINE)
        assert line
        for option, value in re.findall(r"--(steps|batch-size|sequence|seed) (\d+)", line[1]):
            assert stage["config"][option.replace("-", "_")] == int(value)
        rate = re.search(r"--learning-rate (\S+)", line[1])
        assert rate and stage["config"]["learning_rate"] == float(rate[1])
    commands = re.findall(r"layerskip .*\$\((?:SHORT|LONG)\) .*--rotation.*", makefile)
    for line, stage in zip(commands, (first, second), strict=True):
        for option, value in re.findall(r"--(rotation|e-scale|p-max) (\S+)", line):
            assert stage["recipe"][option.replace("-", "_")] == float(value)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("layerskip/7", {"batch": 4, "steps": 17000}),
        ("layerskip/8", {"learning rate": "1.5e-03", "layer dropout": "yes"}),
        ("layerskip/9", {"dim": 256, "heads": 4, "layers": 8, "context": 2048}),
    ],
)
def test_settings_need_no_run(name: str, ours: dict[str, Any], capsys: Capture) -> None:
    row = next(r for r in table(capsys, name)["rows"] if r["model"] == "reference")
    assert ours.items() <= row.items()


def test_the_recipes_of_the_text_stand_beside_ours(capsys: Capture) -> None:
    rows = {(r["of"], r["what"]): r["value"] for r in table(capsys, "layerskip/text")["rows"]}
    assert rows["Llama2-13B", "continual_pretraining: R"] == "39"
    assert rows["reference", "pretraining_from_scratch: R"] == "7"
    assert rows["paper", "speedup_max_cnn_dm"] == "2.16"


def test_a_table_that_stays_empty_names_what_could_not_run(tmp_path: Path, capsys: Capture) -> None:
    samples = [sample("topv2", "greedy")]
    stored = decoded(tmp_path / "a", METHODS, samples, not_run={"skip": "too few layers"})
    assert run(["table", "layerskip/6", stored]) == 2
    said = capsys.readouterr().err
    assert "none of these runs has layerskip" in said
    assert "; skip did not run: too few layers" in said


@pytest.mark.parametrize("name", ["layerskip/2", "layerskip/4", "layerskip/6", "layerskip/10"])
def test_runs_of_something_else_are_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    stored = decoded(tmp_path / "a", METHODS, [sample("squad", "greedy")])
    assert run(["table", name, stored]) == 2
    said = capsys.readouterr().err
    assert "none of these runs" in said
    assert said.count("\n") == 1
