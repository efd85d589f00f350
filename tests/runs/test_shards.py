"""Shares of a run: every example once, equal parts, the same ones whoever asks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppdbench.errors import ConfigError
from ppdbench.runs.shards import ALONE, Shard
from ppdbench.runs.workload import Item
from ppdbench.tasks import build_examples, load_rows, load_task

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "abc",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
}
SECOND_OF_THREE = ["0", "1", "4", "10"]  # of twelve examples


def items(count: int, task: str = "squad") -> list[Item]:
    spec = load_task(task)
    (some,) = build_examples(spec, load_rows(spec, "builtin", split=None, limit=1, offline=True))
    examples = [replace(some, id=str(n)) for n in range(count)]
    return [Item(spec, e, [1], 0, 8, number=n) for n, e in enumerate(examples)]


def names(some: list[Item]) -> list[str]:
    return [item.example.id for item in some]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_are_equal_and_together_hold_every_example_once(count: int) -> None:
    every = items(40)
    parts = [Shard(index=i, count=count, launch="x").part(every) for i in range(count)]
    assert sorted((n for part in parts for n in names(part)), key=int) == names(every)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        assert names(part) == sorted(names(part), key=int)


def test_a_share_depends_on_names_not_on_the_order_of_examples() -> None:
    shard, every = Shard(index=1, count=3, launch="x"), items(30)
    assert set(names(shard.part(every))) == set(names(shard.part(every[::-1])))
    # Fixed for good: runs are continued by later versions.
    assert names(shard.part(items(12))) == SECOND_OF_THREE


def test_neighbours_are_spread_and_tasks_are_dealt_apart() -> None:
    shard = Shard(index=0, count=2, launch="x")
    assert names(shard.part(items(40))) != [str(n) for n in range(0, 40, 2)]
    assert names(shard.part(items(40))) != names(shard.part(items(40, "xsum")))


def of_length(item: Item, length: int) -> Item:
    prompt = replace(item.example.prompt, text="x" * length)
    return replace(item, example=replace(item.example, prompt=prompt))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_parts_differ_in_work_by_no_more_than_the_longest_and_shortest_example(count: int) -> None:
    # A few are long: left to chance, one of the processes would get most of them.
    lengths = [4000 if n % 10 == 0 else 100 + n for n in range(60)]
    every = [of_length(item, length) for item, length in zip(items(60), lengths, strict=True)]
    parts = [Shard(index=i, count=count, launch="x").part(every) for i in range(count)]
    work = [sum(len(item.example.prompt.text) for item in part) for part in parts]
    assert max(work) - min(work) <= max(lengths) - min(lengths)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_a_process_gets_at_least_is_what_the_poorest_gets() -> None:
    every = [*items(2, "gsm8k"), *items(6, "squad")]
    work = [(item.task.name, item.example) for item in every]
    for count in (1, 2, 3, 5):
        shards = [Shard(index=index, count=count, launch="x") for index in range(count)]
        gets = [[item.task.name for item in shard.part(every)] for shard in shards]
        poorest = {name: min(got.count(name) for got in gets) for name in ("gsm8k", "squad")}
        assert [shard.fewest(work) for shard in shards] == [poorest] * count
    assert poorest["gsm8k"] == 0


def test_every_process_gets_as_many_examples_of_each_task() -> None:
    every = [*items(16, "gsm8k"), *items(24, "squad")]
    for index in range(4):
        part = Shard(index=index, count=4, launch="x").part(every)
        assert [item.task.name for item in part] == ["gsm8k"] * 4 + ["squad"] * 6


def test_turns_of_a_question_stay_together() -> None:
    first = items(20)
    later = [
        replace(item, example=replace(item.example, id=f"{item.example.id}/2"), after=item)
        for item in first
    ]
    for index in range(3):
        part = names(Shard(index=index, count=3, launch="x").part([*first, *later]))
        assert {name.partition("/")[0] for name in part} == {n for n in part if "/" not in n}
        assert len(part) == 2 * len([name for name in part if "/" not in name])


def test_one_process_has_everything() -> None:
    assert names(ALONE.part(items(5))) == names(items(5))
    assert (ALONE.alone, ALONE.leads, ALONE.follows, ALONE.is_job) == (True, False, False, False)


def test_torchrun_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TORCHRUN:
        monkeypatch.delenv(name, raising=False)
    assert Shard.launched() == ALONE
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    shard = Shard.launched()
    assert (shard.index, shard.count, shard.on_machine) == (1, 4, 2)
    assert shard.follows
    monkeypatch.setenv("RANK", "0")
    first = Shard.launched()
    assert first.leads
    assert first.group == shard.group
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert Shard.launched().group != shard.group


def test_a_job_is_counted_from_one() -> None:
    job = Shard.job("3/8")
    assert (job.index, job.count, job.on_machine, job.is_job) == (2, 8, None, True)
    assert Shard.job("1/1").is_job


@pytest.mark.parametrize("text", ["0/8", "9/8", "8", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_a_job_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use I/N, such as 1/8"):
        Shard.job(text)
