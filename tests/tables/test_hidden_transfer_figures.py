"""Figures 3 to 7 of Hidden Transfer: the points of its curves, and what they say of its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from tests.report.pictures.seen import marks, texts
from tests.tables.made import write_run
from tests.tables.stored import about, decoded, guessed, sample, table, with_header

Capture = pytest.CaptureFixture[str]


HERE = about("hidden-transfer", addon="", masked=False)


MASKED = about("hidden-transfer", addon="", masked=True)


HEADS = about("medusa", addon="")


HIT, MISS = [0] * 4, [0, 0, 9, 9]  # of the first choices all are right, or half


def test_accuracies_make_the_points_of_figures_3_and_7(tmp_path: Path, capsys: Capture) -> None:
    methods = {"ours": HERE, "masked": MASKED, "heads": HEADS, "early": HEADS}
    ranks = {"ours": HIT, "masked": MISS, "heads": MISS, "early": MISS}
    stored = guessed(
        tmp_path / "a",
        {label: {1: found, 2: found} for label, found in ranks.items()},
        methods,
        tasks=("xsum",),
        facts={
            "ours": {"layers": [4, 5]},
            "masked": {"layers": [4, 5]},
            "heads": {"options": {"after": 0}},
            "early": {"options": {"after": 6}},
        },
    )
    content = table(capsys, "hidden_transfer/figures", stored)
    points = {
        (row["figure"], row["series"], row["distance"], row["k"]): row for row in content["rows"]
    }
    assert points["3", "hidden transfer", 2, 1]["value"] == 1
    assert points["3", "medusa heads", 2, 1]["value"] == 0.5
    assert points["3", "early exit heads", 2, 10]["value"] == 1
    assert points["3", "early exit heads", 1, 1]["layer"] == 6
    assert points["7", "hidden transfer, masked", 2, 1]["value"] == 0.5
    assert ("7", "medusa heads", 2, 1) not in points


def test_layers_stand_in_the_order_of_their_numbers(tmp_path: Path, capsys: Capture) -> None:
    methods = {
        f"at {n}": about("hidden-transfer", addon=f"first/layer-{n}", masked=False)
        for n in (14, 5, 23, 9)
    }
    stored = guessed(
        tmp_path / "a",
        {label: {1: HIT, 2: HIT} for label in methods},
        methods,
        tasks=("xsum",),
        facts={label: {"layers": [int(label[3:])]} for label in methods},
    )
    assert run(["table", "hidden_transfer/figures", stored, "--format", "markdown"]) == 0
    shown = capsys.readouterr().out.partition("### Figure 5")[2].partition("###")[0].splitlines()
    layers = [line.split("|")[3].strip() for line in shown if "| step 1 |" in line]
    assert layers[::2] == layers[1::2] == ["5", "9", "14", "23"]  # at distances 1 and 2


def answers(capsys: Capture, *runs: str) -> dict[str, str]:
    """What the table for people says of the statements that can be judged."""
    assert run(["table", "hidden_transfer/figures", *runs, "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.partition("What the text says")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return {cell[0]: cell[-1] for cell in cells if cell[-1] in ("holds", "does not hold")}


@pytest.mark.parametrize(
    ("ours", "theirs", "masked", "said"),
    [
        (HIT, MISS, MISS, {"figure 3": "holds", "figure 7": "holds"}),
        (MISS, HIT, MISS, {"figure 3": "does not hold", "figure 7": "does not hold"}),
    ],
)
def test_statements_are_judged_by_the_points(
    ours: list[int],
    theirs: list[int],
    masked: list[int],
    said: dict[str, str],
    tmp_path: Path,
    capsys: Capture,
) -> None:
    stored = guessed(
        tmp_path / "a",
        {"ours": {1: ours, 2: ours}, "heads": {1: theirs, 2: theirs}, "masked": {2: masked}},
        {"ours": HERE, "heads": HEADS, "masked": MASKED},
        tasks=("xsum", "gsm8k"),
        facts={"ours": {"layers": [4, 5]}, "masked": {"layers": [4, 5]}, "heads": {}},
    )
    assert answers(capsys, stored) == said


@pytest.mark.parametrize(("rates", "said"), [((4, 4, 1), "holds"), ((4, 1, 1), "does not hold")])
def test_accuracy_by_layer_falls_late_or_not(
    rates: tuple[int, ...], said: str, tmp_path: Path, capsys: Capture
) -> None:
    layers = dict(zip(("1", "4", "6"), rates, strict=True))
    stored = guessed(
        tmp_path / "a",
        {layer: {1: [0] * right + [9] * (4 - right)} for layer, right in layers.items()},
        {n: about("hidden-transfer", addon=f"x/layer-{n}", masked=False) for n in layers},
        tasks=("gsm8k",),
        facts={layer: {"layers": [int(layer)]} for layer in layers},
    )
    assert answers(capsys, stored) == {"figure 5": said}


def similar(folder: Path, last: float) -> str:
    cosines = {"1": {"4": [0.2, 0.4], "8": [last, last]}}
    samples = [
        {"task": "xsum", "method": "hidden-transfer", "example_id": "0", "similarity": cosines}
    ]
    path = write_run(folder, "similarity", samples)
    return with_header(path, config={"tasks": ["xsum"]})


@pytest.mark.parametrize(("last", "said"), [(0.9, "holds"), (0.1, "does not hold")])
def test_closeness_rises_or_not(last: float, said: str, tmp_path: Path, capsys: Capture) -> None:
    stored = similar(tmp_path / "a", last)
    rows: list[dict[str, Any]] = table(capsys, "hidden_transfer/figures", stored)["rows"]
    assert [(r["figure"], r["layer"], r["value"]) for r in rows] == [
        ("4", 4, pytest.approx(0.3)),
        ("4", 8, pytest.approx(last)),
    ]
    assert answers(capsys, stored) == {"figure 4": said}


def test_the_curves_are_drawn_a_row_for_each_figure(tmp_path: Path, capsys: Capture) -> None:
    from ppdbench.report.pictures.transfer import transfer_figures
    from ppdbench.tables.hidden_transfer_figures import TITLES

    guesses = guessed(
        tmp_path / "b",
        {"ours": {1: HIT, 2: MISS}, "heads": {1: MISS, 2: MISS}},
        {"ours": HERE, "heads": HEADS},
        tasks=("xsum",),
        facts={"ours": {"layers": [4, 5]}, "heads": {}},
    )
    path, runs = tmp_path / "curves.png", (similar(tmp_path / "a", 0.9), guesses)
    points = table(capsys, "hidden_transfer/figures", *runs)["rows"]
    picture = transfer_figures(points, TITLES)
    found = texts(picture)
    assert [text[7:8] for text in found if text.startswith("Figure ")] == ["3", "4", "7"]
    own = marks(transfer_figures([p for p in points if p["figure"] == "3"], TITLES))
    lines = {mark.hint.partition(" at ")[0] for mark in own}
    assert len(lines) == 4  # two methods, two distances
    cosine = [mark.hint for mark in marks(picture) if mark.hint.startswith("step")]
    assert cosine == ["step 1 at 4: 0.300", "step 1 at 8: 0.900"]
    assert run(["table", "hidden_transfer/figures", *runs, "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_decoding_says_nothing_of_the_figures(tmp_path: Path, capsys: Capture) -> None:
    stored = decoded(tmp_path / "a", {"greedy": about("greedy")}, [sample("xsum", "greedy")])
    assert run(["table", "hidden_transfer/figures", stored]) == 2
    assert "none of these runs probed drafts or similarity" in capsys.readouterr().err
