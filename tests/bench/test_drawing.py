"""Draws that verify a distribution: verdicts, controls, and draws that are stored."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppdbench.bench import drawing
from ppdbench.bench.drawing import Drawer, keeps_all
from ppdbench.bench.faithful import DrawnOutputs, Faithfulness
from ppdbench.cli.main import run
from ppdbench.decoding import loop
from ppdbench.decoding.verify import Outcome
from tests.bench.made import LAYERSKIP, WORDS


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = run([*WORDS, *words])
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {**content, "code": code}


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_exact_method_is_not_refused_and_its_controls_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = found(capsys, *LAYERSKIP, "--draws", "300", "--out", "run")
    assert content["faithful"] in ("faithful", "undecided")
    assert content["code"] == 0
    assert content["p_value"] >= 0.01
    assert content["total_variation"] <= content["total_variation_high"]
    assert 0 <= content["power_at_0_02"] <= 1
    controls = content["controls"]
    assert [control["name"] for control in controls] == [
        "accepts with probability 1",
        "forgets the residual",
    ]


def test_a_wrong_rule_is_unfaithful_with_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = loop.accept_sampled

    def likeliest(draft, logits, *rest):  # type: ignore[no-untyped-def]
        return Outcome(exact(draft, logits, *rest).path, int(logits[0].argmax()))

    monkeypatch.setattr(drawing, "accept_sampled", likeliest)
    content = found(capsys, *LAYERSKIP, "--draws", "200")
    assert (content["faithful"], content["code"]) == ("unfaithful", 1)


DEEP = ["--method", "layerskip:exit_layer=1,draft_length=6"]


def test_a_rule_that_goes_wrong_deep_in_a_draft_is_unfaithful_where_drafts_have_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, deep = loop.accept_sampled, 2

    def keeps_the_rest(draft, logits, *rest):  # type: ignore[no-untyped-def]
        found = exact(draft, logits, *rest)
        if len(found.path) < deep:
            return found
        return keeps_all(draft, logits, *rest)

    monkeypatch.setattr(drawing, "accept_sampled", keeps_the_rest)
    short = found(capsys, *DEEP, "--draws", "300", "--max-new-tokens", "4", "--out", "short")
    assert (short["verified_depth"], short["room"]) == (2, 2)
    assert short["faithful"] != "unfaithful"  # it has gone right as far as can be seen
    whole = found(capsys, *DEEP, "--draws", "600", "--out", "whole")
    assert (whole["verified_depth"], whole["room"]) == (6, 6)
    assert (whole["faithful"], whole["code"]) == ("unfaithful", 1)
    again = found(capsys, *DEEP, "--draws", "600", "--out", "whole", "--resume")
    assert again == whole


@pytest.mark.parametrize(("second", "verdict"), [(0.5, "undecided"), (0.002, "unfaithful")])
def test_where_chance_may_be_the_reason_new_draws_decide(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    second: float,
    verdict: str,
) -> None:
    given = iter([0.004, second])
    right = DrawnOutputs.judge

    def told(self: DrawnOutputs, seed: int = 0) -> Faithfulness:
        return replace(right(self, seed), p_value=next(given, 0.0))

    monkeypatch.setattr(DrawnOutputs, "judge", told)
    content = found(capsys, *LAYERSKIP, "--draws", "20", "--out", "run")
    assert content["faithful"] == verdict
    assert content["p_value"] == second
    assert content["before"] == {"p_value": 0.004, "draws": 20 * 3}  # tokens
    lots = [json.loads(line) for line in Path("run/draws.jsonl").read_text("utf-8").splitlines()]
    drawn: Counter[str] = Counter()
    for lot in lots[1:]:
        drawn[lot["method"]] += len(lot["outputs"])
    assert (drawn["layerskip"], drawn["layerskip again"]) == (20, 80)
    held = [lot["outputs"] for lot in lots[1:] if lot["method"].startswith("layerskip")]
    assert held[0][:5] != held[-1][:5]  # other numbers of other generators


def test_what_no_chance_explains_is_not_drawn_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = DrawnOutputs.judge
    monkeypatch.setattr(
        DrawnOutputs, "judge", lambda self, seed=0: replace(right(self, seed), p_value=1e-9)
    )
    content = found(capsys, *LAYERSKIP, "--draws", "20", "--out", "run")
    assert (content["faithful"], content["before"]) == ("unfaithful", None)
    assert "again" not in Path("run/draws.jsonl").read_text("utf-8")


def test_where_nobody_can_lend_drafts_nothing_is_decided(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one_layer = ["--model", "synthetic:layers=1,hidden=32,heads=2,vocab=300"]
    words = [*one_layer, "--method", "greedy", "--max-new-tokens", "3", "--draws", "20"]
    content = found(capsys, *words)
    drafts = [control["drafts"] for control in content["controls"]]
    assert (content["faithful"], content["code"]) == ("undecided", 0)
    assert drafts in ([], ["draft-verify"] * 2)  # which has no exit to choose


@pytest.mark.parametrize(
    ("shown", "whose"),
    [
        ("layerskip that", "layerskip"),
        ("drafts of layerskip that", "layerskip"),
        ("drafts of draft-verify that", "draft-verify"),
        ("nobody", "draft-verify"),
    ],
)
def test_others_lend_their_drafts_until_a_wrong_rule_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shown: str, whose: str
) -> None:
    right, asked = Drawer._judged, list[str]()

    def told(self: Drawer, label: str, *rest: Any) -> Faithfulness:
        asked.append(label)
        return replace(right(self, label, *rest), p_value=0.0 if shown in label else 0.5, power=1.0)

    monkeypatch.setattr(Drawer, "_judged", told)
    content = found(capsys, *LAYERSKIP, "--draws", "20")
    assert [control["drafts"] for control in content["controls"]] == [whose] * 2
    assert content["faithful"] == ("undecided" if shown == "nobody" else "faithful")
    assert any("draft-verify" in label for label in asked) == (whose == "draft-verify")


@pytest.mark.parametrize(
    "other", [["--set", "draft_length=2"], ["--dtype", "bfloat16"]], ids=["option", "dtype"]
)
def test_draws_of_another_setting_or_type_are_not_judged_as_these(
    other: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found(capsys, *LAYERSKIP, "--draws", "20", "--out", "run")
    words = [*WORDS, *LAYERSKIP, "--draws", "20", "--out", "run", "--resume", *other]
    assert run(words) == 2
    assert "was drawn with other options" in capsys.readouterr().err


@pytest.mark.parametrize("held", [b"", b"\xff\n"])
def test_a_file_of_draws_that_is_none_is_told_in_a_line(
    held: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run").mkdir()
    Path("run/draws.jsonl").write_bytes(held)
    assert run([*WORDS, *LAYERSKIP, "--draws", "20", "--out", "run", "--resume"]) == 2
    assert "draws.jsonl is damaged" in capsys.readouterr().err


def test_a_test_goes_on_with_draws_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, *LAYERSKIP, "--draws", "20", "--out", "run"]
    assert run([*words, "--resume"]) == 2
    assert "run holds no draws, so there is nothing to resume" in capsys.readouterr().err
    assert not Path("run").exists()
    Path("run").mkdir()
    Path("run/run.json").write_text("{}", "utf-8")
    for more in ([], ["--resume"]):
        assert run([*words, *more]) == 2
        assert "run holds a run, and draws are none" in capsys.readouterr().err


def test_draws_do_not_depend_on_where_a_run_was_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = found(capsys, *LAYERSKIP, "--draws", "120", "--out", "whole")
    lines = Path("whole/draws.jsonl").read_text("utf-8").splitlines(keepends=True)
    Path("part").mkdir()
    # The first lot is there, the second is torn.
    Path("part/draws.jsonl").write_text("".join(lines[:2]) + lines[2][:40], "utf-8")
    assert found(capsys, *LAYERSKIP, "--draws", "120", "--out", "part", "--resume") == whole
    again = sorted(Path("part/draws.jsonl").read_text("utf-8").splitlines())
    assert again == sorted(line.rstrip("\n") for line in lines)
