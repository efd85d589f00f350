"""GPTQ and AWQ weights, packed here number by number, become what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.packed_levels import Packing, dequantised
from ppdbench.errors import ConfigError, UnsupportedModel
from tests.engine.test_weight_files import folder_of, ours, truth
from tests.families import stock_model

OUT, IN, GROUP = 16, 32, 8
# The output whose level stands in each place of a word of AWQ, from the lowest bits on.
PLACES = [0, 2, 4, 6, 1, 3, 5, 7]


def word(levels: list[int], bits: int) -> int:
    """One signed word of 32 bits, written bit by bit, the first level lowest."""
    text = "".join(format(level, f"0{bits}b") for level in reversed(levels))
    assert len(text) == 32
    return int(text, 2) - (1 << 32 if text[0] == "1" else 0)


def row_of_words(levels: list[int], bits: int, places: list[int] | None = None) -> list[int]:
    n = 32 // bits
    parts = [levels[i : i + n] for i in range(0, len(levels), n)]
    return [word([part[i] for i in places or range(n)], bits) for part in parts]


def packed(
    method: str,
    bits: int,
    seed: int,
    *,
    out: int = OUT,
    less_one: bool = True,
    shuffled: bool = False,
) -> tuple[dict[str, Tensor], np.ndarray]:
    """The tensors of a product, and its weights [out, in]."""
    draw = np.random.default_rng(seed)
    levels = draw.integers(0, 1 << bits, (out, IN))
    zeros = draw.integers(1, 1 << bits, (IN // GROUP, out))
    scales = draw.uniform(0.01, 0.1, (IN // GROUP, out)).astype(np.float16)
    group = np.arange(IN) // GROUP
    if shuffled:
        group = draw.permutation(group)
    weights = np.empty((out, IN), np.float32)
    for o in range(out):
        for i in range(IN):
            g = group[i]
            weights[o, i] = (int(levels[o, i]) - int(zeros[g, o])) * np.float32(scales[g, o])
    stored = zeros - less_one if method == "gptq" else zeros
    places = PLACES if method == "awq" else None
    if method == "gptq":
        columns = [row_of_words(levels[o].tolist(), bits) for o in range(out)]
        words = np.array(columns).T
    else:
        words = np.array([row_of_words(levels[:, i].tolist(), bits, places) for i in range(IN)])
    tensors: dict[str, Any] = {
        "qweight": words,
        "qzeros": np.array([row_of_words(row.tolist(), bits, places) for row in stored]),
    }
    if method == "gptq":
        tensors["g_idx"] = group
    made = {k: torch.from_numpy(v.astype(np.int32, order="C")) for k, v in tensors.items()}
    return {**made, "scales": torch.from_numpy(scales)}, weights


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("form", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_gptq_words_become_their_weights(bits: int, form: str, shuffled: bool) -> None:
    tensors, weights = packed("gptq", bits, 1, less_one=form == "gptq", shuffled=shuffled)
    facts = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "checkpoint_format": form}
    found = dequantised(tensors, Packing.of(facts, "m"), "p")
    assert torch.equal(found, torch.from_numpy(weights))


def test_groups_follow_from_their_size_where_no_list_says_them() -> None:
    tensors, weights = packed("gptq", 4, 2)
    del tensors["g_idx"]
    found = dequantised(tensors, Packing("gptq", 4, GROUP, less_one=True), "p")
    assert torch.equal(found, torch.from_numpy(weights))


def test_awq_words_become_their_weights() -> None:
    tensors, weights = packed("awq", 4, 3)
    facts = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "GEMM"}
    found = dequantised(tensors, Packing.of(facts, "m"), "p")
    assert torch.equal(found, torch.from_numpy(weights))


def packed_folder(model: Any, method: str, folder: Path) -> Path:
    """A folder of a model whose weights become what the packed ones stand for."""
    stored, plain = {}, model.state_dict()
    for seed, (name, weight) in enumerate(model.state_dict().items()):
        if name.endswith(("q_proj.weight", "up_proj.weight")):
            parts, weights = packed(method, 4, seed, out=len(weight))
            stored |= {f"{name.removesuffix('weight')}{k}": v for k, v in parts.items()}
            plain[name] = torch.from_numpy(weights)
        else:
            stored[name] = weight.contiguous()
    settings = {"quant_method": method, "bits": 4, "group_size": GROUP}
    folder_of(model, folder, quantization_config=settings)
    names = sorted(stored)
    for i in range(2):
        some = {name: stored[name] for name in names[i::2]}
        file = folder / f"model-{i + 1:05d}-of-00002.safetensors"
        save_file(some, file, metadata={"format": "pt"})
    model.load_state_dict(plain)
    return folder


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_a_packed_checkpoint_decodes_as_the_plain_one_that_it_stands_for(
    method: str, tmp_path: Path
) -> None:
    model = stock_model("llama", vocab_size=300)
    folder = packed_folder(model, method, tmp_path)
    assert ours(folder) == truth(model)
    assert load(ModelSpec(name=str(folder))).stored_as == method


@pytest.mark.parametrize(
    "facts",
    [
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "awq", "bits": 4, "zero_point": False},
    ],
)
def test_other_forms_are_refused_with_those_that_are_read(facts: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"supported: gptq and gptq_v2 of 2, 4 or 8 bits"):
        Packing.of(facts, "m")


def test_products_that_lack_a_part_or_have_another_size_are_refused() -> None:
    tensors, _ = packed("gptq", 4, 4)
    packing = Packing("gptq", 4, GROUP, less_one=True)
    with pytest.raises(ConfigError, match="p lacks scales"):
        dequantised({k: v for k, v in tensors.items() if k != "scales"}, packing, "p")
    with pytest.raises(ConfigError, match=r"scales \(4, 8\) and zeros \(4, 16\)"):
        dequantised({**tensors, "scales": tensors["scales"][:, :8]}, packing, "p")
