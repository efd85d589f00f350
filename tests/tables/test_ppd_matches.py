"""Tables 2, 5 to 8 and the figures of the first paper, from probes whose ranks are known."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.tables.made import probed, squad, write_run
from tests.tables.stored import with_header


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where the project's own runs lie."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["table", *words, "--format", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_pooled_rates_stand_beside_those_of_the_layer_as_deep(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {
        (r["task"], r["head"], r["k"], r["layer paper"]): r
        for r in rows(capsys, "ppd/2", squad("a"))
    }
    assert len(found) == 90
    half = found["squad", "N", 1, 20]
    assert (half["layer"], half["match rate"], half["n"]) == (4, 0.25, 32)
    assert half["match rate diff"] == pytest.approx(0.25 - 0.389)
    assert half["low"] < 0.25 < half["high"]
    assert found["squad", "N", 3, 20]["match rate"] == 1
    assert found["squad", "Y", 1, 20]["match rate"] == 1
    assert found["squad", "N", 1, 10]["layer"] == 2
    # Nothing of ours lies where 37 of 40 does, and no other task was probed.
    assert found["squad", "N", 1, 37]["layer"] is None
    assert found["wmt_en_fr", "N", 1, 20]["match rate"] is None


def test_buckets_of_positions_stand_beside_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        r["bucket"]: r
        for r in rows(capsys, "ppd/6", squad("a"))
        if (r["head"], r["k"], r["layer paper"]) == ("N", 1, 20)
    }
    assert list(found) == [f"{n}-{n + 1}" for n in range(1, 16, 2)] + ["total"]
    assert [found[b]["match rate"] for b in ("1-2", "7-8", "9-10", "total")] == [0.5, 0.5, 0, 0.25]
    assert found["1-2"]["match rate paper"] == 0.1956
    assert found["1-2"]["n"] == 4


def test_tables_of_other_tasks_say_what_they_take(capsys: pytest.CaptureFixture[str]) -> None:
    folder = squad("a")
    assert run(["table", "ppd/7", folder]) == 2
    said = capsys.readouterr().err
    assert "none of these runs is on wmt_en_fr; it takes ppdbench table ppd/7 --run" in said


@pytest.mark.usefixtures("narrow")
def test_people_read_ours_before_the_papers_within_eighty_columns(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = squad("a")
    for name in ("ppd/2", "ppd/6", "ppd/figures"):
        assert run(["table", name, folder]) == 0
        out = capsys.readouterr().out
        assert max(map(len, out.splitlines())) <= 80
        if name == "ppd/2":
            assert "4/8 (20/40)" in out
            assert "25.0 (38.9)" in out
            assert "- (88.0)" in out


def test_the_setting_of_both_stands_above(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["table", "ppd/6", squad("a"), "--format", "markdown"]) == 0
    paper, ours = capsys.readouterr().out.splitlines()[2:5:2]
    assert paper == (
        "Paper: Vicuna-13B, 40 layers; hardware: not stated; precision: not stated; "
        "examples: 10570; tokens: 16."
    )
    assert ours == (
        "Here: m, 8 layers; hardware: a processor; precision: float32; examples: squad 2; "
        "tokens: squad 16."
    )


def test_csv_and_latex_hold_what_json_holds(capsys: pytest.CaptureFixture[str]) -> None:
    folder = squad("a")
    found = rows(capsys, "ppd/2", folder)
    assert run(["table", "ppd/2", folder, "--format", "csv"]) == 0
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [list(row) for row in read] == [list(row) for row in found]
    assert float(read[1]["match rate"] or "nan") == found[1]["match rate"]
    assert run(["table", "ppd/2", folder, "--format", "latex"]) == 0
    out = capsys.readouterr().out
    assert out.count("\\toprule") == 3
    assert "Here: m, 8 layers" in out


def test_drawn_tokens_are_compared_by_how_they_were_drawn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    samples = [
        probed("squad", 0, {4: [2, 2, 3, 3]}),
        probed("squad", 0, {4: [2, 3, 3, 3]}, target="top-k"),
    ]
    folder = str(write_run(Path("a"), "probe", samples))
    found = {(r["decoding"], r["task"]): r for r in rows(capsys, "ppd/5", folder)}
    assert len(found) == 6
    assert found["greedy", "squad"]["here"] == 0.5
    assert found["top-k", "squad"]["here"] == 0.25
    assert found["top-k", "squad"]["diff"] == pytest.approx(0.25 - 0.4378)
    assert found["top-p", "squad"]["here"] is None


@pytest.mark.parametrize("changed", [{"top_k": 50}, {"temperature": 2.0}])
def test_tokens_that_were_drawn_otherwise_are_refused(
    changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    target = {"kind": "top-k", "top_k": 3, "top_p": 0.95, "temperature": 1.0}
    samples = [probed("squad", 0, {4: [2, 3, 3, 3]}, target="top-k")]
    folder = write_run(Path("a"), "probe", samples)
    for targets, fits in (([target], True), ([{**target, **changed}], False)):
        header = json.loads((folder / "run.json").read_text("utf-8"))
        with_header(folder, config={**header["config"], "targets": targets})
        assert run(["table", "ppd/5", str(folder)]) == (0 if fits else 2)
        told = capsys.readouterr()
        assert (
            "from 3 tokens at temperature 1" in " ".join((told.out or told.err).split())
        ) is True
        assert ("and table ppd/5 top-k from 3 tokens" in told.err) == (not fits)


def test_figures_place_ours_by_theory_and_repeat_what_the_text_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = squad("a")
    found = {(r["task"], r["head"], r["k"]): r for r in rows(capsys, "ppd/figures", folder)}
    assert len(found) == 18
    own = found["squad", "N", 1]
    assert own["latency"] == pytest.approx(1 - 0.25 / 2)
    assert own["compute/token"] == pytest.approx((2 + 1 - 0.25) / 2)
    assert own["latency paper"] == pytest.approx(0.8055)
    assert run(["table", "ppd/figures", folder, "--plot", "f.svg"]) == 0
    out = capsys.readouterr().out
    assert "after 20/40 and 4/8 layers" in " ".join(out.split())
    assert "Figure 4" in Path("f.svg").read_text("utf-8")


# Bad input


def test_runs_of_two_models_are_not_one_table(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = squad("a"), squad("b", weight_hash="other")
    assert run(["table", "ppd/2", first, second]) == 2
    said = capsys.readouterr().err.strip()
    assert "a is of m (float32, abc), b of m (float32, other)" in said
    assert "\n" not in said


def test_one_task_in_two_runs_is_not_counted_twice(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["table", "ppd/2", squad("a"), squad("b")]) == 2
    assert "squad (greedy) is in a and in b; give one" in capsys.readouterr().err


def test_an_empty_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(Path("a"), "probe", []))
    assert run(["table", "ppd/2", folder]) == 2
    assert "a holds no finished sample; finish it with --resume" in capsys.readouterr().err


def test_a_run_of_another_kind_says_what_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(write_run(Path("a"), "drafts", [probed("squad", 0, {1: [0]})]))
    assert run(["table", "ppd/2", folder]) == 2
    assert "it takes ppdbench probe --task squad" in capsys.readouterr().err


# From what is stored


# What the package itself can tell


def test_our_prompts_are_the_papers_byte_for_byte(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "ppd/1")
    assert {r["task"]: r["identical"] for r in found} == {
        "squad": "yes",
        "wmt_en_fr": "yes",
        "cnn_dailymail": "yes",
    }
    assert all(r["template"] == r["template_paper"] for r in found)
    assert "{question}" in found[0]["template"]


def test_a_prompt_that_differs_is_shown_line_by_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.tasks.templates import Template

    render = Template.render
    monkeypatch.setattr(
        Template, "render", lambda self, values: render(self, values).replace("###", "##")
    )
    assert run(["table", "ppd/1"]) == 0
    out = capsys.readouterr().out
    assert "prompt of squad, NOT the same" in out
    assert "## Assistant:" in out
    assert "prompt of cnn_dailymail, NOT the same" in out


def test_training_of_heads_stands_beside_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    found = {r["hyperparameter"]: r for r in rows(capsys, "ppd/4")}
    assert found["learning_rate"]["paper"] == "2e-05"
    assert found["learning_rate"]["embedded model"] == "0.002"
    assert found["warmup_ratio"]["paper"] == found["warmup_ratio"]["embedded model"] == "0.04"
    assert float(found["epochs"]["embedded model"]) < 1


def test_markdown_joins_the_positions_that_a_terminal_parts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["table", "ppd/6", squad("a"), "--format", "markdown"]) == 0
    assert "| 13-14 | 15-16 | total |" in capsys.readouterr().out
