"""The section on the setting: what was run, on what, and with which options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.report.page.document import page
from ppdbench.report.page.runs import Run, read_runs
from ppdbench.report.page.sections.setting import section, told_of
from tests.report.page import made


def run_of(folder: Path) -> Run:
    (run,) = read_runs([folder])
    return run


def told(folder: Path, **changes: Any) -> dict[str, str]:
    """What the card of a run says, as text, under its names."""
    found = told_of(run_of(made.bench(folder, **changes)))
    return {name: value if isinstance(value, str) else str(value) for name, value in found if value}


def shown(run: Run) -> str:
    return str(section([run]).node())


def test_a_page_says_what_was_run_on_what(tmp_path: Path) -> None:
    runs = made.bench(tmp_path / "bench"), made.probe(tmp_path / "probe")
    full = page(read_runs([*runs, made.pipelined(tmp_path / "pipelined")])).text
    for words in ("ppdbench bench --task gsm8k", "feed", "float32", "Some CPU", "c0ffee012345"):
        assert words in full, words


def test_random_weights_are_called_random(tmp_path: Path) -> None:
    text = page(read_runs([made.bench(tmp_path / "a", model__synthetic=True)])).text
    assert "The weights are random" in text
    assert "random weights" in told(tmp_path / "b", model__synthetic=True)["Model"]


def test_a_card_names_model_machine_tasks_and_moment(tmp_path: Path) -> None:
    card = told(tmp_path / "run")
    assert card["Model"] == "tiny, llama, 4 layers"
    assert card["Ran on"] == "cpu, Some CPU, 1 of 2 cores"
    assert card["Tasks"] == "gsm8k (6 examples); up to 4 new tokens"
    assert card["Started"] == "2026-01-02 03:04:05 UTC"
    assert card["Numbers"] == "float32"
    assert "Processes" not in card


def test_a_card_of_one_example_says_so(tmp_path: Path) -> None:
    folder = made.bench(tmp_path / "run")
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines(keepends=True)
    first = json.loads(lines[0])["example_id"]
    kept = [line for line in lines if json.loads(line)["example_id"] == first]
    (folder / "samples.jsonl").write_text("".join(kept), "utf-8")
    assert dict(told_of(run_of(folder)))["Tasks"] == "gsm8k (1 example); up to 4 new tokens"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__revision": "v2"}, "tiny, revision v2, llama, 4 layers"),
        ({"model__part_of": "whole"}, "tiny, the text part of whole, llama, 4 layers"),
        (
            {"model__adapter": "lora", "model__adapter_hash": "beef"},
            "tiny, adapter lora (beef), llama, 4 layers",
        ),
    ],
)
def test_what_belongs_to_a_model_stands_beside_its_name(
    changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    assert told(tmp_path / "run", **changes)["Model"] == words


def test_weights_from_a_file_of_several_types_are_counted_by_type(tmp_path: Path) -> None:
    changes = {"model__gguf": "m.gguf", "model__gguf_weights": {"Q4_K": 12345, "F32": 7}}
    numbers = told(tmp_path / "run", **changes)["Numbers"]
    assert numbers == "float32, from GGUF m.gguf (12,345 in Q4_K, 7 in F32 weights)"


def test_changes_beyond_the_commit_are_said(tmp_path: Path) -> None:
    git = {"commit": "c0ffee0123456789", "modified": True}
    clean, changed = made.bench(tmp_path / "a"), made.bench(tmp_path / "b", environment__git=git)
    assert ", with changes" not in shown(run_of(clean))
    assert ", with changes" in shown(run_of(changed))


def test_a_torn_last_line_is_told_on_the_card(tmp_path: Path) -> None:
    folder = made.bench(tmp_path / "run")
    sentence = "The last line of its samples is incomplete and left out."
    assert sentence not in shown(run_of(folder))
    with (folder / "samples.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"task": "gs')
    assert sentence in shown(run_of(folder))
