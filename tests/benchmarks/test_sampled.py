"""`benchmarks.sampled`, `benchmarks.faithful`: what was found is kept, gone on with and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import faithful, readme, sampled

MODEL = "synthetic:layers=2,hidden=16,heads=2,vocab=300"
SETTING = "top-k 20, temperature 1"


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    asked = ["--model", MODEL, "--draws", "60", "--setting", SETTING]
    monkeypatch.setattr(sys, "argv", ["sampled", *asked, *words])
    sampled.main()


def test_what_is_drawn_and_found_is_kept_and_not_drawn_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--method", "prompt-lookup", "--work", str(tmp_path), "--save", str(tmp_path / "a")]
    called(monkeypatch, *words)
    (row,) = json.loads((tmp_path / "a").read_text("utf-8"))["settings"][SETTING]
    assert row["method"] == "prompt-lookup"
    assert row["faithful"] in ("faithful", "undecided")
    assert f"| method | {SETTING} |" in capsys.readouterr().out
    (draws,) = tmp_path.glob("*/draws.jsonl")
    before = draws.read_text("utf-8")
    called(monkeypatch, *words)
    assert draws.read_text("utf-8") == before
    assert json.loads((tmp_path / "a").read_text("utf-8"))["settings"][SETTING] == [row]


def test_settings_and_methods_are_kept_beside_those_drawn_anew(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    first, other = [*sampled.SETTINGS][:2]
    begun = {**CONTENT, "settings": {other: [found("greedy", 0.5, "faithful", 0.01, 0.9)]}}
    assert sampled.joined(begun, path) == begun
    path.write_text(json.dumps(begun), "utf-8")
    new = {
        other: [found("odd", 0.2, "faithful", 0.01, 0.9)],
        first: [found("greedy", 0.7, "faithful", 0.01, 0.9)],
    }
    after = sampled.joined({**CONTENT, "settings": new}, path)["settings"]
    assert [*after] == [first, other]
    assert [row["method"] for row in after[other]] == ["greedy", "odd"]
    again = {other: [found("greedy", 0.1, "faithful", 0.01, 0.9)]}
    (row,) = sampled.joined({**CONTENT, "settings": again}, path)["settings"][other]
    assert row["p_value"] == 0.1
    with pytest.raises(SystemExit, match="versions torch 1, transformers 2, these draws torch 2"):
        sampled.joined({**CONTENT, "versions": "torch 2"}, path)


def found(method: str, p: float, verdict: str, high: float, power: float) -> dict[str, Any]:
    return {
        "method": method,
        "p_value": p,
        "faithful": verdict,
        "total_variation_high": high,
        "power_at_0_02": power,
    }


CONTENT = {
    "model": "tiny",
    "dtype": "float32",
    "draws": 3000,
    "tokens": 4,
    "versions": "torch 1, transformers 2",
    "settings": {
        "a": [found("greedy", 0.5, "faithful", 0.01, 0.9), found("odd", 0, "unfaithful", 0.3, 1)],
        "b": [
            found("greedy", 1, "undecided", 0.02, 0.4),
            found("odd", 0.4, "faithful", 0.01, 1) | {"before": {"p_value": 0.006, "draws": 9}},
        ],
    },
}


def test_a_method_has_its_p_values_and_the_worst_of_the_rest() -> None:
    (sheet,) = sampled.sheets(CONTENT)
    assert sheet.rows == (
        ("greedy", "0.5", "1 undecided", "0.020", "40%"),
        ("odd", "0 unfaithful", "0.4 (0.006)", "0.300", "100%"),
    )
    assert "transformers 2" in sheet.notes[0]


def test_false_alarms_and_planted_mistakes_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(faithful, "OUTPUTS", 300)
    monkeypatch.setattr(faithful, "SLIPS", dict([*faithful.SLIPS.items()][:2]))
    out = tmp_path / "planted.json"
    monkeypatch.setattr(sys, "argv", ["faithful", "--runs", "2", "--out", str(out)])
    faithful.main()
    shown = capsys.readouterr().out
    assert "| everything is kept | 0 | refused |" in shown
    assert "| none | " in shown
    assert "0 of 2 runs refused" in shown
    assert json.loads(out.read_text("utf-8"))["false_alarms"]["runs"] == 2


def test_committed_false_alarms_and_mistakes_are_as_they_must_be() -> None:
    content = json.loads((readme.SAMPLED / "planted.json").read_text("utf-8"))
    alarms, (exact, *mistakes) = content["false_alarms"], content["planted"].values()
    assert alarms["runs"] >= 200
    assert alarms["unfaithful"] <= 0.02 * alarms["runs"]
    assert exact >= 0.01
    assert content["outputs"] == 3000
    assert len(mistakes) == len(faithful.rules()) + 1
    assert max(mistakes) < 0.01


def test_pages_say_how_what_is_not_there_is_made() -> None:
    page = "<!-- results/faithful/nothing.json: Sampled as markdown -->\n<!-- end -->"
    assert "`make sampled`" in readme.rendered(page)
