"""What runs on a GPU, on one that is not there: every tensor says where it lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.files.resources import reference_is_there
from ppdbench.trees.tree import Tree
from tests.pretend import There, gpus

MODEL = ("--model", "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=1024,agree=0.9")
SIZE = ("--offline", "--data", "builtin", "--task", "gsm8k", "--limit", "1", "--warmup", "0")
# All that need nothing trained.
METHODS = (
    *("greedy", "early-exit", "layerskip", "draft-verify", "prompt-lookup"),
    *("lookahead", "jacobi", "ppd:k=3"),
)
TRAINED = (
    *("medusa", "eagle", "hidden-transfer", "prompt-tokens", "rest:datastore=reference"),
    *("speculative:draft_model=reference-draft", "ppd:head=reference"),
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with gpus(monkeypatch):
        yield "cuda:0"


def bench(folder: Path, *words: str, methods: tuple[str, ...] = METHODS) -> dict[str, Any]:
    """Outputs by method."""
    named = [word for method in methods for word in ("--method", method)]
    assert run(["bench", *named, *SIZE, *words, "--out", str(folder)]) == 0
    lines = (folder / "samples.jsonl").read_text("utf-8").splitlines()
    samples = [json.loads(line) for line in lines]
    assert not [s["error"] for s in samples if s["verdict"] == "failed"]
    return {s["method"]: s["output_ids"] for s in samples}


def test_tensors_of_two_devices_do_not_meet(gpu: str) -> None:
    there = torch.ones(3, device=gpu)
    with pytest.raises(RuntimeError, match="cpu and cuda:0"):
        torch.add(there, torch.ones(3))
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    there[1:] = 5
    assert (there + torch.tensor(1.0)).tolist() == [2, 6, 6]
    assert isinstance(there.argmax(-1), There)
    assert not isinstance(there.cpu(), There)


@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        ("float32", ()),
        ("bfloat16", ()),
        ("float32", ("--strict",)),
        ("bfloat16", ("--strict",)),
        ("float32", ("--target", "top-p")),
        ("float32", ("--profile",)),
    ],
)
def test_every_method_gives_on_a_gpu_what_it_gives_on_the_cpu(
    how: tuple[str, ...], dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Those behind propose trees, or decode greedily.
    methods = METHODS[:5] if "--target" in how else METHODS
    words = (*MODEL, "--dtype", dtype, "--max-new-tokens", "6", "--compile", "off", *how)
    on_cpu = bench(tmp_path / "cpu", *words, "--device", "cpu", methods=methods[:5])
    with gpus(monkeypatch):
        found = bench(tmp_path / "gpu", *words, "--device", "cuda:0", methods=methods)
    assert {name: found[name] for name in on_cpu} == on_cpu


@pytest.mark.slow
@pytest.mark.skipif(not reference_is_there(), reason="no embedded model in this copy")
def test_methods_with_trained_parts_run_on_a_gpu(gpu: str, tmp_path: Path) -> None:
    found = bench(tmp_path / "run", "--device", gpu, "--max-new-tokens", "6", methods=TRAINED)
    assert len(set(map(tuple, found.values()))) == 1


@pytest.mark.slow
@pytest.mark.skipif(not reference_is_there(), reason="no embedded model in this copy")
def test_methods_with_trained_parts_draw_on_a_gpu(gpu: str, tmp_path: Path) -> None:
    Tree(((0,), (1,), (0, 0), (0, 1))).save(tmp_path / "tree.json")
    methods = (*TRAINED, f"eagle:tree={tmp_path / 'tree.json'}", "eagle:tree=chain")
    words = ("--device", gpu, "--max-new-tokens", "6", "--target", "top-p")
    assert set(bench(tmp_path / "run", *words, methods=methods)) >= {"eagle", "medusa"}


def test_a_gpu_computes_in_the_models_own_type(gpu: str) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.set_float32_matmul_precision("high")
        load(ModelSpec(name=MODEL[1], device=gpu))
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cuda.enable_cudnn_sdp(before[1])


def test_probing_runs_on_a_gpu(gpu: str, tmp_path: Path) -> None:
    words = ("--offline", "--data", "builtin", "--task", "gsm8k", "--limit", "3")
    size = ("--max-new-tokens", "6", "--out", str(tmp_path / "run"))
    assert run(["probe", *MODEL, *words, *size, "--device", gpu, "--target", "top-p"]) == 0


def test_the_machine_and_its_baseline_are_described(
    gpu: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "--device", gpu, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["environment"]["devices"][0]["name"] == "Pretended GPU"
    words = ("--rounds", "1", "--new-tokens", "4", "--prompt-tokens", "8", "--format", "json")
    assert run(["env", "--baseline", *MODEL, *words, "--device", gpu]) == 0
    assert json.loads(capsys.readouterr().out)["identical"] == 2
