"""Match rates by kind of layer, counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.families import tiny
from ppdbench.engine.synthetic import tokenizer
from ppdbench.probe.kinds import by_kind
from ppdbench.report.probe_tables import by_kind_sheet
from tests.cli.probed import parsed, printed
from tests.filled import StoredRanks

KINDS = ["recurrent", "attention", "recurrent", "attention"]


def sample(*by_layer: list[int], first: int = 1, **more: Any) -> dict[str, Any]:
    ranks = {str(layer): ranks for layer, ranks in enumerate(by_layer, start=first)}
    return {"task": "a", "target": "greedy", "ranks": ranks, **more}


def test_tokens_after_all_layers_of_a_kind_are_pooled_and_what_each_adds_is_averaged() -> None:
    # After the four layers 1, 2, 2 and 4 of four tokens are first choices.
    probed = StoredRanks([sample([0, 1, 5, 7], [0, 0, 2, 9], [0, 0, 3, 1], [0, 0, 0, 0])])
    recurrent, attention = by_kind(KINDS, probed, [1])
    assert (recurrent.kind, recurrent.layers, recurrent.n) == ("recurrent", 2, 8)
    assert recurrent.match_rate == pytest.approx((1 + 2) / 8)
    assert recurrent.added == pytest.approx(0)  # layer 3; nothing stands before layer 1
    assert (attention.kind, attention.layers, attention.n) == ("attention", 2, 8)
    assert attention.match_rate == pytest.approx((2 + 4) / 8)
    assert attention.added == pytest.approx((1 / 4 + 2 / 4) / 2)
    assert attention.low < attention.match_rate < attention.high


def test_examples_of_unequal_length_count_by_their_tokens() -> None:
    probed = StoredRanks([sample([0, 0, 1], [0, 0, 0]), sample([1], [0])])
    rates = {(rate.kind, rate.k): rate for rate in by_kind(KINDS[:2], probed, [1, 2])}
    assert rates["recurrent", 1].match_rate == pytest.approx(2 / 4)
    assert rates["recurrent", 2].match_rate == 1
    assert rates["attention", 1].added == pytest.approx(2 / 4)
    assert rates["attention", 2].added == 0


def test_nothing_is_added_where_the_layer_before_was_not_probed() -> None:
    (found,) = by_kind(KINDS, StoredRanks([sample([0], first=2)]), [1])
    assert (found.kind, found.layers, found.added) == ("attention", 1, None)
    assert by_kind_sheet([found]).rows == (("a", "N", "attention", 1, "100.00 >20.7", None),)


def test_trained_heads_are_told_apart_from_the_models_own() -> None:
    probed = StoredRanks([sample([1], [0], head_ranks={"1": [0]})])
    found = by_kind(KINDS[:2], probed, [1])
    assert [(r.head, r.kind, r.match_rate) for r in found] == [
        ("N", "recurrent", 0),
        ("N", "attention", 1),
        ("Y", "recurrent", 1),
    ]


def test_there_are_none_where_all_layers_are_of_one_kind() -> None:
    assert by_kind(None, StoredRanks([sample([0], [0])]), [1]) == []


def test_probes_of_hybrids_print_and_store_the_kinds_of_their_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny("jamba", vocab_size=300, max_position_embeddings=1024).save_pretrained("jamba")
    tokenizer(300, 1024).save_pretrained("jamba")
    asked = ("--model", "jamba", "--limit", 2, "--max-new-tokens", 4, "--out", "run")
    table = printed(capsys, *asked)
    header = json.loads(Path("run/run.json").read_text("utf-8"))
    assert header["model"]["layer_kinds"] == KINDS
    assert "Match rate in % by kind of layer" in table
    rows = parsed(capsys, *asked, "--resume")["by_kind"]
    assert {(row["kind"], row["layers"]) for row in rows} == {("recurrent", 2), ("attention", 2)}
