"""Trained heads from a folder: what they compute, and every way such a folder can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.families import tiny
from ppdbench.cli.main import run
from ppdbench.engine.heads import ExitHead, head_rows, load_heads
from ppdbench.engine.loading import Loaded, ModelSpec, load_stock, take_over
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.runs.store import read_run
from tests.families import stock_model

MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300"
VOCAB, HIDDEN, RANK = 300, 32, 3


@pytest.fixture(scope="module")
def model() -> tuple[Loaded, Tensor]:
    """A model that is ready to run, and the weight of its head as plain rows."""
    spec = ModelSpec(name=MODEL)
    stock, words = load_stock(spec)
    weight = stock.get_output_embeddings().weight.detach().clone()
    return take_over(spec, stock, words), weight


def heads_in(folder: str | Path, loaded: Loaded) -> dict[int, ExitHead]:
    """The heads alone."""
    return load_heads(folder, loaded)[0]


def header(loaded: Loaded, **change: Any) -> dict[str, Any]:
    return {
        "format": "ppdbench-addon",
        "version": 1,
        "method": "heads",
        "model": loaded.fingerprint,
        "vocab_size": loaded.staged.vocab_size,
        "hidden_size": loaded.staged.hidden_size,
        "layers": [1, 2],
        "rank": None,
        **change,
    }


def write(folder: Path, head: Any, tensors: dict[str, Tensor] | None) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "heads.json").write_text(head if isinstance(head, str) else json.dumps(head))
    if tensors is not None:
        save_file(
            {name: t.contiguous() for name, t in tensors.items()}, folder / "heads.safetensors"
        )
    return folder


def full(weight: Tensor, *layers: int) -> dict[str, Tensor]:
    return {f"layer.{layer}.weight": weight.clone() for layer in layers}


def low_rank(*layers: int, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    parts: dict[str, Tensor] = {}
    for layer in layers:
        parts[f"layer.{layer}.down"] = torch.randn(RANK, HIDDEN, generator=draw)
        parts[f"layer.{layer}.up"] = torch.randn(VOCAB, RANK, generator=draw)
    return parts


def normed(loaded: Loaded, rows: int = 5) -> Tensor:
    draw = torch.Generator().manual_seed(9)
    hidden = torch.randn(rows, loaded.staged.hidden_size, generator=draw)
    return loaded.staged.adapter.norm(hidden)


# What heads compute


@torch.inference_mode()
def test_a_full_head_is_a_product_with_its_own_matrix(
    model: tuple[Loaded, Tensor], tmp_path: Path
) -> None:
    loaded, weight = model
    tensors = {"layer.1.weight": weight * 2, "layer.2.weight": weight.flip(0)}
    heads = heads_in(write(tmp_path / "h", header(loaded), tensors), loaded)
    assert sorted(heads) == [1, 2]
    x = normed(loaded)
    for layer, expected in ((1, weight * 2), (2, weight.flip(0))):
        torch.testing.assert_close(
            heads[layer].logits(loaded.staged.adapter, x), linear(x, expected)
        )


@torch.inference_mode()
def test_a_low_rank_head_is_the_dense_product_added_to_the_models_own(
    model: tuple[Loaded, Tensor], tmp_path: Path
) -> None:
    loaded, weight = model
    tensors = low_rank(1, 2)
    folder = write(tmp_path / "h", header(loaded, rank=RANK), tensors)
    heads = heads_in(folder, loaded)
    x = normed(loaded)
    for layer in (1, 2):
        dense = weight + tensors[f"layer.{layer}.up"] @ tensors[f"layer.{layer}.down"]
        assert not torch.allclose(dense, weight, atol=0.1)
        torch.testing.assert_close(
            heads[layer].logits(loaded.staged.adapter, x), linear(x, dense), atol=1e-4, rtol=1e-5
        )


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma2", "opt-350m-like"])
def test_a_change_of_the_state_is_added_before_the_models_own_head(
    family: str, tmp_path: Path
) -> None:
    stock = stock_model(family)
    weight = stock.get_output_embeddings().weight.detach().clone()
    loaded = take_over(ModelSpec(name=family), stock, None)
    width = weight.shape[1]
    down, up = torch.randn(RANK, width), torch.randn(width, RANK)
    tensors = {"layer.2.down": down, "layer.2.up": up}
    about = header(loaded, layers=[2], rank=RANK, of_state=True)
    head = heads_in(write(tmp_path / "h", about, tensors), loaded)[2]
    x = normed(loaded)
    x = x[..., :width]
    changed = x + x @ down.T @ up.T
    cap = getattr(stock.config, "final_logit_softcapping", None)
    truth = linear(changed, weight)
    truth = truth if cap is None else torch.tanh(truth / cap) * cap
    torch.testing.assert_close(head.logits(loaded.staged.adapter, x), truth, atol=1e-4, rtol=1e-4)


def test_a_change_of_something_else_is_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path
) -> None:
    loaded, _ = model
    folder = write(tmp_path / "h", header(loaded, rank=RANK, of_state="yes"), low_rank(1, 2))
    with pytest.raises(ConfigError, match="of_state 'yes'; use true or false"):
        heads_in(folder, loaded)
    folder = write(tmp_path / "of", header(loaded, rank=RANK, of_state=True), low_rank(1, 2))
    with pytest.raises(ConfigError, match=r"layer\.1\.up"):
        heads_in(folder, loaded)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "gemma2", "opt", "opt-350m-like"])
def test_a_head_equal_to_the_models_own_reads_out_the_same(family: str, tmp_path: Path) -> None:
    """The soft cap of gemma2 and the narrow read-out of small OPTs included."""
    stock = stock_model(family)
    weight = stock.get_output_embeddings().weight.detach().clone()
    loaded = take_over(ModelSpec(name=family), stock, None)
    folder = write(tmp_path / "h", header(loaded, layers=[2]), full(weight, 2))
    x = normed(loaded)
    ours = heads_in(folder, loaded)[2].logits(loaded.staged.adapter, x)
    torch.testing.assert_close(ours, loaded.staged.adapter.readout(x), atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_heads_take_the_type_of_the_model(model: tuple[Loaded, Tensor], tmp_path: Path) -> None:
    loaded, weight = model
    folder = write(tmp_path / "h", header(loaded, layers=[1]), full(weight.bfloat16(), 1))
    logits = heads_in(folder, loaded)[1].logits(loaded.staged.adapter, normed(loaded))
    assert logits.dtype == torch.float32


# As they are used


def probe(capsys: pytest.CaptureFixture[str], folder: Path, out: Path, *more: str) -> Any:
    words = ["--model", MODEL, "--data", "builtin", "--limit", "2", "--max-new-tokens", "8"]
    head = ["--head", str(folder), "--out", str(out), "--format", "json"]
    assert run(["probe", *words, *head, *more]) == 0
    return json.loads(capsys.readouterr().out)


def by_cell(result: Any, head: str) -> dict[tuple[Any, ...], float]:
    return {
        (row["layer"], row["k"], row["bucket"]): row["match_rate"]
        for row in result["rows"]
        if row["head"] == head
    }


def test_heads_equal_to_the_models_own_give_y_rows_equal_to_its_n_rows(
    model: tuple[Loaded, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, weight = model
    folder = write(tmp_path / "h", header(loaded), full(weight, 1, 2))
    result = probe(capsys, folder, tmp_path / "run")
    own, trained = by_cell(result, "N"), by_cell(result, "Y")
    assert {layer for layer, *_ in own} == {1, 2, 3, 4}
    assert {layer for layer, *_ in trained} == {1, 2}
    assert trained == {cell: rate for cell, rate in own.items() if cell[0] in (1, 2)}
    for sample in read_run(tmp_path / "run").samples:
        assert sample.head_ranks == {layer: sample.ranks[layer] for layer in ("1", "2")}


def test_other_heads_change_the_y_rows_alone(
    model: tuple[Loaded, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, weight = model
    same = write(tmp_path / "a", header(loaded), full(weight, 1, 2))
    other = write(tmp_path / "b", header(loaded, rank=RANK), low_rank(1, 2))
    probe(capsys, same, tmp_path / "run-a")
    probe(capsys, other, tmp_path / "run-b")
    first, second = (read_run(tmp_path / run).samples for run in ("run-a", "run-b"))
    assert [s.ranks for s in first] == [s.ranks for s in second]
    for ours, theirs in zip(first, second, strict=True):
        assert all(ours.head_ranks[layer] != theirs.head_ranks[layer] for layer in ("1", "2"))


def test_heads_of_layers_that_are_not_asked_for_are_left_aside(
    model: tuple[Loaded, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, weight = model
    folder = write(tmp_path / "h", header(loaded), full(weight, 1, 2))
    result = probe(capsys, folder, tmp_path / "run", "--layers", "2,3")
    assert {layer for layer, *_ in by_cell(result, "Y")} == {2}


def test_heads_of_none_of_the_layers_asked_for_are_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, weight = model
    folder = write(tmp_path / "h", header(loaded), full(weight, 1, 2))
    words = ["--model", MODEL, "--data", "builtin", "--limit", "1", "--out", str(tmp_path / "run")]
    assert run(["probe", *words, "--head", str(folder), "--layers", "3"]) == 2
    err = capsys.readouterr().err
    assert "1, 2" in err
    assert "--layers" in err


def test_a_nan_in_a_head_is_told_with_example_and_layer(
    model: tuple[Loaded, Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, weight = model
    tensors = full(weight, 1, 2)
    tensors["layer.2.weight"][17, 3] = float("nan")
    folder = write(tmp_path / "h", header(loaded), tensors)
    words = ["--model", MODEL, "--data", "builtin", "--limit", "1", "--out", str(tmp_path / "run")]
    assert run(["probe", *words, "--head", str(folder)]) == 2
    assert "example 0: NaN or infinite logits after layer 2" in capsys.readouterr().err


# What is refused

HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "other"}, "does not describe trained heads"),
    "method": ({"method": "medusa"}, "does not describe trained heads"),
    "version": ({"version": 2}, "has version 2, this ppdbench reads 1"),
    "no version": ({"version": None}, "has version None"),
    "layers in text": ({"layers": "all"}, "must be a list of layer numbers"),
    "layers of texts": ({"layers": ["1"]}, "must be a list of layer numbers"),
    "layers of booleans": ({"layers": [True]}, "must be a list of layer numbers"),
    "no layers": ({"layers": []}, "must be a list of layer numbers"),
    "layer twice": ({"layers": [1, 1]}, "twice"),
    "layer 0": ({"layers": [0]}, r"head for layer 0; use 1\.\.3"),
    "the last layer": ({"layers": [1, 4]}, r"head for layer 4; use 1\.\.3"),
    "another model": ({"model": "feedbeef"}, "another model: their model is feedbeef"),
    "another vocabulary": ({"vocab_size": 99}, "their vocab_size is 99, this model's is 300"),
    "another width": ({"hidden_size": 64}, "their hidden_size is 64, this model's is 32"),
    "no model": ({"model": None}, "another model"),
    "rank 0": ({"rank": 0}, "rank"),
    "rank in text": ({"rank": "3"}, "rank"),
}


@pytest.mark.parametrize(("change", "message"), HEADERS.values(), ids=HEADERS)
def test_a_wrong_header_is_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    loaded, weight = model
    folder = write(tmp_path / "heads", header(loaded, **change), full(weight, 1, 2))
    with pytest.raises(ConfigError, match=message) as caught:
        heads_in(folder, loaded)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[]", "does not describe"), ("null", "does not describe")],
)
def test_a_header_that_is_no_object_is_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        heads_in(write(tmp_path / "heads", text, None), model[0])


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_a_header_is_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=rf"{name} holds no trained heads: heads\.json"):
        heads_in(tmp_path / name, model[0])


def changed(tensors: dict[str, Tensor], **change: Tensor | None) -> dict[str, Tensor]:
    merged = {**tensors, **{name.replace("_", "."): t for name, t in change.items()}}
    return {name: tensor for name, tensor in merged.items() if tensor is not None}


WRONG_FULL: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({"layer_2_weight": None}, r"lacks the tensor layer\.2\.weight"),
    "shape": ({"layer_2_weight": torch.zeros(4, 5)}, r"has shape \[4, 5\], not \[300, 32\]"),
    "turned": ({"layer_2_weight": torch.zeros(32, 300)}, r"\[32, 300\], not \[300, 32\]"),
    "one more": ({"layer_3_weight": torch.zeros(1)}, r"unexpected tensors: layer\.3\.weight"),
    "bias": ({"layer_1_bias": torch.zeros(300)}, r"unexpected tensors: layer\.1\.bias"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_FULL.values(), ids=WRONG_FULL)
def test_wrong_tensors_of_full_heads_are_refused(
    model: tuple[Loaded, Tensor],
    tmp_path: Path,
    change: dict[str, Tensor | None],
    message: str,
) -> None:
    loaded, weight = model
    folder = write(tmp_path / "h", header(loaded), changed(full(weight, 1, 2), **change))
    with pytest.raises(ConfigError, match=message):
        heads_in(folder, loaded)


WRONG_LOW_RANK: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "no up": ({"layer_2_up": None}, r"lacks the tensor layer\.2\.up"),
    "no down": ({"layer_1_down": None}, r"lacks the tensor layer\.1\.down"),
    "another rank": ({"layer_2_down": torch.zeros(4, 32)}, r"\[4, 32\], not \[3, 32\]"),
    "turned": ({"layer_2_up": torch.zeros(3, 300)}, r"\[3, 300\], not \[300, 3\]"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_LOW_RANK.values(), ids=WRONG_LOW_RANK)
def test_wrong_tensors_of_low_rank_heads_are_refused(
    model: tuple[Loaded, Tensor],
    tmp_path: Path,
    change: dict[str, Tensor | None],
    message: str,
) -> None:
    loaded, _ = model
    folder = write(tmp_path / "h", header(loaded, rank=RANK), changed(low_rank(1, 2), **change))
    with pytest.raises(ConfigError, match=message):
        heads_in(folder, loaded)


def test_full_tensors_under_a_rank_are_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path
) -> None:
    loaded, weight = model
    folder = write(tmp_path / "h", header(loaded, rank=RANK), full(weight, 1, 2))
    with pytest.raises(ConfigError, match=r"lacks the tensor layer\.1\.down"):
        heads_in(folder, loaded)


@pytest.mark.parametrize("content", [None, b"", b"\x08\0\0\0\0\0\0\0{}", b"pickle"], ids=repr)
def test_tensors_that_cannot_be_read_are_refused(
    model: tuple[Loaded, Tensor], tmp_path: Path, content: bytes | None
) -> None:
    folder = write(tmp_path / "h", header(model[0]), None)
    if content is not None:
        (folder / "heads.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"heads\.safetensors cannot be read"):
        heads_in(folder, model[0])


def test_heads_of_a_retrained_model_are_refused(tmp_path: Path) -> None:
    """The fingerprint notices one changed weight in a model of this size."""
    first = take_over(ModelSpec(name="a"), stock_model("llama"), tokenizer(300, 96))
    other = stock_model("llama")
    with torch.no_grad():
        other.model.layers[2].mlp.up_proj.weight[0, 0] += 1
    second = take_over(ModelSpec(name="a"), other, tokenizer(300, 96))
    width = first.staged.hidden_size
    tensors = {"layer.1.weight": torch.zeros(first.staged.vocab_size, width)}
    folder = write(tmp_path / "h", header(first, layers=[1]), tensors)
    assert list(heads_in(folder, first)) == [1]
    with pytest.raises(ConfigError, match="another model"):
        heads_in(folder, second)


@torch.inference_mode()
@pytest.mark.parametrize("family", ["phi", "llama"])
def test_rows_of_a_head_are_its_weights_without_its_bias(family: str) -> None:
    stock, ids = tiny(family), torch.tensor([3, 7, 95])
    weight = stock.get_output_embeddings().weight.detach().clone()
    loaded = take_over(ModelSpec(name="tiny"), stock, tokenizer(300, 96))
    torch.testing.assert_close(head_rows(loaded, ids), weight[ids])
