"""Accuracies: what they say, how sure they are, what their file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.errors import ConfigError
from ppdbench.trees.calibration import CLOSE, Accuracies
from ppdbench.trees.record import RankedOutput
from tests.trees.made import outputs

SOME = Accuracies("medusa", ((600, 200, 50), (400, 100, 80)), 1000)


def test_probabilities_are_the_share_of_hits() -> None:
    assert SOME.p(0, 0) == 0.6
    assert SOME.p(1, 2) == 0.08
    assert SOME.distances == 2


def test_intervals_hold_the_share_and_shrink_with_tokens() -> None:
    low, high = SOME.interval(0, 1)
    assert low < 0.2 < high
    few = Accuracies("medusa", ((20,),), 100).interval(0, 0)
    assert few[1] - few[0] > 2 * (high - low)


def test_few_tokens_are_warned_of_with_the_interval() -> None:
    few = Accuracies("medusa", ((30,),), 50)
    assert "only 50 tokens" in few.doubt()
    assert "60.0% of the time" in few.doubt()
    assert "from 46.2% to 72.4%" in few.doubt()
    assert Accuracies("medusa", ((180,),), 300).doubt() != ""
    assert Accuracies("medusa", ((240,),), 400).doubt() == ""
    assert Accuracies("medusa", ((6,),), 300).doubt() == ""  # what is rare is known sooner


def test_outputs_and_not_their_tokens_are_what_an_interval_is_over() -> None:
    """Ten outputs, each all right or all wrong, say no more than ten tokens."""
    lines = [("0" if n % 2 else ".") * 400 for n in range(10)]
    known = Accuracies.counted("medusa", [RankedOutput("a", (line,)) for line in lines])
    low, high = known.interval(0, 0)
    assert (low, high) == pytest.approx((0.5 - high + 0.5, high))
    assert 0.22 < low < 0.27  # Wilson's of 5 in 10: [0.237, 0.763]
    assert high - low > 2 * CLOSE
    assert "only 4000 tokens" in known.doubt()
    one = Accuracies("medusa", known.hits, known.n)
    assert one.doubt() == ""


def test_saved_accuracies_are_read_back(tmp_path: Path) -> None:
    SOME.save(tmp_path / "a.json")
    assert Accuracies.load(tmp_path / "a.json") == SOME


def test_outputs_are_counted_where_every_distance_has_a_token() -> None:
    known = Accuracies.counted(
        "medusa", [RankedOutput("a", ("0010", "1.0")), RankedOutput("b", ("2", ""))]
    )
    assert known.n == 3
    assert [row[:3] for row in known.hits] == [(2, 1, 0), (1, 1, 0)]


def test_outputs_are_kept_place_by_place_a_line_each(tmp_path: Path) -> None:
    known = Accuracies.counted("medusa", outputs(0))
    known.save(tmp_path / "a.json")
    assert Accuracies.load(tmp_path / "a.json") == known
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["version"] == 2
    first = content["outputs"][0]
    assert (first["task"], [len(line) for line in first["ranks"]]) == ("task 0", [40, 39, 38])
    assert sum("task" in line for line in (tmp_path / "a.json").read_text().splitlines()) == 6


def test_counts_alone_are_what_version_1_has(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(
        '{"format": "ppdbench-calibration", "version": 1, "method": "medusa", "n": 10, '
        '"hits": [[6, 2]]}'
    )
    assert Accuracies.load(path) == Accuracies("medusa", ((6, 2),), 10)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "more hits than positions": ({"hits": [[600, 401]]}, "1001 hits at distance 1 of only 1000"),
    "negative": ({"hits": [[5, -1]]}, "hits at distance 1 must be whole numbers"),
    "fraction": ({"hits": [[0.5]]}, "hits at distance 1 must be whole numbers"),
    "nothing": ({"hits": []}, "a list for each distance"),
    "nothing at a distance": ({"hits": [[5], []]}, "a list for each distance"),
    "flat": ({"hits": [600, 200]}, "hits holds the number 600"),
    "no positions": ({"n": 0, "hits": [[0]]}, "n=0 positions"),
    "text": ({"n": "many"}, "n must be a whole number"),
    "no method": ({"method": ""}, "method must be text"),
    "unknown": ({"model": "x"}, "unknown key model"),
    "format": ({"format": "ppdbench-tree"}, "is no calibration file"),
    "version": ({"version": 7}, "version 7, but this ppdbench reads 1 and 2"),
    "another version's keys": ({"version": 2}, "the key outputs is missing"),
}


ONE = {"task": "a", "ranks": ["00", "0"]}
BAD_OUTPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"outputs": []}, "there are no outputs"),
    "missing": ({"outputs": None}, "outputs must be a list, not null"),
    "no mapping": ({"outputs": ["00"]}, "output 1 must be a mapping"),
    "no task": ({"outputs": [{"ranks": ["0"]}]}, "output 1: the key task is missing"),
    "numbers": ({"outputs": [ONE, {"task": "a", "ranks": [0]}]}, "output 2: ranks must be a list"),
    "no ranks": ({"outputs": [{"task": "a", "ranks": []}]}, "output 1: an output has no ranks"),
    "strange": ({"outputs": [{"task": "a", "ranks": ["0z"]}]}, "output 1: .* hold 'z'"),
    "ragged": ({"outputs": [{"task": "a", "ranks": ["00", "00"]}]}, "output 1: 2 ranks at dist"),
    "unequal": ({"outputs": [ONE, {"task": "a", "ranks": ["0"]}]}, "with 1 and 2 distances"),
    "too short": ({"outputs": [{"task": "a", "ranks": ["0", ""]}]}, "n=0 positions"),
    "unknown": ({"outputs": [{**ONE, "method": "x"}]}, "output 1: unknown key method"),
    "counts": ({"outputs": [ONE], "n": 4}, "unknown key n"),
}


@pytest.mark.parametrize("name", BAD_OUTPUTS)
def test_bad_outputs_are_told_with_their_file(tmp_path: Path, name: str) -> None:
    changes, says = BAD_OUTPUTS[name]
    path = tmp_path / "a.json"
    good = {"format": "ppdbench-calibration", "version": 2, "method": "medusa"}
    path.write_text(json.dumps({**good, **changes}))
    with pytest.raises(ConfigError, match=says) as raised:
        Accuracies.load(path)
    assert str(raised.value).count("a.json") == 1


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_told_with_their_name(tmp_path: Path, name: str) -> None:
    changes, says = BAD[name]
    good = {"format": "ppdbench-calibration", "version": 1, "method": "medusa", "n": 1000}
    path = tmp_path / "a.json"
    path.write_text(json.dumps({**good, "hits": [[600, 200]], **changes}))
    with pytest.raises(ConfigError, match=says) as raised:
        Accuracies.load(path)
    assert "a.json" in str(raised.value)


def test_a_missing_file_is_told_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="probe --what drafts --calibration FILE"):
        Accuracies.load(tmp_path / "none.json")
