"""`python -m benchmarks.plain_ranks`: stored ranks are those of plain code, and others are told."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import plain_ranks
from ppdbench.api import probe
from ppdbench.engine.loading import ModelSpec, load_stock
from ppdbench.runs.records import ProbedSample
from ppdbench.runs.store import read_whole

TINY = "synthetic:layers=3,hidden=32,heads=2,vocab=300,context=512"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A probe of two examples in float32."""
    out = tmp_path_factory.mktemp("plain") / "run"
    probe(TINY, "squad", data="builtin", limit=2, max_new_tokens=6, out=out)
    return out


def test_ranks_of_a_probe_are_those_of_plain_code(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plain_ranks.main([str(run)]) == 0
    assert "12 positions, 36 ranks: 36 equal, 0 differ by rounding, 0 are wrong" in (
        capsys.readouterr().out
    )


def test_a_rank_that_is_off_is_told(run: Path) -> None:
    sample = next(iter(read_whole(run).samples))
    assert isinstance(sample, ProbedSample)
    ranks = {layer: list(of_layer) for layer, of_layer in sample.ranks.items()}
    ranks["2"][3] += 1
    spoiled = msgspec.structs.replace(sample, ranks=ranks)
    stock, _ = load_stock(ModelSpec(name=TINY))
    (found,) = plain_ranks.differences(stock, spoiled)
    assert found.where.endswith("layer 2, position 3")
    assert (found.stored - found.plain, found.is_rounding) == (1, False)


def test_what_is_kept_is_what_was_counted(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "ranks.json"
    assert plain_ranks.main([str(run), "--save", str(kept)]) == 0
    content = json.loads(kept.read_text("utf-8"))
    (sheet,) = plain_ranks.sheets(content)
    assert sheet.rows == ((12, 3, 36, 36, 0, 0),)
    assert content["tasks"] == ["squad"]
