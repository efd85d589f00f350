"""Levels of weights in GGUF files: the numbers that they stand for, and models that run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.engine import loading
from ppdbench.engine.flat.products import FlatProduct
from ppdbench.engine.flat.stored import StoredLinear
from ppdbench.engine.gguf import weights
from ppdbench.engine.gguf.file import StoredTensor
from ppdbench.engine.gguf.levels import TYPES, read_levels
from ppdbench.engine.levels import Levels
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError
from tests.engine.gguf.made import refused
from tests.families import stock_model
from tests.gguf_files import write
from tests.training.made import write_task

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96}
PROMPT = [1, 17, 42, 9, 80, 33, 5, 21, 60, 14, 2, 71]


@pytest.mark.parametrize("name", sorted(TYPES))
def test_levels_are_the_numbers_that_gguf_reads(name: str, tmp_path: Path) -> None:
    """Blocks of any bits but those of scales, which are no infinities."""
    kind = gguf.GGMLQuantizationType[name]
    size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 256, (24, n_bytes), np.uint8)
    halves = draw.normal(size=(24, 2)).astype(np.float16).view(np.uint8)
    head = min(TYPES[name].head, 4)
    blocks[:, :head] = halves[:, :head]
    file = tmp_path / "blocks"
    file.write_bytes(b"before" + blocks.tobytes())
    shape = 6, 4 * size
    stored = StoredTensor("w", shape, int(kind), 6, blocks.nbytes)
    found = read_levels(file, stored)
    assert found.shape == shape
    assert int(found.levels.max()) < 1 << found.bits
    truth = torch.from_numpy(gguf.dequantize(blocks, kind).reshape(shape).copy())
    assert torch.equal(found.numbers(torch.float32), truth)


def logits(path: Path, dtype: str, *, as_stored: bool) -> tuple[torch.Tensor, list[bool]]:
    """Logits of flat passes over a text and over rows behind it; which products run as stored."""
    spec = ModelSpec(name=str(path), dtype=dtype, device="cpu", as_stored=as_stored)
    loaded = load(spec, passes="flat")
    session = Session(loaded.staged, 40)
    session.reset(PROMPT)
    with torch.inference_mode():
        prompt = session.prefill()
        found = [prompt[0], *(session.read(h).logits[0] for h in _passes(session))]
    products = [m.flat for m in loaded.staged.model.modules() if isinstance(m, FlatProduct)]
    return torch.cat(found), [isinstance(product, StoredLinear) for product in products]


def _passes(session: Session) -> list[torch.Tensor]:
    return [session.forward(session.ids(tokens)) for tokens in ([5], [7, 8, 9])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("name", ["llama", "llama-mha-tied", "qwen2", "phi3"])
def test_a_model_run_as_stored_gives_the_same_bits(
    name: str, kind: str, dtype: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "m.gguf", stock_model(name, **WIDE), kind)
    ours, stored = logits(path, dtype, as_stored=True)
    plain, unstored = logits(path, dtype, as_stored=False)
    assert torch.equal(ours, plain)
    assert all(stored)
    assert not any(unstored)


def test_weights_that_have_no_levels_are_plain(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", stock_model("llama", **WIDE), "F16")
    ours, stored = logits(path, "float32", as_stored=True)
    assert not any(stored)
    assert torch.equal(ours, logits(path, "float32", as_stored=False)[0])


@pytest.mark.parametrize("part", ["levels", "scales", "shifts"])
def test_levels_of_other_weights_are_refused(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single level, scale or shift that is read wrongly."""
    honest = weights.read_levels

    def wrong(path: Path, stored: StoredTensor) -> Levels:
        found = honest(path, stored)
        getattr(found, part)[-1, -1] += 1
        return found

    path = write(tmp_path / "m.gguf", stock_model("llama", **WIDE), "Q4_1")
    monkeypatch.setattr(weights, "read_levels", wrong)
    loaded = load(ModelSpec(name=str(path), device="cpu", as_stored=True), passes="flat")
    assert loaded.staged.path.kernels == "eager"
    assert "no flat passes: a product of" in loaded.staged.path.why


def test_a_run_says_how_weights_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "m.gguf", stock_model("llama", vocab_size=300, **WIDE), "Q4_1")
    words = [
        *write_task(tmp_path, 8),
        "--limit",
        "2",
        "--max-new-tokens",
        "8",
        "--dtype",
        "float32",
    ]
    asked = ["decode", "--model", "m.gguf", "--as-stored", "--method", "prompt-lookup", *words]
    assert run([*asked, "--out", "run"]) == 0
    assert "identical" in capsys.readouterr().out
    header = (tmp_path / "run" / "run.json").read_text("utf-8")
    assert "weights as stored" in header or "eager" in header


def test_only_files_with_levels_on_a_cpu_run_as_stored(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="--as-stored is for weights of a GGUF file"):
        ModelSpec(name="reference", as_stored=True)
    with pytest.raises(ConfigError, match="--as-stored and --quantize"):
        ModelSpec(name=str(path), as_stored=True, quantize="int8")
    monkeypatch.setattr(loading, "resolve_device", lambda asked: torch.device("cuda"))
    refused(ModelSpec(name=str(path), as_stored=True), "its kernels run on a CPU", late=True)
