"""The tasks in the package: they load, they render, and three are the paper's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ppdbench.files import resources
from ppdbench.tasks import build_examples, data_files, load_rows, load_shot_rows, load_task
from ppdbench.tasks import task_names as names

EXPECTED = {
    "alpaca",
    "cnn_dailymail",
    "gsm8k",
    "humaneval",
    "mt_bench",
    "spec_bench",
    "squad",
    "topv2",
    "wmt_en_fr",
    "xsum",
}
PAPER = {"squad": "squad", "wmt_en_fr": "wmt", "cnn_dailymail": "cnn_dm"}
REAL_SPLIT = {"cnn_dailymail": "validation"}


def test_the_shipped_tasks_are_these():
    assert set(names()) == EXPECTED


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_task_has_its_own_name_and_prompt(name):
    task = load_task(name)
    assert task.name == name
    assert task.prompt.name == f"{name}.jinja"
    assert task.max_new_tokens % task.bucket == 0
    assert Path(task.source).stem == name
    assert (task.dataset.hub_id is None) == (name == "spec_bench")


def test_lengths_and_buckets_are_the_papers():
    shapes = {n: (load_task(n).max_new_tokens, load_task(n).bucket) for n in PAPER}
    assert shapes == {"squad": (16, 2), "wmt_en_fr": (128, 16), "cnn_dailymail": (128, 16)}


@pytest.mark.parametrize("name", sorted(PAPER))
def test_paper_prompts_are_exact(name):
    table = yaml.safe_load((resources.folder("papers") / "ppd_table1.yaml").read_text("utf-8"))
    printed = next(row for row in table["rows"] if row["task"] == PAPER[name])
    task = load_task(name)
    values = {field: f"<{field} of\n{{ {field} }}>" for field in task.fields}
    assert set(printed["variables"]) == set(task.fields)
    expected = printed["template"]
    for field, value in values.items():
        expected = expected.replace("{" + field + "}", value, 1)
    assert task.prompt.render(values) == expected
    # The file differs from the printed template by the braces and one last newline.
    raw = (resources.folder("prompts") / f"{name}.jinja").read_bytes().decode("utf-8")
    for field in task.fields:
        raw = raw.replace("{{ " + field + " }}", "{" + field + "}")
    assert raw == printed["template"] + "\n"


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_task_renders_its_builtin_rows(name):
    task = load_task(name)
    if not (resources.builtin_data() / name).is_dir():
        pytest.skip(f"no builtin rows for {name}")
    rows = load_rows(task, "builtin", split=None, limit=None, offline=True)
    examples = build_examples(task, rows)
    assert len(examples) == len(rows) >= 16
    _look_over(task, examples)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_task_renders_the_real_rows(name, real_data):
    task = load_task(name)
    split = REAL_SPLIT.get(name)
    rows = load_rows(task, str(real_data), split=split, limit=None, offline=True)
    examples = build_examples(task, rows)
    assert len(examples) == len(rows) >= 60
    _look_over(task, examples)


def _look_over(task, examples):
    assert len({example.id for example in examples}) == len(examples)
    for example in examples:
        assert isinstance(example.id, str)
        assert example.turns
        assert all(value in example.prompt.text for value in example.prompt.values.values())
        if task.metrics:
            assert any(example.references)


def test_mt_bench_has_two_turns_and_a_reference_per_turn(real_data):
    task = load_task("mt_bench")
    rows = load_rows(task, str(real_data), split=None, limit=None, offline=True)
    for example in build_examples(task, rows):
        assert len(example.turns) == 2
        assert example.prompt.text == example.turns[0]
        assert len(example.references) in (0, 2)


def test_alpaca_reads_the_hubs_columns_and_spec_benchs(write_jsonl):
    hub = {"instruction": "Add.", "input": "1 2", "output": "3", "text": "x"}
    plain = {"instruction": "Sing.", "input": "", "output": "la", "text": "x"}
    other = {"question_id": 7, "category": "", "turns": ["Say hi."], "reference": ["hi"]}
    task = load_task("alpaca")
    rows = load_rows(
        task, str(write_jsonl([hub, plain, other])), split=None, limit=None, offline=True
    )
    examples = build_examples(task, rows)
    assert [e.prompt.text for e in examples] == ["Add.\n\n1 2", "Sing.", "Say hi."]
    assert [e.references for e in examples] == [("3",), ("la",), ("hi",)]
    assert [e.id for e in examples] == ["0", "1", "7"]


def test_shots_come_from_the_real_training_split(real_data):
    task = load_task("gsm8k")
    rows = load_rows(task, str(real_data), split=None, limit=2, offline=True)
    pool = load_shot_rows(task, str(real_data), split=None, offline=True)
    train = load_rows(task, str(real_data), split="train", limit=3, offline=True)
    assert pool[:3] == train
    shown = build_examples(task, rows, shots=5, shot_rows=pool, seed=1)[0]
    assert shown.prompt.text.count("Question:") == 6
    assert shown.prompt.text.endswith(build_examples(task, rows)[0].prompt.text)


def test_a_missing_default_split_gives_way_to_the_only_other_one(real_data):
    assert data_files(load_task("cnn_dailymail"), str(real_data), None).name == "validation.jsonl"


def test_importing_tasks_stays_light():
    heavy = ["torch", "transformers", "datasets", "pyarrow", "click", "rich", "pandas"]
    code = f"import sys, ppdbench.tasks; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
