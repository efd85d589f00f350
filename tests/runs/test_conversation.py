"""Questions of two turns: who is asked what, and that a resumed run asks the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.cli.main import run
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import DataError
from ppdbench.runs.conversation import with_later_turns
from ppdbench.runs.store import read_run
from ppdbench.runs.workload import RunConfig, Workload, capacity
from tests.cli.test_decode_command import model_folder
from tests.families import greedy_truth, stock_model

MODEL = "synthetic:layers=3,hidden=32,heads=2,vocab=300"
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
FIXED = ("example_id", "method", "turn", "prompt_ids", "output_ids", "verdict", "cut_tokens")


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(*more: object, task: str = "mt_bench") -> list[str]:
    small = ["--model", MODEL, "--data", "builtin", "--limit", "2", "--max-new-tokens", "6"]
    return ["bench", "--task", task, "--warmup", "0", *small, "--out", "run", *map(str, more)]


TWO = ("--method", "greedy", "--method", "prompt-lookup")


def facts(folder: str = "run") -> list[dict[str, Any]]:
    return [{name: getattr(sample, name) for name in FIXED} for sample in read_run(folder).samples]


def questions(path: Path, *turns: list[str], **changes: Any) -> Path:
    rows = [{"question_id": 81 + n, "turns": t, "reference": []} for n, t in enumerate(turns)]
    path.write_text("".join(json.dumps({**row, **changes}) + "\n" for row in rows))
    return path


def test_each_question_is_decoded_in_both_turns_by_every_method() -> None:
    assert run(arguments(*TWO)) == 0
    stored = facts()
    names = [(s["example_id"], s["turn"], s["method"]) for s in stored]
    assert names == [
        (f"{question}{mark}", turn, method)
        for question in (1001, 1002)
        for mark, turn in (("", 1), ("/2", 2))
        for method in ("greedy", "prompt-lookup")
    ]
    assert {s["verdict"] for s in stored} == {"identical"}


def test_the_second_prompt_holds_greedys_first_answer() -> None:
    assert run(arguments(*TWO)) == 0
    first, _, second, other, *_ = read_run("run").samples
    asked = tokenizer(300, 1024).decode(second.prompt_ids, skip_special_tokens=True)
    row = json.loads(Path(_builtin()).read_text("utf-8").splitlines()[0])
    assert asked == f"{row['turns'][0]}{first.text}\n\n{row['turns'][1]}"
    assert other.prompt_ids == second.prompt_ids


def _builtin() -> Path:
    from ppdbench.files.resources import builtin_data

    return builtin_data() / "mt_bench" / "train.jsonl"


def test_the_chat_template_is_used_in_both_turns(tmp_path: Path) -> None:
    words = tokenizer(300, 1024)
    folder = model_folder(tmp_path / "model")
    words.chat_template = CHAT
    words.save_pretrained(folder)
    data = questions(tmp_path / "q.jsonl", ["Hello?", "And now?"])
    options = ("--model", folder, "--data", data, "--method", "greedy")
    assert run(arguments(*options)) == 0
    first, second = read_run("run").samples
    assert words.decode(first.prompt_ids) == "<user>Hello?<assistant>"
    answer = first.text.strip()
    expected = f"<user>Hello?<assistant>{answer}<user>And now?<assistant>"
    assert second.prompt_ids == words(expected, add_special_tokens=False)["input_ids"]


def test_the_second_answer_is_the_one_of_generate(tmp_path: Path) -> None:
    data = questions(tmp_path / "q.jsonl", ["Hello?", "And now?"])
    folder = model_folder(tmp_path / "model")
    assert run(arguments("--model", folder, "--data", data, "--method", "greedy")) == 0
    model = stock_model("llama", vocab_size=300, max_position_embeddings=1024)
    model.generation_config.eos_token_id = 299
    for sample in read_run("run").samples:
        assert sample.output_ids == greedy_truth(model, sample.prompt_ids, 6)


@pytest.mark.parametrize("kept", [1, 2, 3, 6])
def test_a_run_resumed_after_any_sample_asks_the_same(kept: int) -> None:
    assert run(arguments(*TWO)) == 0
    whole = facts()
    path = Path("run") / "samples.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    assert run(arguments(*TWO, "--resume")) == 0
    assert facts() == whole


def test_sampled_answers_are_asked_about_again_after_a_resume() -> None:
    drawn = ("--method", "greedy", "--target", "top-p")
    assert run(arguments(*drawn)) == 0
    whole = facts()
    path = Path("run") / "samples.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert run(arguments(*drawn, "--resume")) == 0
    assert facts() == whole


def test_questions_of_one_turn_stay_as_they_are(tmp_path: Path) -> None:
    data = questions(tmp_path / "q.jsonl", ["Only this."], ["This.", "And this."])
    assert run(arguments("--data", data, "--method", "greedy", task="spec_bench")) == 0
    names = [(s.example_id, s.turn) for s in read_run("run").samples]
    assert names == [("81", 1), ("82", 1), ("82/2", 2)]


# What is known before anything is answered


def workload(data: Path, new_tokens: int = 6) -> tuple[Workload, Any]:
    spec = ModelSpec(name=MODEL)
    config = RunConfig(model=spec, tasks=("mt_bench",), data=str(data), max_new_tokens=new_tokens)
    return Workload.read(config), load(spec)


def test_there_is_room_for_the_longest_answer(tmp_path: Path) -> None:
    work, loaded = workload(questions(tmp_path / "q.jsonl", ["Hello?", "And now?"]), 6)
    items = with_later_turns(work.encode(loaded), loaded)
    assert [item.turn for item in items] == [1, 2]
    longest = len("Hello?\n\nAnd now?") + 1 + 6 + 6
    assert longest <= capacity(items) <= longest + 20


def test_references_go_with_their_turns(tmp_path: Path) -> None:
    both = questions(tmp_path / "q.jsonl", ["a", "b"], reference=["A", "B"])
    items = with_later_turns(*_encoded(both))
    assert [item.example.references for item in items] == [("A",), ("B",)]
    one = questions(tmp_path / "p.jsonl", ["a", "b"], reference=["A"])
    items = with_later_turns(*_encoded(one))
    assert [item.example.references for item in items] == [("A",), ("A",)]


def _encoded(data: Path) -> tuple[Any, Any]:
    work, loaded = workload(data)
    return work.encode(loaded), loaded


def test_a_second_question_that_cannot_fit_is_told_before_any_answer(tmp_path: Path) -> None:
    long = questions(tmp_path / "q.jsonl", ["a", "b" * 5000])
    work, loaded = workload(long)
    with pytest.raises(DataError, match=r"mt_bench example 81/2 needs 50\d\d prompt tokens"):
        with_later_turns(work.encode(loaded), loaded)


def test_an_id_that_looks_like_a_turn_is_refused(tmp_path: Path) -> None:
    rows = [{"question_id": n, "turns": ["a", "b"], "reference": []} for n in ("8", "8/2")]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    work, loaded = workload(path)
    with pytest.raises(DataError, match=r"mt_bench: '8/2' is an example's id and a turn"):
        with_later_turns(work.encode(loaded), loaded)
