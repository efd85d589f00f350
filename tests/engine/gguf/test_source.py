"""The GGUF file of a model: found where it lies, asked for where it is not told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ppdbench.engine.gguf import source
from ppdbench.engine.gguf.file import read
from ppdbench.engine.loading import ModelSpec, load
from tests.engine.gguf.made import refused


def test_a_folder_with_one_file_is_that_model(path: Path) -> None:
    assert load(ModelSpec(name=str(path.parent))).gguf == read(path)
    assert load(ModelSpec(name=str(path.parent), gguf=path.name)).gguf == read(path)


def test_a_folder_with_several_asks_which(path: Path) -> None:
    shutil.copy(path, path.with_name("n.gguf"))
    folder = path.parent
    refused(ModelSpec(name=str(folder)), "holds 2 GGUF files; give --gguf one of m.gguf, n.gguf")
    refused(ModelSpec(name=str(folder), gguf="o.gguf"), "no such file; it has m.gguf, n.gguf")
    assert load(ModelSpec(name=str(folder), gguf="n.gguf")).staged.n_layers == 4


@pytest.mark.parametrize(
    ("name", "gguf", "words"),
    [
        ("nowhere.gguf", None, "model file nowhere.gguf does not exist"),
        ("./nowhere", "m.gguf", "model folder ./nowhere does not exist"),
        ("nobody/nothing", "m.gguf", "'nobody/nothing' is not on this machine"),
    ],
)
def test_a_file_that_is_not_there_is_named(name: str, gguf: str | None, words: str) -> None:
    refused(ModelSpec(name=name, gguf=gguf, offline=True), words)


def test_a_file_needs_no_second_name(path: Path) -> None:
    refused(ModelSpec(name=str(path), gguf="n.gguf"), "is a file itself; leave --gguf out")


def test_code_cannot_come_with_a_file(path: Path) -> None:
    refused(ModelSpec(name=str(path), trust_remote_code=True), "a GGUF file holds no code")


def test_smollm2_says_how_it_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path))
    refused(ModelSpec(name="smollm2"), "is not on this machine .*; fetch it with `make smollm2`")


def test_smollm2_is_found_where_caches_are(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path / "cache"))
    source.smollm2().parent.mkdir(parents=True)
    shutil.copy(path, source.smollm2())
    assert load(ModelSpec(name="smollm2")).staged.n_layers == 4
    refused(ModelSpec(name="smollm2", gguf="m.gguf"), "is one file; leave --gguf out")
