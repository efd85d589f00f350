"""What a run works on: read and refused before any weights, known by a hash, cut to what fits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.engine.loading import REFERENCE, Loaded, ModelSpec, load
from ppdbench.errors import ConfigError
from ppdbench.runs.workload import RunConfig, Workload, capacity, usual_data
from tests.conftest import ROOT

SPEC = ModelSpec(name="synthetic:layers=1,hidden=32,heads=2,vocab=300,context=512")
QUESTIONS = ["What is one?", "What is two?", "And what are all of the numbers from three on?"]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(SPEC)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Rows for `topv2`, each an example whose prompt holds the question."""
    path = tmp_path / "rows.jsonl"
    rows = [{"utterance": text, "semantic_parse": "[IN:ASK ]"} for text in QUESTIONS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def read(data: Path, **options: Any) -> Workload:
    config = {"model": SPEC, "tasks": ("topv2",), "data": str(data), **options}
    return Workload.read(RunConfig(**config))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tasks": ("",)}, "--task is empty"),
        ({"tasks": ("xsum", "gsm8k", "xsum")}, "task xsum is given twice"),
        ({"limit": 0}, "--limit 0: use 1 or more"),
        ({"max_new_tokens": 0}, "--max-new-tokens 0: use 1 or more"),
        ({"max_new_tokens": 1 << 40}, r"--max-new-tokens \d+: use \d+ or less"),
        ({"shots": -1}, "--shots -1: use 0 or more"),
    ],
)
def test_options_that_cannot_be_are_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RunConfig(**{"model": SPEC, "tasks": ("xsum",), **options})


def test_one_task_under_two_names_is_refused(data: Path) -> None:
    file = str(ROOT / "tasks" / "topv2.yaml")
    with pytest.raises(ConfigError, match=r"task topv2 is given twice, once as .*topv2\.yaml"):
        read(data, tasks=("topv2", file))


@pytest.mark.parametrize(
    ("asked", "model", "source"),
    [
        (None, None, "builtin"),
        (None, REFERENCE, "builtin"),
        (None, "./mine", "hub"),
        ("hub", REFERENCE, "hub"),
        ("rows.jsonl", None, "rows.jsonl"),
    ],
)
def test_examples_come_from_the_package_with_its_own_model_alone(
    asked: str | None, model: str | None, source: str
) -> None:
    assert usual_data(asked, model) == source


def test_the_source_says_what_was_asked_and_by_a_hash_which_questions(data: Path) -> None:
    source = read(data).sources["topv2"]
    assert (source.examples, source.file) == (3, "rows.jsonl")
    assert read(data).sources["topv2"].sha256 == source.sha256
    # The first examples are those of a shorter run; other questions are others.
    assert read(data, limit=2).sources["topv2"] == read(data).first("topv2", 2) != source
    assert source.sha256 != read(data).first("topv2", 2).sha256
    data.write_text(data.read_text("utf-8").replace("three", "four"), "utf-8")
    assert read(data).sources["topv2"].sha256 != source.sha256
    assert read(data).first("topv2", 2) == read(data, limit=2).sources["topv2"]


def test_every_turn_of_a_conversation_counts_and_has_its_part_in_the_hash(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"question_id": n, "turns": ["a", f"b{n}"], "reference": []} for n in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    source = read(path, tasks=("mt_bench",)).sources["mt_bench"]
    assert (source.examples, source.turns) == (3, 6)
    path.write_text(path.read_text("utf-8").replace("b2", "c2"), "utf-8")
    assert read(path, tasks=("mt_bench",)).sources["mt_bench"].sha256 != source.sha256


def test_prompts_and_the_cache_have_room_for_the_longest_output(data: Path, loaded: Loaded) -> None:
    work = read(data, max_new_tokens=100)
    items = work.encode(loaded)
    assert [item.number for item in items] == [0, 1, 2]
    assert not any(item.cut_tokens for item in items)
    shortest, *_, longest = sorted(len(item.ids) for item in items)
    assert capacity(items) == longest + 100
    assert 100 < work.context() <= capacity(items)  # before there is a tokenizer: about
    tight = read(data, max_new_tokens=loaded.max_positions - shortest).encode(loaded)
    assert capacity(tight) == loaded.max_positions
    assert not tight[0].cut_tokens
    assert tight[-1].cut_tokens


def test_outputs_that_leave_no_room_for_a_prompt_are_refused(data: Path, loaded: Loaded) -> None:
    most = loaded.max_positions
    with pytest.raises(ConfigError, match=f"{most} leaves no room for a prompt"):
        read(data, max_new_tokens=most).encode(loaded)
