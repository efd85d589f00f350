"""The benchmark of quality: scores are those of `decode`, with what asked for them."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import quality
from benchmarks.quality import AskedWay
from ppdbench.api import decode
from ppdbench.runs.records import DecodedSample
from ppdbench.runs.store import read_once
from ppdbench.scoring import score_samples
from ppdbench.tasks import load_task

WAYS = (AskedWay("squad", quality.AS_IT_IS), AskedWay("gsm8k", quality.AS_IT_IS))
FEW = ["--limit", "3", "--dtype", "float32", "--max-new-tokens", "6", "--work", "answers"]


@pytest.mark.parametrize(
    ("rows", "data", "is_offline"),
    [("builtin", "builtin", True), ("hub", "hub", False), ("data", "data/squad", True)],
)
def test_rows_come_from_the_package_the_hub_or_a_folder(
    rows: str, data: str, is_offline: bool
) -> None:
    asked = Namespace(
        model="m", dtype="float32", rows=rows, limit=3, max_new_tokens=None, work=Path("work")
    )
    config = quality.settings(asked, AskedWay("squad", "briefly", "Be brief."))
    assert (config.data, config.model.offline, config.chat.system) == (
        data,
        is_offline,
        "Be brief.",
    )


def test_scores_are_those_of_a_run_and_answers_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(quality, "WAYS", WAYS)
    monkeypatch.chdir(tmp_path)
    quality.main(["--model", "reference", *FEW, "--save", "kept.json"])
    content = json.loads(Path("kept.json").read_text("utf-8"))
    squad, gsm8k = content["ways"]
    decode("reference", task="squad", limit=3, max_new_tokens=6, data="builtin", out="run")
    stored = [s for s in read_once("run").samples if isinstance(s, DecodedSample)]
    whole = score_samples(["squad_f1", "squad_em"], stored)
    assert {name: value for name, (value, _, _) in squad["scores"].items()} == pytest.approx(whole)
    made = json.loads((Path("answers") / WAYS[0].file).read_text("utf-8"))["answers"]
    assert [each["output_ids"] for each in made] == [list(s.output_ids) for s in stored]
    assert (squad["outputs"], squad["tokens"]) == (3, 6)
    assert (squad["named"], gsm8k["named"]) == (None, 0)
    assert content["machine"] in capsys.readouterr().out.replace("\n", " ")
    monkeypatch.setattr(quality, "answers", pytest.fail)
    quality.main(["--model", "reference", *FEW, "--save", "again.json"])
    assert json.loads(Path("again.json").read_text("utf-8")) == content


def test_the_words_that_ask_stand_in_a_table() -> None:
    scores = {"rouge2": (0.1, 0.0, 0.2), "rougeL": (0.2, 0.1, 0.3)}
    shown = {"outputs": 3, "ended": 2, "tokens": 9.0, "named": None, "scores": scores}
    way = AskedWay("xsum", "briefly", "Be brief.", shots=2, chat="on")
    ways = [{"task": "xsum", "how": "briefly", "words": way.words, **shown}]
    about = {"model": "m", "dtype": "float32", "rows": "Rows", "machine": "a machine"}
    table, words = quality.sheets({**about, "ways": ways})
    assert [row[2:5] for row in table.rows] == [
        ("rouge2", 0.1, "0.000..0.200"),
        ("rougeL", 0.2, "0.100..0.300"),
    ]
    assert words.rows == (("xsum", "briefly", "--chat on --system 'Be brief.' --shots 2"),)


def test_a_prompt_may_stand_in_the_place_of_the_task_s(tmp_path: Path) -> None:
    prompt = '{{ question }}\n\n"{{ context }}"'
    way = AskedWay("squad", "the question first", prompt=prompt)
    task, shipped = load_task(way.task_option(tmp_path)), load_task("squad")
    assert task.prompt.text == prompt
    assert task.shot is not None
    assert shipped.shot is not None
    assert task.shot.text == shipped.shot.text
    same = {name: getattr(shipped, name) for name in ("prompt", "shot", "source")}
    assert replace(task, **same) == shipped
    assert way.words == f"--task FILE, prompt_text: {json.dumps(prompt)} in it"
    assert AskedWay("squad", "plainly").task_option(tmp_path) == "squad"
