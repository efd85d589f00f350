"""Similarity of pseudo and true states: known where the states are known, and as it is typed."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Proposer
from ppdbench.engine import masks
from ppdbench.engine.addons import save_addon
from ppdbench.engine.loading import ModelSpec, load_stock
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, DataError
from ppdbench.methods.hidden_transfer import network as hidden_transfer
from ppdbench.methods.hidden_transfer.network import TransferMatrices
from ppdbench.methods.hidden_transfer.strategy import HiddenTransferProposer
from ppdbench.probe.cosines import Cosines
from ppdbench.runs.store import read_run
from ppdbench.runs.workload import Item
from ppdbench.trees.tree import Tree
from tests.filled import similarities
from tests.helpers import staged, tokens

LAYERS = (1, 2, 2)
TEXT = tokens(20, 3)
PROMPT = 8
CHAIN = Tree(((0,), (0, 0), (0, 0, 0)))
MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300"


@dataclass(frozen=True)
class Knowing(TransferMatrices):
    """Transfers what the next tokens of the text really have."""

    states: dict[int, Tensor]

    def state(self, step: int, hidden: Tensor) -> Tensor:
        true = self.states[self.layers[step]]
        first = int((true[0] - hidden[0, 0]).abs().sum(-1).argmin())
        return true[:, first + step + 1 :][:, : hidden.shape[1]]


def measured(transfer: TransferMatrices, name: str = "llama", spare: int = 64) -> dict[str, Any]:
    decoder = HiddenTransferProposer(transfer, CHAIN, {}, masked=False)
    session = Session(staged(name), len(TEXT), spare=spare)
    item = cast(Item, SimpleNamespace(ids=TEXT[:PROMPT]))
    found: dict[str, Any] = Cosines("own", decoder)(session, item, TEXT[PROMPT:])["similarity"]
    return found


@torch.inference_mode()
def true_states(name: str) -> dict[int, Tensor]:
    states: dict[int, Tensor] = {}
    session = Session(staged(name), len(TEXT))
    session.reset(TEXT)
    session.prefill(tap=states.__setitem__)
    return states


@pytest.mark.parametrize("spare", [64, 3])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2", "mistral-window"])
def test_the_true_state_stays_the_true_state(name: str, spare: int) -> None:
    """Whatever is transferred like the token itself meets the same layers, cache and positions."""
    identity = (torch.eye(32),) * 3
    found = measured(Knowing(LAYERS, identity, true_states(name)), name, spare)
    n = len(TEXT) - 3 - (PROMPT - 1)
    assert {step: sorted(by_layer) for step, by_layer in found.items()} == {
        "1": ["1", "2", "3", "4"],
        "2": ["2", "3", "4"],
        "3": ["2", "3", "4"],
    }
    for by_layer in found.values():
        for cosines in by_layer.values():
            assert cosines == pytest.approx([1.0] * n, abs=1e-4)


def test_where_it_transfers_it_is_the_matrix_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    matrices = tuple(torch.randn(32, 32, generator=draw) for _ in LAYERS)
    found, states = measured(TransferMatrices(LAYERS, matrices)), true_states("llama")
    places = range(PROMPT - 1, len(TEXT) - 3)
    for step, (layer, matrix) in enumerate(zip(LAYERS, matrices, strict=True), start=1):
        at = states[layer][0]
        truth = [float(cosine_similarity(matrix @ at[p], at[p + step], dim=0)) for p in places]
        assert found[str(step)][str(layer)] == pytest.approx(truth, abs=1e-4)
    assert max(found["1"]["4"]) < 0.999


def test_other_methods_have_no_pseudo_states() -> None:
    with pytest.raises(ConfigError, match="--method lookahead: it has no pseudo states"):
        Cosines("lookahead", Proposer())


def sample(task: str, **similarity: dict[str, list[float]]) -> dict[str, Any]:
    return {"task": task, "method": "ht", "similarity": similarity}


def test_means_are_over_all_places_of_all_examples() -> None:
    rows = similarities(
        [
            sample("a", **{"1": {"4": [0.0, 1.0]}}),
            sample("a", **{"1": {"4": [0.5]}}),
            sample("b", **{"1": {"4": [0.9]}}),
        ]
    )
    found = {row.task: (row.step, row.layer, row.similarity, row.n) for row in rows}
    assert found == {
        "a": (1, 4, pytest.approx(0.5), 3),
        "b": (1, 4, pytest.approx(0.9), 1),
        "all tasks": (1, 4, pytest.approx(0.6), 4),
    }
    with pytest.raises(DataError, match="raise --max-new-tokens"):
        similarities([sample("a")])


@pytest.fixture
def addon(tmp_path: Path) -> Path:
    model, words = load_stock(ModelSpec(name=MODEL))
    tensors = {f"step.{i}": torch.eye(32) for i in (1, 2)}
    save_addon(tmp_path, "hidden-transfer", model, words, tensors, {"layers": [2, 3]})
    return tmp_path


def test_as_it_is_typed(addon: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["probe", "--what", "similarity", "--model", MODEL, "--data", "builtin"]
    words += ["--limit", "2", "--max-new-tokens", "8", "--out", str(tmp_path / "run")]
    asked = ["--method", f"hidden-transfer:addon={addon}", "--plot", str(tmp_path / "s.png")]
    assert run([*words, *asked]) == 0
    assert "Mean cosine of pseudo and true states" in capsys.readouterr().out
    assert (tmp_path / "s.png").stat().st_size > 1000
    assert run([*words, *asked, "--resume", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["step"], row["layer"]) for row in rows] == [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4)]
    assert all(-1 <= row["similarity"] <= 1 and row["n"] == 2 * 7 for row in rows)
    assert run([*words, *asked, "--resume", "--format", "csv"]) == 0
    assert len(list(csv.DictReader(io.StringIO(capsys.readouterr().out)))) == 5


def test_pseudo_states_in_the_wrong_place_end_it(
    addon: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def behind(*given: Any) -> Step:
        step = real(*given)
        return replace(step, placed=step.positions - 1)

    real = masks.behind
    monkeypatch.setattr(hidden_transfer, "behind", behind)
    words = ["probe", "--what", "similarity", "--model", MODEL, "--data", "builtin"]
    words += ["--limit", "2", "--max-new-tokens", "8", "--out", str(tmp_path / "run")]
    assert run([*words, "--method", f"hidden-transfer:addon={addon}"]) == 1
    said = capsys.readouterr().err
    assert "puts behind a text is not the model's" in said
    assert said.count("\n") == 1
    assert len(read_run(tmp_path / "run").samples) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--what similarity needs --method: whose guesses, such as hidden-transfer"),
        (["--method", "lookahead"], "--method lookahead: it has no pseudo states"),
        (["--method", "hidden-transfer", "-k", "3"], "--k goes with --what matches, not similar"),
        (["--method", "medusa", "--calibration", "x"], "--calibration goes with --what drafts"),
    ],
)
def test_bad_input_is_one_line(
    more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["probe", "--what", "similarity", "--model", MODEL, "--data", "builtin"]
    assert run([*words, "--limit", "1", *more]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
