"""Prompt tokens: the comparison with Medusa, and which variant stands beside which ablation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.tables.stored import about, decoded, guessed, sample, table

Capture = pytest.CaptureFixture[str]

METHODS = {name: about(name) for name in ("greedy", "medusa", "prompt-tokens")}
FACTS = {
    "medusa": {"added_parameters": 500, "model_parameters": 10_000, "nodes": [17], "rows": [17]},
    "prompt-tokens": {
        "added_parameters": 3,
        "model_parameters": 10_000,
        "nodes": [3, 8],
        "rows": [12, 20],
    },
}


def test_methods_are_compared_in_time_sizes_and_tokens(tmp_path: Path, capsys: Capture) -> None:
    samples = [sample("mt_bench", name, number) for name in METHODS for number in range(5)]
    stored = decoded(tmp_path / "a", METHODS, samples, facts=FACTS)
    rows = {(r["model"], r["method"]): r for r in table(capsys, "prompt_ppd/1", stored)["rows"]}
    assert len(rows) == 8
    ours = rows["Vicuna-7B", "prompt-tokens"]
    assert (ours["tokens/s paper"], ours["tokens/s"]) == (88.0, pytest.approx(400))
    assert (ours["speedup paper"], ours["speedup"]) == (
        pytest.approx(88 / 39.2),
        pytest.approx(1.6),
    )
    assert (ours["tokens per pass paper"], ours["tokens per pass"]) == (2.54, 2)
    assert (ours["ms per pass paper"], ours["ms per pass"]) == (29, pytest.approx(5))
    assert ours["trained % paper"] == pytest.approx(1.82e-4)
    assert ours["trained %"] == pytest.approx(0.03)
    assert (ours["nodes paper"], ours["nodes"]) == ("10,33,34", "3,8")
    assert (ours["rows paper"], ours["rows"]) == ("40,105,105", "12,20")
    assert (ours["score paper"], ours["score"]) == (5.93, None)
    assert rows["Vicuna-7B", "greedy"]["rows"] == "1"
    assert rows["Vicuna-13B", "medusa"]["trained %"] == pytest.approx(5)


def test_rows_of_a_method_that_could_not_run_have_its_reason(
    tmp_path: Path, capsys: Capture
) -> None:
    samples = [sample("mt_bench", "greedy", number) for number in range(5)]
    stored = decoded(tmp_path / "a", METHODS, samples, not_run={"medusa": "no add-on for m"})
    notes = table(capsys, "prompt_ppd/1", stored, code=3)["notes"]
    assert any("the method was not run on mt_bench, or could not run." in note for note in notes)
    assert notes[-1] == "medusa did not run: no add-on for m"


def test_sampled_rows_stand_beside_sampled_runs(tmp_path: Path, capsys: Capture) -> None:
    def of(name: str, step_ms: float, **more: Any) -> str:
        samples = [
            sample("mt_bench", method, number, step_ms=[step_ms] * (8 if method == "greedy" else 4))
            for method in METHODS
            for number in range(5)
        ]
        return decoded(tmp_path / name, METHODS, samples, facts=FACTS, **more)

    drawn = {"kind": "top-p", "top_p": 1.0, "top_k": 3, "temperature": 0.7}
    greedy, sampled = of("a", 2.0), of("b", 4.0, target=drawn)
    content = table(capsys, "prompt_ppd/1", greedy, sampled)
    ours = {(r["model"], r["method"]): r["ms per pass"] for r in content["rows"]}
    assert ours["MobileLLaMA-1.4B", "prompt-tokens"] == pytest.approx(2)
    assert ours["Vicuna-7B", "prompt-tokens"] == ours["Vicuna-13B", "medusa"] == pytest.approx(4)
    assert any("ours are drawn at temperature 0.7" in note for note in content["notes"])
    content = table(capsys, "prompt_ppd/1", greedy)
    assert all(r["ms per pass"] == pytest.approx(2) for r in content["rows"])
    assert any("ours are greedy" in note for note in content["notes"])


@pytest.mark.parametrize("name", ["prompt_ppd/1", "prompt_ppd/claims"])
def test_two_settings_of_one_method_are_refused_by_name(
    name: str, tmp_path: Path, capsys: Capture
) -> None:
    def of(folder: str, **others: dict[str, Any]) -> str:
        methods = METHODS | others
        samples = [sample("mt_bench", label, n) for label in methods for n in range(5)]
        return decoded(tmp_path / folder, methods, samples, facts=FACTS)

    wide = of("a", **{"medusa:tree=wide": about("medusa", tree="wide")})
    assert run(["table", name, wide]) == 2
    said = f"medusa ({wide}) and medusa:tree=wide ({wide}) are two settings of medusa on mt_bench"
    assert said in capsys.readouterr().err
    # Of a method that the table has no row of, there may be several.
    others = {f"lookahead:window={n}": about("lookahead", window=n) for n in (3, 5)}
    assert table(capsys, name, of("b", **others))["rows"]


def test_a_question_of_two_turns_is_one_example(tmp_path: Path, capsys: Capture) -> None:
    asked = [("81", 1), ("81/2", 2), ("82", 1), ("82/2", 2)]
    samples = [
        sample("mt_bench", name, example_id=example, turn=turn, turns=2)
        for name in METHODS
        for example, turn in asked
    ]
    stored = decoded(tmp_path / "a", METHODS, samples, facts=FACTS)
    _, here = table(capsys, "prompt_ppd/1", stored)["setting"]
    assert "examples: mt_bench 2 in 4 turns;" in here


# The ablations

BASE = {
    "prompts": 3, "epts": 1, "mask": "ensemble", "aggregation": "mean", "exits": 1, "prefix": 0,
    "custom_head": False, "rank": 0, "loss": "kl", "decay": 0.8, "insertions": 4,
}  # fmt: skip


def told(epochs: int, batch: int = 4, start: str | None = None) -> dict[str, Any]:
    """A training over 40 blocks of 128 tokens."""
    steps = epochs * 40 // batch
    tokens = 40 * 129 + 5
    return {
        "steps": steps, "batch_size": batch, "sequence": 128, "tokens": tokens, "start": start
    }  # fmt: skip


def probed(folder: Path, *trained: tuple[dict[str, Any], dict[str, Any] | None, int]) -> str:
    """Variants by options and training; of 10 first guesses at distance 1 so many are right."""
    labels = [f"prompt-tokens:addon={number}" for number in range(len(trained))]
    return guessed(
        folder,
        {
            label: {1: [0] * right + [7] * (10 - right), 2: [4] * 10}
            for label, (_, _, right) in zip(labels, trained, strict=True)
        },
        {label: about("prompt-tokens", addon=label) for label in labels},
        facts={
            label: {"options": {**BASE, **options}, "training": training}
            for label, (options, training, _) in zip(labels, trained, strict=True)
        },
    )


def first(capsys: Capture, name: str, stored: str, *keys: str) -> dict[Any, Any]:
    """Accuracy of first guesses at distance 1 by row, where there is one."""
    rows = table(capsys, name, stored)["rows"]
    return {
        tuple(row[key] for key in keys): row["@1 top 1"]
        for row in rows
        if row["@1 top 1"] is not None
    }


TEXT = {"loss": "ce"}


def test_sizes_are_of_ensembles_without_distillation(tmp_path: Path, capsys: Capture) -> None:
    stored = probed(
        tmp_path / "a",
        (TEXT, None, 1),
        ({**TEXT, "epts": 10}, told(1), 2),
        ({**TEXT, "epts": 10}, told(12), 3),  # trained longer
        ({"epts": 5}, told(12), 9),  # distilled
        ({**TEXT, "epts": 2, "mask": "decoder"}, told(12), 9),
    )
    assert first(capsys, "prompt_ppd/2", stored, "ept") == {(1,): 0.1, (10,): 0.3}
    content = table(capsys, "prompt_ppd/2", stored)
    row = next(row for row in content["rows"] if row["ept"] == 10)
    assert row["ours"] == "10 EPT, 61k"
    assert (row["@1 top 1 paper"], row["@1 top 5 paper"]) == (0.494, 0.786)
    assert (row["@2 top 1"], row["@2 top 5"]) == (0, 1)
    assert row["@1 top 1 diff"] == pytest.approx(0.3 - 0.494)
    assert any("5 of 7 rows have nothing of ours" in note for note in content["notes"])


def test_trainings_are_told_apart_by_passes_batch_and_loss(tmp_path: Path, capsys: Capture) -> None:
    stored = probed(
        tmp_path / "a",
        ({}, told(2), 1),
        ({}, told(12), 2),
        ({}, told(12, batch=1), 3),
        (TEXT, told(12), 4),
        ({"epts": 10}, told(12), 5),
        ({}, told(3), 9),  # no such row
        ({}, None, 9),  # nobody knows how long
    )
    found = first(capsys, "prompt_ppd/3", stored, "ept", "kd", "epochs", "batch size")
    assert found == {
        (1, "yes", 2, 4): 0.1,
        (1, "yes", 12, 4): 0.2,
        (1, "yes", 12, 1): 0.3,
        (1, "no", 12, 4): 0.4,
        (100, "yes", 12, 4): 0.5,
    }


@pytest.mark.parametrize(
    ("name", "key", "trained", "found"),
    [
        ("prompt_ppd/4", "prefix tuning", {"prefix": 1}, {("no",): 0.5, ("yes",): 0.2}),
        ("prompt_ppd/8", "exits", {"exits": 3}, {(1,): 0.5, (3,): 0.2}),
        (
            "prompt_ppd/5",
            "custom head",
            {"custom_head": True, "rank": 4},
            {("none",): 0.5, ("one_stage",): 0.2},
        ),
    ],
)
def test_one_option_makes_the_ablation(
    name: str,
    key: str,
    trained: dict[str, Any],
    found: dict[Any, float],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    stored = probed(
        tmp_path / "a",
        ({}, told(12), 5),
        (trained, told(12), 2),
        ({**trained, "epts": 2}, told(12), 9),
        ({**trained, **TEXT}, told(12), 9),
    )
    assert first(capsys, name, stored, key) == found


def test_a_second_stage_is_known_by_what_it_started_from(tmp_path: Path, capsys: Capture) -> None:
    stored = probed(tmp_path / "a", ({"custom_head": True}, told(10, start="f00d"), 6))
    assert first(capsys, "prompt_ppd/5", stored, "custom head") == {("two_stage",): 0.6}


def test_ensembles_of_one_size_are_compared(tmp_path: Path, capsys: Capture) -> None:
    stored = probed(
        tmp_path / "a",
        ({**TEXT, "epts": 20}, told(12), 9),  # nothing to compare it with
        ({**TEXT, "epts": 10}, told(12), 5),
        ({**TEXT, "epts": 10, "mask": "decoder"}, told(12), 3),
        ({**TEXT, "epts": 10, "aggregation": "learned"}, told(12), 4),
    )
    masks = first(capsys, "prompt_ppd/6", stored, "mask")
    assert masks == {("ensemble",): 0.5, ("decoder",): 0.3}
    means = first(capsys, "prompt_ppd/7", stored, "aggregation")
    assert means == {("average",): 0.5, ("learned_weight",): 0.4}


def test_probes_of_other_methods_are_refused(tmp_path: Path, capsys: Capture) -> None:
    stored = guessed(tmp_path / "a", {"medusa": {1: [0]}}, {"medusa": about("medusa")})
    assert run(["table", "prompt_ppd/2", stored]) == 2
    assert "none of these runs probed prompt-tokens on alpaca" in capsys.readouterr().err


# Claims


LIGHT = """
import sys
from ppdbench.cli.main import run
for name in sys.argv[2:]:
    assert run(["table", name, sys.argv[1]]) == 0
assert "torch" not in sys.modules
"""


def test_tables_are_drawn_without_torch(tmp_path: Path) -> None:
    decoding = decoded(
        tmp_path / "a",
        METHODS,
        [sample(t, n) for n in METHODS for t in ("mt_bench", "cnn_dailymail", "xsum")],
        facts=FACTS,
    )
    guesses = probed(tmp_path / "b", (TEXT, told(1), 1))
    for stored, names in (
        (decoding, ("layerskip/2", "hidden_transfer/1", "prompt_ppd/1", "prompt_ppd/claims")),
        (guesses, ("prompt_ppd/2", "prompt_ppd/6")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", LIGHT, stored, *names],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
