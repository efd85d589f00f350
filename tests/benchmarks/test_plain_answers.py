"""`python -m benchmarks.plain_answers`: answers are those of plain code, and others are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import plain_answers
from benchmarks.answered import Answer, answers
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.runs.workload import RunConfig

TINY = "synthetic:layers=2,hidden=32,heads=2,vocab=300,context=4096"
FEW = ["--model", TINY, "--task", "gsm8k", "--limit", "2", "--max-new-tokens", "6"]


def test_answers_are_those_of_plain_code_and_asked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    assert plain_answers.main([*FEW, "--save", str(kept)]) == 0
    content = json.loads(kept.read_text("utf-8"))
    (sheet,) = plain_answers.sheets(content)
    assert sheet.rows == (("gsm8k", 2, 12, 2, 2, "gsm8k_accuracy", 0.0, 0.0),)
    monkeypatch.setattr(plain_answers, "generated", pytest.fail)
    assert plain_answers.main([*FEW, "--save", str(kept)]) == 0


def other_tokens(loaded: Loaded, config: RunConfig) -> list[Answer]:
    first, second = answers(loaded, config)
    first.output_ids[-1] += 1
    second.prompt_ids.append(5)
    return [first, second]


def test_another_answer_and_another_prompt_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    monkeypatch.setattr(plain_answers, "answers", other_tokens)
    assert plain_answers.main([*FEW, "--save", str(kept)]) == 1
    first, second = json.loads(kept.read_text("utf-8"))["examples"]
    assert (first["same_prompt"], first["same_answer"]) == (True, False)
    assert (second["same_prompt"], second["same_answer"]) == (False, True)


def test_a_model_with_a_template_is_asked_through_it() -> None:
    tokenizer = load(ModelSpec(name="reference")).tokenizer
    plain, chat = plain_answers.encoded(tokenizer, "Why?")
    assert not chat
    tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}!"
    through, chat = plain_answers.encoded(tokenizer, "Why?")
    assert chat
    assert tokenizer.decode(through) == f"<{tokenizer.decode(plain)}>!"
