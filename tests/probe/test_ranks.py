"""Ranks as matrices: in the order of samples, made once, gaps refused by name."""

from __future__ import annotations

import pytest

from ppdbench.errors import DataError
from ppdbench.probe import ranks
from ppdbench.probe.summary import match_rates, saturation
from tests.filled import StoredRanks
from tests.report.page import made

GROUP = ("gsm8k", "greedy")


def test_outputs_of_unequal_length_leave_gaps() -> None:
    samples = [made.probed(ranks={"2": [7]}), made.probed(ranks={"2": [1, 2, 3]})]
    found = StoredRanks(samples).matrix(GROUP, "ranks", 2)
    assert found.ranks[found.known].tolist() == [7, 1, 2, 3]
    assert found.known.tolist() == [[True, False, False], [True, True, True]]


def test_each_layer_becomes_a_matrix_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made_of: list[int] = []
    rank_matrix = ranks.rank_matrix
    monkeypatch.setattr(
        ranks, "rank_matrix", lambda rows: made_of.append(len(rows)) or rank_matrix(rows)
    )
    probed = StoredRanks([made.probed("1"), made.probed("2")])
    assert match_rates(probed, (1, 3), {"gsm8k": 2})
    assert saturation(probed)
    assert made_of == [2, 2, 2, 2]  # a layer each, of two samples


def test_layers_that_a_sample_lacks_are_named() -> None:
    probed = StoredRanks([made.probed("1"), made.probed("b", ranks={"1": [0]})])
    assert probed.layers(GROUP, "ranks") == [1, 2, 3, 4]
    with pytest.raises(DataError, match="example b of gsm8k has no ranks of layer 2, others do"):
        probed.matrix(GROUP, "ranks", 2)
