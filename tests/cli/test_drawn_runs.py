"""Outputs that are drawn: a seed fixes them, whatever stands beside an example or went before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.runs.store import read_whole

MODEL = ["--model", "synthetic:layers=2,hidden=16,heads=2,vocab=300", "--data", "builtin"]
DRAWN = ["--target", "top-p", "--top-p", "0.9", "--temperature", "0.8", "--warmup", "1"]
METHODS = ["layerskip:exit_layer=1", "prompt-lookup", "jacobi:window=3", "lookahead"]

Outputs = dict[tuple[str, str, str], tuple[int, ...]]


def outputs(out: str, *words: str, methods: list[str] = METHODS, seed: int = 5) -> Outputs:
    named = [word for method in methods for word in ("--method", method)]
    sizes = ["--max-new-tokens", "12", "--seed", str(seed), "--out", out]
    command = ["bench", *MODEL, *DRAWN, "--task", "xsum", "--task", "gsm8k", *named, *sizes]
    assert run([*command, *words]) == 0
    samples = read_whole(out).samples
    return {(s.task, s.example_id, s.method): tuple(s.output_ids) for s in samples}


@pytest.fixture(scope="module", autouse=True)
def somewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("drawn"))
        yield


@pytest.fixture(scope="module")
def whole() -> Outputs:
    return outputs("whole", "--limit", "3")


def test_a_seed_fixes_outputs_and_another_changes_them(whole: Outputs) -> None:
    assert outputs("again", "--limit", "3") == whole
    assert outputs("other", "--limit", "3", seed=6) != whole


def test_neither_other_methods_nor_fewer_examples_change_an_output(whole: Outputs) -> None:
    fewer = outputs("fewer", "--limit", "2", methods=METHODS[::-1][:3])
    assert fewer.items() <= whole.items()
    assert len(fewer) == 2 * 2 * 3


def test_another_method_of_the_same_name_changes_no_output(whole: Outputs) -> None:
    both = ["layerskip:exit_layer=1", "layerskip:exit_layer=1,draft_length=2"]
    found = outputs("both", "--limit", "3", methods=both)
    of_first = {
        (task, example): ids for (task, example, name), ids in found.items() if name == both[0]
    }
    wanted = {
        (task, example): ids for (task, example, name), ids in whole.items() if name == "layerskip"
    }
    assert of_first == wanted


def test_a_batch_draws_what_is_drawn_one_by_one(whole: Outputs) -> None:
    together = outputs("together", "--limit", "3", "--batch", "2")
    assert {
        (*key, name.removesuffix(" (batch 2)")): ids for (*key, name), ids in together.items()
    } == whole


def test_parts_of_a_run_draw_what_the_whole_does(whole: Outputs) -> None:
    outputs("parts", "--limit", "3", "--shard", "2/2")
    assert outputs("parts", "--limit", "3", "--shard", "1/2", "--resume") == whole


def test_a_run_that_goes_on_draws_what_it_would_have_drawn(whole: Outputs) -> None:
    outputs("broken", "--limit", "3")
    stored = Path("broken/samples.jsonl")
    lines = stored.read_text("utf-8").splitlines(keepends=True)
    assert len(lines) > 10
    # Every second line is gone, and the last is torn.
    stored.write_text("".join(lines[::2]) + lines[1][:50], "utf-8")
    assert outputs("broken", "--limit", "3", "--resume") == whole


def test_each_method_draws_for_itself(whole: Outputs) -> None:
    """Else all would have the same outputs, and agree whatever they do."""
    of_one = {
        method: ids for (task, name, method), ids in whole.items() if (task, name) == first(whole)
    }
    assert len(set(of_one.values())) == len(of_one)


def first(found: Outputs) -> tuple[str, str]:
    task, name, _ = next(iter(found))
    return task, name
