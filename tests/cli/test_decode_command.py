"""`ppdbench decode` as it is typed."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.session import Session
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import DataError
from ppdbench.methods import METHODS
from ppdbench.methods.base import Method
from ppdbench.runs.store import read_run
from tests.cli.probed import MODEL, SMALL, samples, task_text
from tests.families import greedy_truth, stock_model

KEYS = {
    *("method", "options", "task", "n_examples", "n_tokens", "identical", "tie", "mismatch"),
    *("prefill_ms", "ms_per_token", "tokens_per_s", "committed_per_step"),
    *("accepted_per_proposed", "speedup", "speedup_low", "speedup_high", "speedup_withheld"),
    *("baseline_tokens_per_s", "peak_memory_bytes", "quality"),
}


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["decode", *SMALL, *map(str, arguments)]) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--format", "json"))


def model_folder(path: Path, eos: int | list[int] = 299) -> Path:
    model = stock_model("llama", vocab_size=300, max_position_embeddings=1024)
    model.generation_config.eos_token_id = eos
    model.save_pretrained(path)
    tokenizer(300, 1024).save_pretrained(path)
    return path


def asked(stop: list[str]) -> str:
    told = {"reference": "answer", "metrics": ["rouge1"], "stop": stop}
    return task_text("{{ question }}", **told)


def task_file(path: Path, stop: list[str]) -> Path:
    path.write_text(asked(stop))
    rows = [{"id": n, "question": f"What is {n} + {n}?", "answer": str(n + n)} for n in (1, 2)]
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# The numbers


def test_json_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    result = parsed(capsys, "--out", "run", "--task", "squad")
    assert set(result) >= KEYS
    assert (result["method"], result["options"], result["task"]) == ("greedy", {}, "squad")
    assert (result["identical"], result["tie"], result["mismatch"]) == (2, 0, 0)


def test_several_tasks_give_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    result = parsed(capsys, "--out", "run", "--task", "squad", "--task", "gsm8k")
    assert [entry["task"] for entry in result] == ["squad", "gsm8k"]
    assert all(set(entry) >= KEYS for entry in result)


@pytest.mark.usefixtures("undoubted")
def test_every_figure_is_the_one_made_by_hand_from_the_sample_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = parsed(capsys, "--out", "run", "--limit", "5")
    stored = samples("run")
    steps_ms = math.fsum(ms for s in stored for ms in s["step_ms"])
    baseline_ms = math.fsum(ms for s in stored for ms in s["baseline_step_ms"])
    n_tokens = sum(len(s["output_ids"]) for s in stored)
    after_first = n_tokens - len(stored)
    assert (result["n_examples"], result["n_tokens"]) == (5, n_tokens) == (5, 40)
    assert result["prefill_ms"] == pytest.approx(math.fsum(s["prefill_ms"] for s in stored) / 5)
    assert result["ms_per_token"] == pytest.approx(steps_ms / after_first)
    assert result["tokens_per_s"] == pytest.approx(1000 * after_first / steps_ms)
    assert result["baseline_tokens_per_s"] == pytest.approx(1000 * after_first / baseline_ms)
    assert result["committed_per_step"] == 1.0
    assert result["accepted_per_proposed"] is None
    assert result["peak_memory_bytes"] == max(s["peak_memory_bytes"] for s in stored) > 0
    assert result["speedup_low"] <= result["speedup"] <= result["speedup_high"]


def test_sample_lines_hold_one_time_and_one_count_per_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printed(capsys, "--out", "run")
    for line in map(json.loads, (Path("run") / "samples.jsonl").read_text("utf-8").splitlines()):
        assert line["method"] == "greedy"
        assert line["verdict"] == "identical"
        assert line["accepted"] == line["proposed"] == [0] * 7
        assert len(line["step_ms"]) == len(line["baseline_step_ms"]) == 7
        assert len(line["output_ids"]) == 8
        assert line["finish"] == "length"


def test_one_token_has_no_steps_and_no_figure_made_of_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = parsed(capsys, "--out", "run", "--max-new-tokens", "1")
    assert result["n_tokens"] == 2
    made_of_steps = ("ms_per_token", "tokens_per_s", "committed_per_step", "speedup")
    assert {result[name] for name in made_of_steps} == {None}


def test_greedy_gives_the_tokens_of_generate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "--model", model_folder(tmp_path / "model"), "--out", "run")
    model = stock_model("llama", vocab_size=300, max_position_embeddings=1024)
    model.generation_config.eos_token_id = 299
    for sample in samples("run"):
        assert sample["output_ids"] == greedy_truth(model, sample["prompt_ids"], 8)


# Identity


@pytest.fixture
def flipping() -> Iterator[str]:
    """A method that claims to be exact and changes the fourth token of each output."""

    @dataclass(frozen=True, kw_only=True)
    class Flipping(Decoder):
        by: int = 1

        def prepare(self, setup: Setup) -> Decoder:
            return self

        def decode(self, session: Session, request: Request) -> Decoded:
            decoded = autoregressive(session, request)
            ids = list(decoded.output_ids)
            ids[3] = (ids[3] + self.by) % 300
            return dataclasses.replace(decoded, output_ids=tuple(ids))

    METHODS.add("flipping", Method("flipping", Flipping, True, False, "One token is wrong."))
    yield "flipping"
    del METHODS._items["flipping"]


def test_a_mismatch_exits_1_with_no_speedup_and_says_so(
    flipping: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", *SMALL, "--method", flipping, "--out", "run", "--format", "json"]) == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["options"] == {"by": 1}
    assert (result["identical"], result["mismatch"]) == (0, 2)
    assert result["speedup"] is result["speedup_low"] is result["speedup_high"] is None
    assert "2 outputs differ from greedy" in captured.err
    for sample in samples("run"):
        assert sample["verdict"] == "mismatch"
        assert sample["first_difference"] == 3
        differing = [
            a != b for a, b in zip(sample["output_ids"], sample["baseline_ids"], strict=True)
        ]
        assert differing == [False] * 3 + [True] + [False] * 4


def test_the_table_of_a_mismatch_shows_no_speedup(
    flipping: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["decode", *SMALL, "--method", flipping, "--out", "run"]) == 1
    out = capsys.readouterr().out
    against = out[out.index("Against greedy") :].splitlines()
    row = next(line.split() for line in against if line.split()[:1] == ["gsm8k"])
    assert row == ["gsm8k", "2", "MISMATCH", "-", "-"]


def test_a_stored_mismatch_exits_1_again_when_it_is_resumed(
    flipping: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["decode", *SMALL, "--method", flipping, "--out", "run"]
    assert run(arguments) == 1
    assert run([*arguments, "--resume"]) == 1
    assert "2 outputs differ" in capsys.readouterr().err


def test_options_of_a_method_are_read_by_their_type_and_recorded(
    flipping: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--method", flipping, "--set", "by=300", "--out", "run", "--format", "json"]
    assert run(["decode", *SMALL, *arguments]) == 0  # changed by 300 of 300: not changed
    result = json.loads(capsys.readouterr().out)
    assert result["identical"] == 2
    assert result["options"] == {"by": 300}


# Ends of outputs


def test_eos_ends_an_output_and_is_part_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "--model", model_folder(tmp_path / "free"), "--out", "free-run")
    outputs = [sample["output_ids"] for sample in samples("free-run")]
    eos = outputs[0][2]
    ending = model_folder(tmp_path / "ending", eos)
    result = parsed(capsys, "--model", ending, "--out", "ended")
    expected = [o[: o.index(eos) + 1] if eos in o else o for o in outputs]
    assert [sample["output_ids"] for sample in samples("ended")] == expected
    assert samples("ended")[0]["finish"] == "eos"
    assert result["n_tokens"] == sum(map(len, expected)) < 16
    assert result["identical"] == 2


def test_a_stop_string_ends_an_output_and_is_not_part_of_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tokenizer(300, 1024)
    free = task_file(tmp_path / "free.yaml", [])
    data = free.with_suffix(".jsonl")
    more = ["--data", data, "--max-new-tokens", "40"]
    printed(capsys, "--task", free, *more, "--out", "free-run")
    output = samples("free-run")[0]["output_ids"]
    # Ids behind the bytes read as ⟨271⟩: several characters, in one token.
    at = next(i for i, token in enumerate(output) if i and token >= 3 + 256)
    stop = words.decode([output[at]])
    assert len(stop) == 5

    stopping = task_file(tmp_path / "stopping.yaml", ["never said", stop])
    printed(capsys, "--task", stopping, *more, "--out", "stopped")
    stopped = samples("stopped")[0]
    assert stopped["output_ids"] == output[: at + 1]
    assert stopped["finish"] == "stop"
    assert stopped["text"] == words.decode(output[:at])


# Quality


def test_synthetic_models_get_no_quality(capsys: pytest.CaptureFixture[str]) -> None:
    result = parsed(capsys, "--out", "run", "--task", "squad")
    assert result["synthetic"] is True
    assert result["quality"] is None
    out = printed(capsys, "--out", "run", "--task", "squad", "--resume")
    assert "Quality" not in out
    assert "random weights" in " ".join(out.split())


def test_models_from_a_folder_get_the_tasks_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model")
    options = ["--model", model, "--out", "run", "--task", "squad"]
    result = parsed(capsys, *options)
    assert set(result["quality"]) == {"squad_em", "squad_f1"}
    assert result["synthetic"] is False
    assert "squad_f1" in printed(capsys, *options, "--resume")


def test_samples_keep_what_they_add_to_each_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", model_folder(tmp_path / "model"), "--out", "run", "--task", "squad"]
    result = parsed(capsys, *options)
    kept = [sample["scores"] for sample in samples("run")]
    for metric in ("squad_em", "squad_f1"):
        assert result["quality"][metric] == sum(s[metric] for s in kept) / len(kept)


def test_a_model_that_answers_right_scores_full_marks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_folder(tmp_path / "model")
    task = task_file(tmp_path / "asked.yaml", [])
    options = ["--model", model, "--task", task, "--max-new-tokens", "32"]
    result = parsed(capsys, *options, "--data", task.with_suffix(".jsonl"), "--out", "run")
    assert result["quality"]["rouge1"] < 1
    rows = [
        {"id": s["example_id"], "question": q, "answer": s["text"]}
        for s, q in zip(samples("run"), ("What is 1 + 1?", "What is 2 + 2?"), strict=True)
    ]
    told = tmp_path / "told.jsonl"
    told.write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = parsed(capsys, *options, "--data", told, "--out", "told")
    assert again["quality"]["rouge1"] == pytest.approx(1.0)


def test_a_reference_without_an_answer_is_named_and_its_example_has_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("1", "#### 4"), ("2", "so it is four"), ("3", "#### 5")]
    data = tmp_path / "gsm8k.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"{n}?", "answer": answer}) + "\n" for n, answer in rows)
    )
    asked = ["decode", "--model", model_folder(tmp_path / "model"), "--method", "greedy"]
    asked += ["--task", "gsm8k", "--data", str(data), "--max-new-tokens", "4", "--out", "run"]
    assert run([*asked, "--format", "table"]) == 0
    said = capsys.readouterr()
    assert "gsm8k: no score for 1 example, whose reference holds no answer" in said.err
    assert "note: gsm8k: no score for 1 example" in said.err
    assert "gsm8k: 1 outputs had no score" in " ".join(said.out.split())
    assert [s["scores"]["gsm8k_accuracy"] is None for s in samples("run")] == [False, True, False]
    assert json.loads(Path("run/run.json").read_text())["data"]["gsm8k"]["unscored"] == ["1"]
    assert run([*asked, "--resume"]) == 0


@pytest.mark.parametrize("command", [["decode"], ["sweep", "--grid", "window=2,4"]])
def test_a_reference_without_an_answer_is_told_before_anything_is_decoded(
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise DataError("decoding begins")

    monkeypatch.setattr("ppdbench.runs.running.load", refused)
    data = tmp_path / "gsm8k.jsonl"
    rows = [{"question": "1?", "answer": "#### 4"}, {"question": "2?", "answer": "four"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = [*command, "--method", "jacobi", "--model", model_folder(tmp_path / "model")]
    assert run([*asked, "--task", "gsm8k", "--data", str(data), "--out", "run"]) == 2
    assert [line for line in capsys.readouterr().err.splitlines() if "gsm8k" in line] == [
        "warning: gsm8k: no score for 1 example, whose reference holds no answer to compare with: "
        "id 1"
    ]


# Formats


@pytest.mark.parametrize("form", ["csv", "markdown", "latex", "table"])
def test_every_format_names_task_and_verdicts(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert run(["decode", *SMALL, "--out", "run", "--format", form]) == 0
    captured = capsys.readouterr()
    assert captured.err == "run: run\n"
    assert "gsm8k" in captured.out
    assert "identical" in captured.out
    assert "\x1b" not in captured.out


def test_csv_has_one_row_per_task_with_the_figures_of_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ("--out", "run", "--task", "squad", "--task", "gsm8k", "--profile")
    rows = list(csv.DictReader(io.StringIO(printed(capsys, *options, "--format", "csv"))))
    assert run(["report", "run", "--format", "json"]) == 0
    truth = json.loads(capsys.readouterr().out)
    assert [row["task"] for row in rows] == ["squad", "gsm8k"]
    for row, expected in zip(rows, truth, strict=True):
        assert set(row) >= KEYS - {"quality"}
        for name in ("n_tokens", "identical", "tokens_per_s", "peak_memory_bytes"):
            assert float(row[name]) == expected[name]
        assert expected["profile"]
        assert expected["memory"]
        for name in ("profile", "memory", "quality"):
            for part, figure in (expected[name] or {}).items():
                held = row[f"{name}_{part}"]
                assert (float(held) if held else None) == figure


def test_threads_are_set_and_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(2)
    try:
        printed(capsys, "--out", "run", "--threads", "1")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(1)
    assert read_run("run").header.config.threads == 1


def test_options_come_with_the_method_as_in_bench(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "layerskip:exit_layer=2", "--set", "draft_length=3"]
    printed(capsys, *words, "--out", "run")
    options = read_run("run").header.methods["layerskip"].options
    assert (options["exit_layer"], options["draft_length"]) == (2, 3)


def test_an_option_with_the_method_and_by_set_is_given_twice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--method", "layerskip:exit_layer=2", "--set", "exit_layer=1"]
    assert run(["decode", *SMALL, *words]) == 2
    assert "exit_layer of a method is given twice" in capsys.readouterr().err


def test_show_prints_prompt_and_output_and_leaves_other_forms_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = printed(capsys, "--method", "jacobi", "--show", "1")
    assert out.count("prompt, ") == 1
    assert "output of jacobi (identical), " in out
    assert run(["decode", *SMALL, "--show", "2", "--format", "json"]) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err.count("prompt, ") == 2


def test_where_examples_come_from_is_said_if_nobody_chose(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few = ["--limit", "1", "--max-new-tokens", "2", "--offline"]
    assert run(["decode", *few]) == 0
    assert "as with --data builtin" in capsys.readouterr().err
    assert run(["decode", *few, "--data", "builtin"]) == 0
    assert "--data" not in capsys.readouterr().err


def test_a_resumed_run_prints_what_it_printed_and_what_its_report_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number, speed in enumerate((1e10, 3e10)):
        monkeypatch.setattr("ppdbench.bench.runner.measure_bandwidth", lambda *_, it=speed: it)
        found.append(parsed(capsys, "--profile", "--out", "run", *["--resume"] * number))
    assert found[0]["profile"]["bandwidth_bytes_per_s"] == 1e10
    assert run(["report", "run", "--format", "json"]) == 0
    assert found[0] == found[1] == json.loads(capsys.readouterr().out)


def test_resuming_may_raise_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    whole = ["decode", *SMALL, "--limit", "4", "--out", "whole"]
    assert run(whole) == 0
    assert run(["decode", *SMALL, "--out", "run"]) == 0  # the first two
    first = list(samples("run"))
    assert run(["decode", *SMALL, "--limit", "4", "--out", "run", "--resume"]) == 0
    assert list(samples("run"))[:2] == first
    ours, truth = ([s["output_ids"] for s in samples(folder)] for folder in ("run", "whole"))
    assert ours == truth
    header = read_run("run").header
    assert header.data == read_run("whole").header.data
    assert header.config.limit == 4
    capsys.readouterr()
    assert run(["decode", *SMALL, "--out", "run", "--resume"]) == 2
    assert "config.limit (4 there, 2 here)" in capsys.readouterr().err


def test_a_limit_may_be_raised_over_examples_that_cannot_be_scored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path("gsm8k.jsonl")

    def answered(*answers: str) -> None:
        lines = [{"question": f"{n}?", "answer": answer} for n, answer in enumerate(answers)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    answered("#### 4", "four", "#### 5", "five")
    words = ["decode", "--model", MODEL, "--task", "gsm8k", "--data", str(path), "--out", "run"]
    words += ["--max-new-tokens", "4"]
    assert run([*words, "--limit", "1"]) == 0
    assert run([*words, "--limit", "3", "--resume"]) == 0
    assert read_run("run").header.data["gsm8k"].unscored == ["1"]
    answered("four", "#### 4", "#### 5", "five")
    capsys.readouterr()
    assert run([*words, "--limit", "4", "--resume"]) == 2
    said = capsys.readouterr().err
    assert "cannot resume: data.gsm8k.unscored (" in said
    assert "sha256" not in said


def test_a_limit_is_raised_in_runs_of_one_task_alone(capsys: pytest.CaptureFixture[str]) -> None:
    two = [*SMALL, "--task", "squad", "--task", "gsm8k", "--out", "run"]
    assert run(["decode", *two]) == 0
    assert run(["decode", *two, "--limit", "4", "--resume"]) == 2
    assert "a larger --limit goes on only in runs of one task" in capsys.readouterr().err


def test_what_differs_between_methods_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "--method", "greedy", "--method", "prompt-lookup", "--out", "run"]
    assert run([*words, *SMALL]) == 0
    capsys.readouterr()
    for others, said in (
        (["greedy"], "method prompt-lookup (only there) differs"),
        (["greedy", "jacobi"], "prompt-lookup (only there), method jacobi (only here) differ"),
        (["greedy", "prompt-lookup:max_draft=2"], "methods.prompt-lookup.options.max_draft ("),
    ):
        chosen = [word for name in others for word in ("--method", name)]
        assert run(["bench", *chosen, *SMALL, "--out", "run", "--resume"]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert "config.methods" not in told


def test_a_raised_limit_over_other_examples_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("a.jsonl").write_text(rows("one", "two"))
    (task := Path("task.yaml")).write_text(asked([]))
    words = ["--model", MODEL, "--task", str(task), "--data", "a.jsonl", "--out", "run"]
    assert run(["decode", *words, "--limit", "1"]) == 0
    Path("a.jsonl").write_text(rows("other", "two"))
    capsys.readouterr()
    assert run(["decode", *words, "--limit", "2", "--resume"]) == 2
    assert "data.asked.sha256" in capsys.readouterr().err


def rows(*questions: str) -> str:
    return "".join(
        json.dumps({"id": str(i), "question": q, "answer": "x"}) + "\n"
        for i, q in enumerate(questions)
    )
