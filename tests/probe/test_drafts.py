"""`ppdbench probe --what drafts` as it is typed, with guesses whose accuracy is known."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Proposer, Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.methods.base import METHODS, Method, option
from ppdbench.probe import drafts
from ppdbench.runs.store import read_run
from ppdbench.testing import CLOCK
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.static import grow

VOCAB = 300
MODEL = f"synthetic:layers=3,hidden=32,heads=2,vocab={VOCAB}"
TOKENS = 12
WORDS = ["probe", "--what", "drafts", "--model", MODEL, "--data", "builtin"]
SMALL = [*WORDS, "--limit", "3", "--max-new-tokens", str(TOKENS)]
FAR = 3  # distances that the seer guesses at


@dataclass(frozen=True, slots=True, kw_only=True)
class Seer:
    """Ranks the true token at distance d at d - 1, but at every other place second to last."""

    nan: bool = option(False, "guess NaN")

    def prepare(self, setup: Setup) -> Proposer:
        return Vision(self.nan)


class Vision(Proposer):
    def __init__(self, nan: bool) -> None:
        self.nan = nan
        self.loaded = {"addon": "crystal ball"}

    def guesses(self, session: Session, prompt_ids: list[int], positions: Sequence[int]) -> Tensor:
        scores = torch.zeros(len(positions), FAR, VOCAB)
        for row, place in enumerate(positions):
            for d in range(1, FAR + 1):
                if place + 1 + d < len(prompt_ids):
                    scores[row, d - 1] = self._scores(prompt_ids[place + 1 + d], d, place)
        return scores * float("nan") if self.nan else scores

    def _scores(self, truth: int, distance: int, place: int) -> Tensor:
        found = torch.zeros(VOCAB)
        rank = distance - 1 if place % 2 else VOCAB - 2
        others = [token for token in range(VOCAB) if token != truth]
        found[others[:rank]] = 1.0
        found[truth] = 0.5
        return found


@pytest.fixture(autouse=True)
def seer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(tmp_path)
    METHODS.add("seer", Method("seer", Seer, True, True, "sees"))
    yield
    del METHODS._items["seer"]


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run([*SMALL, *map(str, arguments)]) == 0
    return capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--format", "json"))


def heads(folder: Path) -> Path:
    """Random Medusa heads for the model."""
    folder.mkdir()
    draw = torch.Generator().manual_seed(0)
    shapes = {"0.linear.weight": (32, 32), "0.linear.bias": (32,), "1.weight": (VOCAB, 32)}
    tensors = {
        f"{h}.{name}": torch.randn(*shape, generator=draw)
        for h in range(2)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


# What is measured


def test_accuracies_are_those_of_the_guesses_by_distance_and_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = parsed(capsys, "--method", "seer", "--out", "run")
    rows = {(row["distance"], row["k"]): row for row in result["rows"]}
    assert len(rows) == FAR * 10
    odd = n = 0
    for sample in read_run("run").samples:
        prompt, output = sample.prompt_ids, sample.output_ids
        # From the prompt's last token on, as long as a distance has a true token.
        tokens = len(output) - 1
        found = {distance: len(ranks) for distance, ranks in sample.ranks.items()}
        assert found == {str(d): tokens + 1 - d for d in range(1, FAR + 1)}
        # Accuracies are of places where every distance has one, to compare them.
        places = range(len(prompt) - 1, len(prompt) + tokens - FAR)
        odd += sum(place % 2 for place in places)
        n += len(places)
    for (distance, k), row in rows.items():
        assert row["n"] == n
        assert row["accuracy"] == pytest.approx(odd / n if k >= distance else 0)
        assert row["low"] <= row["accuracy"] <= row["high"]


def test_the_text_is_what_greedy_decoding_gives(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--method", "seer", "--out", "run")
    loaded = load(ModelSpec(name=MODEL))
    for sample in read_run("run").samples:
        session = Session(loaded.staged, len(sample.prompt_ids) + TOKENS)
        limits = Limits(TOKENS, loaded.eos_ids)
        greedy = autoregressive(session, Request(sample.prompt_ids, limits, CLOCK))
        assert sample.output_ids == list(greedy.output_ids)
        assert sample.verdict == "identical"


def test_guesses_asked_for_in_pieces_are_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = ["--method", f"medusa:addon={heads(tmp_path / 'heads')}"]
    whole = parsed(capsys, *words, "--out", "whole")["rows"]
    monkeypatch.setattr(drafts, "GUESSES_BUDGET", 3 * 4 * drafts.FARTHEST * VOCAB)
    assert parsed(capsys, *words, "--out", "pieces")["rows"] == whole


def test_a_calibration_is_what_trees_are_grown_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = parsed(capsys, "--method", "seer", "--calibration", "made/c.json")
    found = Accuracies.load("made/c.json")
    best = {row["distance"]: row["accuracy"] for row in result["rows"] if row["k"] == 10}
    assert found.method == "seer"
    assert (found.model, bool(found.weights)) == (result["model"], True)
    assert found.n == result["rows"][0]["n"]
    for j in range(FAR):
        assert [r for r, hits in enumerate(found.hits[j]) if hits] == [j]
        assert found.p(j, j) == pytest.approx(best[j + 1])
    assert grow(found, 9).paths == ((0,), (0, 1), (0, 1, 2))
    assert [(o.task, o.tokens) for o in found.outputs] == [("gsm8k", TOKENS - 1)] * 3


def test_a_calibration_says_where_guesses_were_right(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--method", "seer", "--calibration", "c.json", "--out", "run")
    for sample, output in zip(
        read_run("run").samples, Accuracies.load("c.json").outputs, strict=True
    ):
        first = len(sample.prompt_ids) - 1
        for place, way in enumerate(output.paths):
            reach = min(FAR, output.tokens - place)
            assert way == (tuple(range(reach)) if (first + place) % 2 else ())


def test_few_tokens_are_warned_of_with_the_interval(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*SMALL, "--method", "seer", "--calibration", "c.json", "--format", "json"]
    assert run(words) == 0
    told = capsys.readouterr()
    err, rows = told.err, json.loads(told.out)["rows"]
    n = Accuracies.load("c.json").n
    assert f"warning: calibrated on only {n} tokens" in err
    low, high = next(
        (row["low"], row["high"])
        for row in rows
        if (row["task"], row["distance"], row["k"]) == ("gsm8k", 1, 1)
    )
    assert f"anything from {100 * low:.1f}% to {100 * high:.1f}% (95%)" in err
    assert "calibration: c.json" in err


# How it is told


def test_the_table_has_a_row_for_each_method_and_distance(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--method", "seer", "--method", f"medusa:addon={heads(tmp_path / 'heads')}"]
    lines = printed(capsys, *words, "--task", "gsm8k", "--task", "squad").splitlines()
    assert sum("draft accuracy in %" in line for line in lines) == 3
    rows = [line.split()[:2] for line in lines if line.strip().startswith(("seer", "medusa"))]
    every = [*(["seer", str(d)] for d in (1, 2, 3)), *(["medusa", str(d)] for d in (1, 2))]
    assert rows == 3 * every
    assert any(line.startswith("all tasks: ") for line in lines)


def test_csv_holds_every_k_of_every_distance(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--method", "seer", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(int(r["distance"]), int(r["k"])) for r in rows] == [
        (d, k) for d in range(1, FAR + 1) for k in range(1, 11)
    ]
    assert set(rows[0]) == {"task", "method", "distance", "k", "accuracy", "low", "high", "n"}


def test_markdown_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--method", "seer", "--format", "markdown")
    assert "| method | distance | k=1 | k=3 | k=5 | k=10 |" in out


def test_one_method_with_other_options_is_told_apart(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    addon = heads(tmp_path / "heads")
    words = [f"medusa:addon={addon}", f"medusa:addon={addon},typical=0.1"]
    rows = parsed(capsys, *(w for word in words for w in ("--method", word)))["rows"]
    assert list(dict.fromkeys(row["method"] for row in rows)) == words


def test_a_picture_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "gsm8k", "--task", "squad", "--plot", "p.png"]
    printed(capsys, "--method", "seer", *words)
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


# What a run leaves behind


def test_the_header_says_whose_guesses_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "--method", "seer", "--out", "run")
    header = read_run("run").header
    assert header.kind == "drafts"
    assert msgspec.to_builtins(header.methods) == {
        "seer": {"name": "seer", "options": {"nan": False}, "loaded": {"addon": "crystal ball"}}
    }


def test_an_interrupted_run_goes_on_where_it_stopped(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "seer", "--out", "run"]
    whole = parsed(capsys, *words)["rows"]
    path = Path("run/samples.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:1]) + lines[1][:20])
    assert parsed(capsys, *words, "--resume")["rows"] == whole
    assert path.read_text() == "".join(lines)


def test_another_addon_is_not_resumed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    addon = heads(tmp_path / "heads")
    words = ["--method", f"medusa:addon={addon}", "--out", "run"]
    printed(capsys, *words)
    (addon / "tree.json").write_text(
        json.dumps({"format": "ppdbench-tree", "version": 1, "paths": [[0]]})
    )
    assert run([*SMALL, *words, "--resume"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"methods\.medusa\.loaded\.tree \(\S+ there, \S+ here\) differs", said)


# What is held against the stock model before anything is measured


def test_a_bug_that_both_sides_share_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Adapter.norm
    monkeypatch.setattr(Adapter, "norm", lambda self, hidden: 1.001 * real(self, hidden))
    alone = ["--no-family-check"]  # which would refuse the model at once
    assert run([*SMALL, *alone, "--method", "seer", "--out", "run"]) == 1
    said = capsys.readouterr().err
    assert "the passes of greedy decoding are not the model's" in said
    assert len(read_run("run").samples) == 0


# What is refused

BAD: dict[str, tuple[list[str], str]] = {
    "no method": ([], "--what drafts needs --method"),
    "no guesses": (["--method", "greedy"], "--method greedy: it makes no guesses by distance"),
    "unknown": (["--method", "medussa"], "did you mean medusa"),
    "no addon": (["--method", "medusa"], "train one with `ppdbench train medusa"),
    "layers": (["--method", "seer", "--layers", "2"], "--layers goes with --what matches"),
    "k": (["--method", "seer", "-k", "2"], "--k goes with --what matches, not drafts"),
    "head": (["--method", "seer", "--head", "x"], "--head goes with --what matches"),
    "target": (["--method", "seer", "--target", "top-p"], "--target goes with --what matches"),
    "twice": (["--method", "seer", "--method", "seer"], "seer is given twice"),
    "a shard's calibration": (
        ["--method", "seer", "--shard", "1/2", "--out", "o", "--calibration", "c.json"],
        "--calibration is of all examples",
    ),
    "two calibrations": (
        ["--method", "seer", "--method", "medusa", "--calibration", "c.json"],
        "--calibration is of one method, but there are 2",
    ),
    "a bad picture": (["--method", "seer", "--plot", "p.doc"], "p.doc"),
    "nan": (["--method", "seer:nan=true"], "example 0: seer guesses NaN"),
    "short": (["--method", "seer", "--max-new-tokens", "3"], "raise --max-new-tokens"),
}


@pytest.mark.parametrize("what", sorted(BAD))
def test_bad_input_is_one_line(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, message = BAD[what]
    assert run([*SMALL, *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("words", [["--method", "seer"], ["--calibration", "c.json"]])
def test_options_of_drafts_are_refused_for_matches(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [word for word in SMALL if word not in ("--what", "drafts")]
    assert run([*plain, *words]) == 2
    err = capsys.readouterr().err
    assert f"{words[0]} goes with --what drafts" in err
    assert "not matches" in err
