"""Answers to train on: what the model itself writes, one line each, gone on with after a kill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ppdbench.cli.main import run
from ppdbench.engine.synthetic import tokenizer
from ppdbench.files.lock import written_alone
from tests.families import stock_model
from tests.words import sentencepiece

PROMPTS = ["The first prompt", "Another one, a little longer", "Three", "x " * 60]
TOKENS = 8
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<answer>"
ANSWERS = ["answers", "--model", "./model", "--text", "prompts.jsonl", "--column", "prompt"]
SMALL = ["--max-new-tokens", str(TOKENS), "--max-prompt-tokens", "70", "--batch", "2"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model that has a chat template, and prompts."""
    stock_model("llama", vocab_size=300).save_pretrained(tmp_path / "model")
    words = tokenizer(300, 96)
    words.chat_template = TEMPLATE
    words.save_pretrained(tmp_path / "model")
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS)
    (tmp_path / "prompts.jsonl").write_text(lines, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path) -> dict[int, dict[str, Any]]:
    lines = (folder / "answers.jsonl").read_text("utf-8").splitlines()
    return {line["number"]: line for line in map(json.loads, lines)}


def test_answers_are_what_generate_writes_after_the_chat_template(home: Path) -> None:
    assert run([*ANSWERS, *SMALL, "--out", "out"]) == 0
    model = AutoModelForCausalLM.from_pretrained("./model")
    words = AutoTokenizer.from_pretrained("./model")
    found = written(home / "out")
    assert sorted(found) == [0, 1, 2]  # the fourth is too long
    for number, line in found.items():
        asked = [{"role": "user", "content": PROMPTS[number]}]
        prompt = words.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        ids = words(prompt, return_tensors="pt", add_special_tokens=False).input_ids
        output = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0]
        assert line["text"] == prompt + words.decode(output[ids.shape[1] :])
        assert line["prompt_tokens"] == ids.shape[1]
        assert line["text"][: line["prompt_chars"]] == prompt
    told = json.loads((home / "out" / "answers.json").read_text("utf-8"))["written"]
    assert told["answers"] == 3
    assert told["too_long"] == 1


def test_a_run_goes_on_behind_a_torn_line(home: Path) -> None:
    assert run([*ANSWERS, *SMALL, "--out", "whole"]) == 0
    assert run([*ANSWERS, *SMALL, "--out", "torn"]) == 0
    file = home / "torn" / "answers.jsonl"
    first, second, *_ = file.read_text("utf-8").splitlines()
    file.write_text(f"{first}\n{second[:20]}", "utf-8")
    assert run([*ANSWERS, *SMALL, "--out", "torn", "--resume"]) == 0
    assert written(home / "torn") == written(home / "whole")


def test_plain_prompts_stay_as_they_are(home: Path) -> None:
    assert run([*ANSWERS, *SMALL, "--chat", "off", "--out", "out"]) == 0
    assert all(line["text"].startswith(PROMPTS[n]) for n, line in written(home / "out").items())


def test_plain_prompts_are_read_as_by_generate(home: Path) -> None:
    words = sentencepiece()
    model = stock_model("llama", vocab_size=len(words))
    for part in (model, words):
        part.save_pretrained(home / "model")
    assert run([*ANSWERS, *SMALL, "--chat", "off", "--out", "out"]) == 0
    found = written(home / "out")
    for number, line in found.items():
        ids = words(PROMPTS[number], return_tensors="pt").input_ids
        assert ids[0, 0] == words.bos_token_id
        output = model.generate(ids, max_new_tokens=TOKENS, do_sample=False)[0]
        whole = words.decode(output).removeprefix("<s>").removeprefix(" ")
        assert line["text"] == whole
        assert line["prompt_tokens"] == ids.shape[1]


def test_answers_to_other_prompts_are_not_gone_on_with(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = [*ANSWERS, *SMALL, "--out", "out", "--resume"]
    assert run(again[:-1]) == 0
    assert run(again) == 0
    prompts, record = home / "prompts.jsonl", home / "out" / "answers.json"
    lines = prompts.read_text("utf-8").splitlines(keepends=True)
    prompts.write_text("".join([lines[1], lines[0], *lines[2:]]), "utf-8")
    capsys.readouterr()
    assert run(again) == 2
    assert "written with other options (sha256)" in capsys.readouterr().err
    # Folders of earlier versions say it by their lines.
    kept = json.loads(record.read_text("utf-8"))
    del kept["sha256"]
    record.write_text(json.dumps(kept), "utf-8")
    assert run(again) == 2
    assert "answers other prompts than these" in capsys.readouterr().err
    prompts.write_text("".join(lines), "utf-8")
    assert run(again) == 0


def test_a_prompt_and_its_answer_may_take_all_positions_of_the_model(home: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained("./model")
    words = AutoTokenizer.from_pretrained("./model")
    asked = [{"role": "user", "content": PROMPTS[1]}]
    prompt = words.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    ids = words(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    room = model.config.max_position_embeddings - ids.shape[1]
    assert room > 1
    size = ["--max-new-tokens", str(room), "--max-prompt-tokens", "1000", "--batch", "2"]
    assert run([*ANSWERS, *size, "--out", "out"]) == 0
    output = model.generate(ids, max_new_tokens=room, do_sample=False)[0]
    assert written(home / "out")[1]["text"] == prompt + words.decode(output[ids.shape[1] :])


def test_answers_in_numbers_of_another_type_are_not_gone_on_with(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stock_model("llama", vocab_size=300).bfloat16().save_pretrained(home / "model")
    assert run([*ANSWERS, *SMALL, "--out", "out", "--dtype", "bfloat16"]) == 0
    assert run([*ANSWERS, *SMALL, "--out", "out", "--resume", "--dtype", "float32"]) == 2
    assert "written with other options (precision)" in capsys.readouterr().err
    record = home / "out" / "answers.json"
    earlier = json.loads(record.read_text("utf-8"))
    del earlier["precision"]  # earlier versions did not say
    record.write_text(json.dumps(earlier), "utf-8")
    assert run([*ANSWERS, *SMALL, "--out", "out", "--resume", "--dtype", "bfloat16"]) == 0


def test_a_folder_that_another_process_writes_is_left_alone(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with written_alone(home / "out"):
        assert run([*ANSWERS, *SMALL, "--out", "out"]) == 2
    assert "out is being written by another process" in capsys.readouterr().err
    assert run([*ANSWERS, *SMALL, "--out", "out"]) == 0


def test_a_text_without_a_prompt_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "empty.txt").write_text("\n\n", "utf-8")
    words = ["answers", "--model", "./model", "--text", "empty.txt", *SMALL, "--out", "none"]
    assert run(words) == 2
    assert "empty.txt holds no prompt" in capsys.readouterr().err
    assert not (home / "none").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--batch 0", "--batch 0: use 1 or more"),
        ("--max-new-tokens 0", "--max-new-tokens 0: use 1 or more"),
        ("--resume", "holds no answers to go on with"),
        ("--max-new-tokens 5000", "--max-new-tokens 5000 leaves no room for a prompt"),
        ("--max-prompt-tokens 2", "every prompt has more than 2 tokens"),
        ("--out out", "holds answers already; use --resume, or another --out"),
        ("--out out --resume --max-new-tokens 4", "with other options (max_new_tokens)"),
    ],
)
def test_what_cannot_be_is_one_line(
    home: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    assert run([*ANSWERS, *SMALL, "--max-documents", "1", "--out", "out"]) == 0
    capsys.readouterr()
    asked = [*ANSWERS, *SMALL, "--max-documents", "1", "--out", "new", *words.split()]
    assert run(asked) in (2, 3)
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1
