"""From accuracies to a tree: what is measured, what is read, what is chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ppdbench.engine.loading import ModelSpec
from ppdbench.errors import ConfigError
from ppdbench.trees import build as building
from ppdbench.trees.build import SIZES, BuildConfig, build_tree
from ppdbench.trees.calibration import Accuracies
from ppdbench.trees.latency import Latency
from tests.trees.made import drawn, outputs
from tests.trees.test_latency import MODEL
from tests.trees.test_latency import curve as times

SPEC = ModelSpec(name=MODEL, device="cpu")


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "calibration.json"
    drawn(0, method="medusa").save(path)
    return {"calibration": path, "model": SPEC, "measuring": {}, "context": 8, "rounds": 2}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    times(2, 2.2, 2.5, 9).save(tmp_path / "latency.json")
    return tmp_path / "latency.json"


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a pass was timed")

    monkeypatch.setattr(building, "measure_latency", refuse)


def test_the_best_of_all_sizes_is_chosen(config: dict[str, Any], stored: Path) -> None:
    built = build_tree(BuildConfig(**config, latency=stored))
    assert built.kind == "static"
    assert [point.size for point in built.points] == [2, 4, 8]
    speedups = [point.speedup or 0 for point in built.points]
    assert built.chosen.speedup == max(speedups)
    assert built.chosen.size == 4


def test_guesses_and_passes_of_two_models_make_no_tree(
    config: dict[str, Any], stored: Path, tmp_path: Path, no_model: None
) -> None:
    held = Latency.load(stored)
    known = Accuracies.counted("medusa", outputs(0))
    for model, weights, fits in (
        (held.model, held.weight_hash, True),
        (held.model, "another type", True),
        ("a copy", held.weight_hash, True),
        ("another", "one", False),
    ):
        replace(known, model=model, weights=weights).save(config["calibration"])
        again = Accuracies.load(config["calibration"])
        assert (again.model, again.weights) == (model, weights)
        if fits:
            build_tree(BuildConfig(**config, latency=stored))
    with pytest.raises(ConfigError, match=f"measured with another, passes with {held.model}"):
        build_tree(BuildConfig(**config, latency=stored))
    # Of a model that has no times yet it is told before any is taken.
    with pytest.raises(ConfigError, match="measured with another, passes with"):
        build_tree(BuildConfig(**config))


def test_the_curve_of_a_file_is_read_and_no_pass_timed(
    config: dict[str, Any], stored: Path, no_model: None
) -> None:
    built = build_tree(BuildConfig(**config, latency=stored))
    assert built.latency == Latency.load(stored)


def test_a_curve_that_is_not_there_is_measured_and_kept(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "new.json"
    built = build_tree(BuildConfig(**config, latency=path, sizes=(4, 6)))
    assert built.latency == Latency.load(path)
    assert built.latency is not None
    assert built.latency.sizes == (1, 4, 6)
    assert (built.latency.context, built.latency.rounds) == (8, 2)
    assert {point.size for point in built.points} == {4, 6}


def test_trees_with_fewer_rows_than_allowed_are_timed_as_they_are(tmp_path: Path) -> None:
    drawn(0).save(tmp_path / "calibration.json")
    built = build_tree(
        BuildConfig(
            calibration=tmp_path / "calibration.json",
            kind="static",
            sizes=(10,),
            model=SPEC,
            measuring={},
            context=8,
            rounds=1,
        )
    )
    assert built.chosen.rows == 8
    assert built.latency is not None
    assert built.latency.sizes == (1, 8, 10)


def test_a_given_size_needs_no_measurement(config: dict[str, Any], no_model: None) -> None:
    built = build_tree(BuildConfig(**config, size=5))
    assert built.latency is None
    assert (built.chosen.size, built.chosen.rows) == (5, 5)
    assert {point.size for point in built.points} == {*SIZES, 5} - {1}
    assert built.chosen.speedup is None


def test_a_given_size_is_timed_where_that_is_asked_for(config: dict[str, Any]) -> None:
    config["measuring"] = {"model": MODEL}
    built = build_tree(BuildConfig(**config, size=5, sizes=(2,)))
    assert built.latency is not None
    assert built.chosen.size == 5
    assert built.chosen.speedup is not None


def test_times_are_read_again_with_the_options_that_they_were_measured_with(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config |= {"latency": tmp_path / "here.json", "size": 5, "sizes": (2,)}
    asked = {"model": MODEL, "device": "cpu", "revision": "v1", "max_memory": "cpu=1GiB"}
    first = build_tree(BuildConfig(**{**config, "measuring": asked}))
    assert first.latency is not None
    with monkeypatch.context() as patch:
        patch.setattr(building, "measure_latency", None)
        assert build_tree(BuildConfig(**{**config, "measuring": asked})).latency == first.latency
        assert build_tree(BuildConfig(**config)).latency == first.latency
        other = {**asked, "max_memory": "cpu=2GiB"}
        with pytest.raises(ConfigError, match=r"with max_memory cpu=1GiB, .*drop --max-memory"):
            build_tree(BuildConfig(**{**config, "measuring": other}))


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("device", "cuda", None),
        ("device", "cuda:0", None),
        ("device", "cuda:1", "with device cuda:0"),
        ("device", "cpu", "with device cuda:0"),
        ("dtype", "bfloat16", None),
        ("dtype", "float32", "with dtype bfloat16, int8 weights"),
        ("dtype", "auto", None),
    ],
)
def test_times_know_a_device_and_a_type_by_what_is_typed(
    name: str, asked: str, said: str | None
) -> None:
    held = replace(times(2, 2.2, 2.5, 9), device="cuda:0", dtype="bfloat16, int8 weights")
    assert held.other(name, asked) == said


def test_a_given_size_beats_a_faster_one(config: dict[str, Any], stored: Path) -> None:
    assert build_tree(BuildConfig(**config, latency=stored, size=8)).chosen.size == 8


def test_the_largest_tree_there_is_stands_in_for_a_larger_one(tmp_path: Path) -> None:
    Accuracies("medusa", ((500, 100),), 1000).save(tmp_path / "c.json")
    config = BuildConfig(calibration=tmp_path / "c.json", size=50, model=SPEC, measuring={})
    assert build_tree(config).chosen.rows == 3


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no rows": ({"size": 0}, r"--size 0: use 1\.\.4096 rows"),
    "no rows to compare": ({"sizes": (0, 4)}, "--sizes 0"),
    "too many": ({"size": 5000}, "--size 5000"),
    "one row": ({"size": 1}, "no static tree has 1 rows or fewer; use 2 or more"),
    "beyond the file": ({"sizes": (16,), "latency": "stored"}, "timed up to 8"),
    "another model": (
        {"measuring": {"model": "mine"}, "latency": "stored"},
        r"measured with model tiny, not mine; drop --model or give --latency another file",
    ),
    "other threads": (
        {"measuring": {"dtype": "auto", "threads": 2}, "latency": "stored"},
        "measured with threads 1, not 2",
    ),
    "other weights": (
        {"measuring": {"quantize": "int8"}, "latency": "stored"},
        "measured without --quantize, not int8; drop --quantize",
    ),
    "weights of a file": (
        {"measuring": {"as_stored": True}, "latency": "stored"},
        "measured without --as-stored, not with it; drop --as-stored",
    ),
    "latency as text": ({"latency": Path("times.txt")}, "no latency format has this suffix"),
    "beyond the cache": ({"sizes": (60,)}, "cache of 64 at most"),
    "unknown kind": ({"kind": "best"}, "unknown kind of tree 'best'"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_built_is_refused(config: dict[str, Any], stored: Path, name: str) -> None:
    changes, says = BAD[name]
    if changes.get("latency") == "stored":
        changes = {**changes, "latency": stored}
    with pytest.raises(ConfigError, match=says):
        build_tree(BuildConfig(**{**config, **changes}))


def test_bad_input_is_told_before_a_model_loads(
    config: dict[str, Any], no_model: None, tmp_path: Path
) -> None:
    config["calibration"].write_text(json.dumps({"format": "ppdbench-calibration"}))
    with pytest.raises(ConfigError, match="version is missing"):
        build_tree(BuildConfig(**config))
