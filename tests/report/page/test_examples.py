"""The data behind single examples: compact, most telling first, within its room."""

import json
from pathlib import Path
from typing import Any

import msgspec

from ppdbench.files.resources import reference_model
from ppdbench.report.page import examples as subject
from ppdbench.report.page.examples import gathered, rank_characters, without_middle
from ppdbench.report.page.runs import read_runs
from ppdbench.report.page.tokens import texts_of
from tests.report.page import made


def content(folder: Path, room: int = 10**6) -> dict[str, Any]:
    (found,) = gathered(read_runs([folder]), room)
    return found


def run_of(tmp_path: Path, *samples: dict[str, Any]) -> Path:
    head = made.header("bench", methods=made.methods("swift"))
    return made.write(tmp_path / "run", head, list(samples))


def test_equal_outputs_are_kept_once(tmp_path: Path) -> None:
    found = content(made.bench(tmp_path / "run"))
    assert found["outputs"] == [[5, 6, 7, 8, 9]]
    assert {e["output"] for x in found["examples"] for e in x["entries"]} == {0}


def test_what_is_out_of_the_ordinary_comes_first(tmp_path: Path) -> None:
    folder = run_of(
        tmp_path,
        made.decoded("swift", "1"),
        made.decoded("swift", "2", verdict="tie", first_difference=1, baseline_ids=[5, 9]),
        made.decoded("swift", "3", verdict="mismatch", first_difference=0, baseline_ids=[1]),
        made.decoded("swift", "4", verdict="failed", output_ids=[], error="ran dry"),
    )
    found = content(folder)
    assert [example["id"] for example in found["examples"]] == ["4", "3", "2", "1"]
    failed, mismatch, tie, _ = [example["entries"][0] for example in found["examples"]]
    assert failed["error"] == "ran dry"
    assert mismatch["at"] == 0
    assert found["outputs"][tie["greedy"]] == [5, 9]


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    folder = run_of(tmp_path, *(made.decoded("swift", str(n)) for n in range(200)))
    found = content(folder, room=5_000)
    assert found["total"] == 200
    assert 5 < len(found["examples"]) < 100
    assert len(json.dumps(found, separators=(",", ":"))) < 6_000


def test_each_run_has_its_share_of_the_room(tmp_path: Path) -> None:
    long, short = made.probe(tmp_path / "long", n=500), made.bench(tmp_path / "short")
    first, second = gathered(read_runs([long, short]), room=20_000)
    assert len(first["examples"]) < 500
    assert len(second["examples"]) == 6


def test_ranks_are_one_character_each() -> None:
    assert rank_characters([0, 9, 10, 35, 36, 4000]) == "09azzz"


def test_layers_of_a_probe_travel_with_it(tmp_path: Path) -> None:
    sample = made.probed(head_ranks={"2": [0, 0, 0, 0]}, predictions={"2": [5, 6, 7, 1]})
    found = content(made.write(tmp_path / "run", made.header("probe"), [sample]))
    (entry,) = found["examples"][0]["entries"]
    assert entry["ranks"]["2"] == "0301"
    assert entry["trained"] == {"2": "0000"}
    assert found["outputs"][entry["own"]["2"]] == [5, 6, 7, 1]


def test_long_texts_lose_their_middle() -> None:
    text = "a" * 2000 + "b" * 2000
    assert without_middle("short") == "short"
    assert len(without_middle(text)) < subject.LONGEST_TEXT + 10
    assert without_middle(text).startswith("aa")
    assert without_middle(text).endswith("bb")


def test_without_a_tokenizer_ids_stay_ids(tmp_path: Path) -> None:
    found = content(made.bench(tmp_path / "run"))
    assert found["texts"] is False
    assert found["words"] == {}


def reference(tmp_path: Path, **changes: Any) -> Path:
    head = made.header("bench", methods=made.methods("swift"), model__name="reference")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(reference_model("tokenizer.json")))
    ids = tokenizer.encode("the cost of paper").ids
    sample = made.decoded("swift", output_ids=ids, text="the cost of paper", **changes)
    return made.write(tmp_path / "run", head, [sample])


def test_tokens_of_the_embedded_model_become_words(tmp_path: Path) -> None:
    found = content(reference(tmp_path))
    words = [found["words"][token] for token in found["outputs"][0]]
    assert "".join(words) == "the cost of paper"
    assert " cost" in words


def test_a_tokenizer_that_does_not_give_the_stored_text_is_not_believed(tmp_path: Path) -> None:
    (run,) = read_runs([reference(tmp_path)])
    (stored,) = run.stored.samples
    sample = msgspec.structs.replace(stored, text="something else")
    assert texts_of(run.header, [stored]) is not None
    assert texts_of(run.header, [sample]) is None
