"""--device-map from the outside: what is stored, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine.loading import ModelSpec, load, reckon
from ppdbench.errors import ConfigError
from tests.helpers import save_synthetic

Captured = pytest.CaptureFixture[str]
TASK = ["--task", "squad", "--data", "builtin", "--limit", "2", "--max-new-tokens", "6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model on disk, and a map that leaves half of its layers there."""
    spec = "layers=4,hidden=64,vocab=300,context=1024"
    folder = save_synthetic(tmp_path_factory.mktemp("model"), spec)
    places = {"": "cpu", "model.layers.1": "disk", "model.layers.3": "disk"}
    (folder / "map.json").write_text(json.dumps(places), "utf-8")
    return folder


def stored(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    header = json.loads((out / "run.json").read_text("utf-8"))
    lines = (out / "samples.jsonl").read_text("utf-8").splitlines()
    return header, [json.loads(line) for line in lines]


def on(folder: Path, out: Path, *words: str) -> list[str]:
    return [*words, "--model", str(folder), "--device", "cpu", *TASK, "--out", str(out)]


def split(folder: Path) -> list[str]:
    return ["--device-map", str(folder / "map.json")]


def test_probing_with_layers_on_disk_finds_the_same_ranks(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    assert run(on(folder, tmp_path / "whole", "probe")) == 0
    assert "layers:" not in capsys.readouterr().err
    assert run([*on(folder, tmp_path / "split", "probe"), *split(folder)]) == 0
    told = "layers: 2 on cpu, 2 on disk; the disk is read anew for each pass and decides all times"
    assert told in capsys.readouterr().err
    (whole, theirs), (header, ours) = stored(tmp_path / "whole"), stored(tmp_path / "split")
    assert [(s["output_ids"], s["ranks"]) for s in ours] == [
        (s["output_ids"], s["ranks"]) for s in theirs
    ]
    assert header["model"]["weight_hash"] == whole["model"]["weight_hash"]
    assert header["layers"] == {"cpu": 2, "disk": 2}
    assert whole["layers"] == {"cpu": 4}


@pytest.mark.parametrize(
    "method", ["prompt-lookup", "layerskip", "draft-verify", "ppd", "transformers:greedy"]
)
def test_methods_are_exact_with_layers_on_disk(method: str, folder: Path, tmp_path: Path) -> None:
    words = on(folder, tmp_path / "run", "decode", "--method", method)
    assert run([*words, *split(folder), "--warmup", "0"]) == 0
    _, samples = stored(tmp_path / "run")
    assert {s["verdict"] for s in samples} == {"identical"}


def test_a_limit_leaves_on_disk_what_is_beyond_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppdbench.runs.workload.Workload.context", lambda _: 64)
    need = reckon(ModelSpec(name=str(folder), device="cpu"), 64).need
    limit = need.at_home + need.cache + 3 * need.layers[0]
    words = on(folder, tmp_path / "run", "decode", "--method", "greedy")
    assert run([*words, "--device-map", "auto", "--max-memory", f"cpu={limit // 1000}KB"]) == 0
    layers = stored(tmp_path / "run")[0]["layers"]
    assert min(layers["cpu"], layers["disk"]) > 0
    assert layers["cpu"] + layers["disk"] == 4


def test_a_unit_that_loads_its_own_layers_takes_no_device_map(folder: Path) -> None:
    with pytest.raises(ConfigError, match="leave it out or use --set form=inline"):
        load(ModelSpec(name=str(folder), device_map="auto"), keep=range(2))


def test_training_takes_no_device_map(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "text.txt").write_text("some words\n\nmore words", "utf-8")
    words = ["--text", str(tmp_path / "text.txt"), "--out", str(tmp_path / "out")]
    asked = ["train", "heads", "--model", str(folder), *split(folder), *words]
    assert run(asked) == 2
    assert "training runs on one device per process" in capsys.readouterr().err


def test_weights_without_safetensors_cannot_stay_on_disk(
    folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (copy / file.name).write_bytes(file.read_bytes())
    torch.save({}, copy / "pytorch_model.bin")
    assert run([*on(copy, tmp_path / "run", "probe"), *split(folder)]) == 2
    assert "has no safetensors files to read layers from" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["prompt-lookup", "layerskip", "lookahead"])
def test_methods_are_exact_over_a_gpu_the_cpu_and_the_disk(
    method: str, folder: Path, tmp_path: Path
) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    places = {"": 0, "model.layers.1": "cpu", "model.layers.2": "cpu", "model.layers.3": "disk"}
    (tmp_path / "map.json").write_text(json.dumps(places), "utf-8")
    words = ["decode", "--method", method, "--model", str(folder), *TASK]
    asked = [*words, "--device-map", str(tmp_path / "map.json"), "--out", str(tmp_path / "run")]
    assert run(asked) == 0
    header, samples = stored(tmp_path / "run")
    assert header["layers"] == {"cuda:0": 1, "cpu": 2, "disk": 1}
    assert {s["verdict"] for s in samples} <= {"identical", "tie"}
