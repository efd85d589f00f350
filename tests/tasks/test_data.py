"""Rows from files, folders and the hub, and the one line for what cannot be read."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ppdbench.errors import ConfigError, DataError
from ppdbench.tasks import load_rows, load_shot_rows, load_task
from tests.tasks.made import SQUAD, data_fails, rows_of


def test_limit_keeps_the_head_and_too_large_a_limit_everything(write_jsonl):
    path = write_jsonl(SQUAD)
    assert [row.number for row in rows_of(path, limit=2)] == [0, 1]
    assert len(rows_of(path, limit=99)) == len(rows_of(path, limit=1 << 70)) == 5


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(write_jsonl, limit):
    data_fails(write_jsonl(SQUAD), f"limit={limit}", error=ConfigError, limit=limit)


def test_a_seed_samples_in_file_order(write_jsonl):
    path = write_jsonl([{**SQUAD[0], "id": str(i)} for i in range(50)])
    numbers = [row.number for row in rows_of(path, limit=10, seed=3)]
    assert numbers == sorted(numbers) and len(set(numbers)) == 10
    assert numbers == [row.number for row in rows_of(path, limit=10, seed=3)]
    assert numbers != [row.number for row in rows_of(path, limit=10, seed=4)]
    assert len(rows_of(path, limit=99, seed=3)) == 50


def test_a_task_without_builtin_rows_says_so(write_task):
    task = load_task(str(write_task()))
    with pytest.raises(DataError, match="mine has no builtin examples; give --data PATH"):
        load_rows(task, "builtin", split=None, limit=None, offline=True)


def test_shots_come_from_the_training_file_if_there_is_one(write_jsonl, tmp_path):
    task = load_task("squad")
    alone = write_jsonl(SQUAD[:2], "one/validation.jsonl")
    write_jsonl(SQUAD[:2], "two/validation.jsonl")
    write_jsonl(SQUAD[2:], "two/train.jsonl")

    def pool(data):
        return [row.columns for row in load_shot_rows(task, str(data), split=None, offline=True)]

    assert pool(alone) == pool(tmp_path / "one") == SQUAD[:2]
    assert pool(tmp_path / "two") == SQUAD[2:]


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for `datasets` that records its calls."""
    calls = []

    def load_dataset(*args, **kwargs):
        calls.append((args, kwargs, fake.config.HF_HUB_OFFLINE))
        if fake.error is not None:
            raise fake.error
        return iter(SQUAD)

    fake = SimpleNamespace(
        load_dataset=load_dataset,
        config=SimpleNamespace(HF_HUB_OFFLINE=False),
        error=None,
        calls=calls,
    )
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return fake


def from_hub(task="squad", offline=False, **options):
    options = {"split": None, "limit": 2, **options}
    return load_rows(load_task(task), "hub", offline=offline, **options)


def test_the_hub_is_asked_for_the_tasks_set(hub):
    assert [row.columns for row in from_hub()] == SQUAD[:2]
    from_hub(split="train")
    from_hub("wmt_en_fr")
    from_hub(offline=True)
    validation = {"split": "validation", "streaming": False}
    assert hub.calls == [
        (("rajpurkar/squad", None), validation, False),
        (("rajpurkar/squad", None), {"split": "train", "streaming": False}, False),
        (("wmt/wmt15", "fr-en"), {"split": "test", "streaming": True}, False),
        (("rajpurkar/squad", None), validation, True),
    ]
    assert hub.config.HF_HUB_OFFLINE is False


@pytest.mark.parametrize(
    "error", [ConnectionError("no route\nto host"), ValueError("Unknown split"), RuntimeError()]
)
def test_hub_failures_are_one_line_with_a_way_out(hub, error):
    hub.error = error
    with pytest.raises(DataError) as caught:
        from_hub()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("rajpurkar/squad, split validation: cannot be loaded: ")
    assert "give --data PATH" in message and "--data builtin" in message


def test_offline_without_a_cached_copy_names_the_ways_out(hub):
    hub.error = ConnectionError("offline")
    with pytest.raises(DataError, match=r"--offline.*--data PATH.*--data builtin"):
        from_hub(offline=True)
    with pytest.raises(DataError, match=r"--offline.*--data PATH.*--data builtin"):
        from_hub("wmt_en_fr", offline=True)
    assert len(hub.calls) == 1


def test_a_task_without_hub_set_says_where_its_file_is(hub):
    with pytest.raises(DataError, match=r"give --data PATH \(question.jsonl .*Spec-Bench"):
        from_hub("spec_bench")
    assert hub.calls == []
