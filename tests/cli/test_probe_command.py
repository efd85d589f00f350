"""`ppdbench probe` as it is typed."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.cli.probed import (
    LAYERS,
    MODEL,
    SMALL,
    parsed,
    printed,
    questions,
    samples,
    task_file,
    task_text,
)

TOP = {"model", "task", "n_examples", "n_tokens", "n_layers", "rows"}
ROW = {
    *("task", "layer", "k", "head", "target", "bucket"),
    *("match_rate", "low", "high", "n"),
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


# The numbers


def test_json_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    result = parsed(capsys, "--out", "run")
    assert set(result) >= TOP
    assert (result["model"], result["task"], result["n_layers"]) == (MODEL, "gsm8k", LAYERS)
    assert (result["n_examples"], result["n_tokens"]) == (2, 16)
    for row in result["rows"]:
        assert set(row) >= ROW
        assert 0 <= row["low"] <= row["match_rate"] <= row["high"] <= 1
    cells = [(row["layer"], row["k"], row["bucket"]) for row in result["rows"]]
    assert len(set(cells)) == len(cells) == LAYERS * 3 * 9
    assert {bucket for *_, bucket in cells} == {*(f"{i}" for i in range(1, 9)), "total"}


def test_every_rate_is_the_one_counted_by_hand_from_the_stored_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = parsed(
        *(capsys, "--out", "run", "--task", "gsm8k", "--task", "squad", "--bucket", "4"),
        *("--target", "greedy", "--target", "top-k", "-k", "1,2,7"),
    )
    stored = samples("run")
    assert len(stored) == 2 * 2 * 2
    assert len(result["rows"]) == 2 * 2 * LAYERS * 3 * 3
    for row in result["rows"]:
        first, last = (1, 8) if row["bucket"] == "total" else map(int, row["bucket"].split("-"))
        hits = [
            rank < row["k"]
            for sample in stored
            if (sample["task"], sample["target"]) == (row["task"], row["target"])
            for rank in sample["ranks"][str(row["layer"])][first - 1 : last]
        ]
        assert row["n"] == len(hits) == 2 * (last - first + 1)
        assert row["match_rate"] == pytest.approx(sum(hits) / len(hits))
        assert row["head"] == "N"


def test_the_last_layer_always_agrees_with_a_greedy_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = parsed(capsys, "--out", "run", "-k", "1")["rows"]
    assert {row["match_rate"] for row in rows if row["layer"] == LAYERS} == {1.0}
    assert any(row["match_rate"] < 1 for row in rows if row["layer"] < LAYERS)


def test_what_drawn_targets_draw_from_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "greedy", "--target", "top-k", "--top-k", "50", "--temperature", "2"]
    found = parsed(capsys, *words, "--out", "run")
    assert [target["kind"] for target in found["targets"]] == ["greedy", "top-k"]
    assert (found["targets"][1]["top_k"], found["targets"][1]["temperature"]) == (50, 2.0)
    assert run(["report", "run", "--format", "markdown"]) == 0
    assert "Drawn: top-k from 50 tokens at temperature 2." in capsys.readouterr().out
    assert "targets" not in parsed(capsys, "--out", "plain")


def test_several_tasks_targets_layers_and_ks_come_from_one_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = parsed(
        *(capsys, "--out", "run", "--task", "squad", "--task", "gsm8k", "--layers", "1,3"),
        *("-k", "5,1,5", "--target", "greedy", "--target", "top-k", "--target", "top-p"),
    )
    assert result["task"] == "squad,gsm8k"
    totals = {
        (row["task"], row["target"], row["layer"], row["k"])
        for row in result["rows"]
        if row["bucket"] == "total"
    }
    assert totals == {
        (task, target, layer, k)
        for task in ("squad", "gsm8k")
        for target in ("greedy", "top-k", "top-p")
        for layer in (1, 3)
        for k in (1, 5)
    }
    assert result["n_examples"] == 4
    assert result["n_tokens"] == 4 * 3 * 8
    assert all(set(sample["ranks"]) == {"1", "3"} for sample in samples("run"))


@pytest.mark.parametrize(
    ("text", "layers"),
    [("all", {1, 2, 3}), ("2", {2}), ("3,1", {1, 3}), ("2-3", {2, 3}), ("1,2-3", {1, 2, 3})],
)
def test_layers_are_chosen_by_number_list_and_range(
    capsys: pytest.CaptureFixture[str], text: str, layers: set[int]
) -> None:
    rows = parsed(capsys, "--out", "run", "--layers", text)["rows"]
    assert {row["layer"] for row in rows} == layers


def buckets(result: Any) -> list[str]:
    return list(dict.fromkeys(row["bucket"] for row in result["rows"]))


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        (16, [], ["1-4", "5-8", "9-12", "13-16"]),  # the task's own length: the task's bucket
        (12, [], ["1-2", "3-4", "5-6", "7-8", "9-10", "11-12"]),  # at most eight equal ones
        (11, [], ["1-11"]),
        (1, [], ["1"]),
        (12, ["--bucket", "6"], ["1-6", "7-12"]),
        (16, ["--bucket", "16"], ["1-16"]),
    ],
)
def test_buckets_are_the_tasks_or_at_most_eight_equal_ones_or_those_asked_for(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    tokens: int,
    options: list[str],
    expected: list[str],
) -> None:
    task = task_file(tmp_path, tokens=16, bucket=4)
    data = questions(tmp_path / "asked.jsonl", [1, 2])
    result = parsed(
        capsys, "--task", task, "--data", data, "--max-new-tokens", tokens, "--out", "run", *options
    )
    assert buckets(result) == [*expected, "total"]


# What is stored


def test_sample_lines_hold_ids_verdict_and_a_rank_per_layer_and_position(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed(capsys, "--out", "run")
    lines = (Path("run") / "samples.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 2
    for line in map(json.loads, lines):
        assert {"example_id", "method", "prompt_ids", "output_ids", "verdict", "ranks"} <= set(line)
        assert line["method"] == "probe"
        assert line["verdict"] == "identical"
        assert len(line["output_ids"]) == 8
        assert set(line["ranks"]) == {"1", "2", "3"}
        for ranks in line["ranks"].values():
            assert len(ranks) == 8
            assert all(isinstance(rank, int) and 0 <= rank < 300 for rank in ranks)
    header = json.loads((Path("run") / "run.json").read_text("utf-8"))
    assert header["schema_version"] == 1
    assert header["config"]["layers"] == [1, 2, 3]
    assert header["model"]["synthetic"] is True
    assert re.fullmatch("[0-9a-f]{16}", header["model"]["weight_hash"])


def test_sampled_outputs_are_no_claim_of_identity(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--out", "run", "--target", "top-p")
    assert [sample["verdict"] for sample in samples("run")] == [None, None]


def test_a_finished_run_prints_the_same_when_it_is_resumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = parsed(capsys, "--out", "run")
    before = (Path("run") / "samples.jsonl").read_bytes()
    assert parsed(capsys, "--out", "run", "--resume") == first
    assert (Path("run") / "samples.jsonl").read_bytes() == before


def test_a_resumed_run_is_counted_as_it_is_asked_for_now(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parsed(capsys, "--out", "run")
    rows = parsed(capsys, "--out", "run", "-k", "2", "--bucket", "4", "--resume")["rows"]
    assert {(row["k"], row["bucket"]) for row in rows} == {(2, "1-4"), (2, "5-8"), (2, "total")}


def test_without_out_the_run_lies_in_results_and_stderr_says_where(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["probe", *SMALL]) == 0
    said = capsys.readouterr().err
    folder = said.removeprefix("run: ").strip()
    assert re.fullmatch(r"results/probe-gsm8k-synthetic_[\w=]+-\d{8}-\d{6}", folder)
    assert len(samples(folder)) == 2


def test_the_same_seed_draws_the_same_and_another_seed_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = {}
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        printed(capsys, "--out", folder, "--target", "top-p", "--seed", seed)
        drawn[folder] = [sample["output_ids"] for sample in samples(folder)]
    assert drawn["a"] == drawn["b"]
    assert drawn["a"] != drawn["c"]


# Pictures


def test_show_example_draws_the_grid_and_writes_it_as_a_picture(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "--out", "run", "--show-example", "1")
    grid = out[out.index("gsm8k 1") :].splitlines()
    assert [line.split()[0] for line in grid[2:6]] == ["token", "1", "2", "3"]
    assert "rank 0 (match)" in out
    assert (Path("run") / "example-1.png").read_bytes().startswith(PNG)
    shown = [sample["example_id"] for sample in samples("run") if "predictions" in sample]
    assert shown == ["1"]


def test_the_grid_stays_out_of_the_way_of_other_formats(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["probe", *SMALL, "--out", "run", "--show-example", "0", "--format", "json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "rank 0 (match)" in captured.err


@pytest.mark.parametrize(("suffix", "magic"), [("png", PNG), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_plot_writes_a_picture_in_the_format_of_its_name(
    capsys: pytest.CaptureFixture[str], suffix: str, magic: bytes
) -> None:
    printed(capsys, "--out", "run", "--plot", f"curves.{suffix}")
    assert Path(f"curves.{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize("option", ["--plot", "--heatmap"])
@pytest.mark.parametrize("plot", ["curves.xyz", "taken/curves.png"])
def test_a_plot_that_cannot_be_written_is_refused_before_the_work(
    capsys: pytest.CaptureFixture[str], option: str, plot: str
) -> None:
    Path("taken").write_text("a file")
    assert run(["probe", *SMALL, "--out", "run", option, plot]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert plot in captured.err
    assert not Path("run").exists()


# Formats


def test_notices_go_to_stderr_and_results_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["probe", *SMALL, "--out", "run", "--plot", "curves.png", "--format", "json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.splitlines() == ["picture: curves.png", "run: run"]


def test_csv_has_one_row_per_rate_in_full_precision(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--out", "run", "--task", "gsm8k", "--task", "squad", "--limit", 3)
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *options, "--format", "csv"))))
    truth = parsed(capsys, *options, "--resume")["rows"]
    assert len(rows) == len(truth)
    for row, expected in zip(rows, truth, strict=True):
        assert row == {name: str(value) for name, value in expected.items()}


def test_markdown_is_tables_with_as_many_cells_in_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "--out", "run", "--format", "markdown")
    blocks = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 3
    for header, rule, *body in blocks:
        assert re.fullmatch(r"\|( -{3}:? \|)+", rule)
        assert {line.count("|") for line in (header, rule, *body)} == {rule.count("|")}
        assert body
    assert "\x1b" not in out


def test_latex_is_balanced_tables_with_as_many_cells_in_each_row(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "--out", "run", "--format", "latex")
    for name in ("table", "tabular"):
        assert out.count(f"\\begin{{{name}}}") == out.count(f"\\end{{{name}}}") == 3
    for spec, body in re.findall(r"\\begin\{tabular\}\{([lr]+)\}(.*?)\\end", out, re.DOTALL):
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1
        assert {line.count(" & ") + 1 for line in rows} == {len(spec)}
    assert not re.search(r"(?<!\\)[%#_]", out)


@pytest.mark.usefixtures("narrow")
def test_the_table_for_people_says_that_the_weights_are_random(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "--out", "run")
    assert "random weights" in " ".join(out.split())
    assert "Share of positions whose final token is among the layer's top k" in out
    assert max(map(len, out.splitlines())) <= 80


def test_cut_prompts_are_counted_though_tasks_share_their_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": n, "question": "why " * 50} for n in range(2)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--model", f"{MODEL},context=64", "--data", "rows.jsonl", "--out", "run"]
    for name in ("one", "other"):
        told = {"name": name, "max_new_tokens": 4, "bucket": 2, "context_field": "question"}
        (tmp_path / f"{name}.yaml").write_text(task_text("Q: {{ question }} A:", **told))
        words += ["--task", f"{name}.yaml"]
    assert run(["probe", *words]) == 0
    lost = sum(sample["cut_tokens"] for sample in samples("run"))
    notes = " ".join(capsys.readouterr().err.split())
    assert f"4 of 4 prompts were too long and lost {lost} tokens" in notes


def test_without_a_model_the_stand_in_is_named_in_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ppdbench.files.resources.reference_is_there", lambda: False)
    small = ["--limit", "1", "--max-new-tokens", "2", "--out", "run", "--format", "json"]
    assert run(["probe", *small]) == 0
    captured = capsys.readouterr()
    first = captured.err.splitlines()[0]
    assert first.startswith("note: no --model given")
    assert json.loads(captured.out)["model"] in first


def test_a_folder_without_the_tasks_split_says_which_file_was_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = task_file(tmp_path)
    (tmp_path / "data").mkdir()
    questions(tmp_path / "data" / "validation.jsonl", [1, 2])
    questions(tmp_path / "data" / "train.jsonl", [3])
    words = ["--model", MODEL, "--task", str(task), "--max-new-tokens", "4"]
    assert run(["probe", *words, "--data", "data", "--out", "run"]) == 0
    assert "note: asked: validation.jsonl, as there is no split test" in capsys.readouterr().err
    assert [sample["example_id"] for sample in samples("run")] == ["q1", "q2"]
    assert run(["probe", *words, "--data", "data", "--split", "validation"]) == 0
    assert "there is no split" not in capsys.readouterr().err
    (tmp_path / "data" / "validation.jsonl").unlink()
    assert run(["probe", *words, "--data", "data"]) == 0
    assert "note: asked: train.jsonl, as there is no split test" in capsys.readouterr().err


def test_show_prints_prompt_and_output_of_each_task(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--task", "gsm8k", "--task", "squad", "--show", "1")
    assert out.count("  prompt, ") == 2
    assert out.count("  output, 8 tokens") == 2


@pytest.mark.parametrize("batch", ["1", "2"])
def test_ranks_that_the_stock_model_rules_out_end_the_run_before_anything_is_stored(
    batch: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ppdbench.engine.adapters import Adapter

    real = Adapter.cap

    def one_too_high(self: Adapter, logits: Any) -> Any:
        logits = real(self, logits).clone()
        logits[..., 7] += 100.0
        return logits

    monkeypatch.setattr(Adapter, "cap", one_too_high)
    alone = ["--no-family-check"]  # which would refuse the model at once
    assert run(["probe", *SMALL, *alone, "--batch-size", batch, "--out", "run"]) == 1
    said = capsys.readouterr().err
    assert "the probe is not the model's" in said
    assert not Path("run/samples.jsonl").read_bytes()
