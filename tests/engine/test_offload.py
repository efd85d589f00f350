"""Layers that stay in their files: the same bits, read for each call and let go again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.engine.loading import weight_fingerprint
from ppdbench.engine.offload import StoredWeights
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import DataError
from tests.families import FAMILIES, stock_model
from tests.helpers import CAPACITY, go, tokens

ON_DISK = (1, 2)
TREE = [-1, -1, 0, 0, 1, 1]


class Folder:
    """A saved model, loaded as a whole or with some of its modules on disk."""

    def __init__(self, name: str, folder: Path) -> None:
        self.stock = stock_model(name)
        self.folder = folder
        self.stock.save_pretrained(folder)

    def whole(self, **options: Any) -> StagedModel:
        """In memory. From the same file, because rounding depends on how weights are aligned."""
        return StagedModel(self._load(**options), packed=False)

    def split(self, *more: str, **options: Any) -> StagedModel:
        """Two layers, and `more` modules, on disk."""
        modules = dict(self.stock.named_modules())
        body = next(n for n in modules if n.endswith((".layers", ".h")))
        on_disk = (*(f"{body}.{i}" for i in ON_DISK), *more)
        inside = tuple(f"{path}." for path in on_disk)
        leaves = [n for n, m in modules.items() if not any(True for _ in m.children())]
        places = {n: "cpu" for n in leaves if not f"{n}.".startswith(inside)}
        model = self._load(device_map={**places, **dict.fromkeys(on_disk, "disk")}, **options)
        return StagedModel(model, packed=False, stored=StoredWeights.of(model))

    def _load(self, **options: Any) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder, **options)


@pytest.fixture
def llama(tmp_path: Path) -> Folder:
    return Folder("llama", tmp_path)


@torch.inference_mode()
def logits_of(model: StagedModel) -> list[Tensor]:
    cache, steps = model.new_cache(CAPACITY)
    found = [
        go(model, ids, step, cache)
        for ids, step in (
            (tokens(13), steps.chain(0, 13)),
            (tokens(1, 1), steps.chain(13, 1)),
            (tokens(6, 2), steps.tree(14, TREE)),
        )
    ]
    return [model.logits(hidden) for hidden in found]


def assert_same(model: StagedModel, truth: StagedModel) -> None:
    for ours, theirs in zip(logits_of(model), logits_of(truth), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_on_disk_give_the_same_bits(name: str, tmp_path: Path) -> None:
    folder = Folder(name, tmp_path)
    model = folder.split()
    assert [model.adapter.on_disk(i) for i in range(4)] == [False, True, True, False]
    assert_same(model, folder.whole())


def test_the_final_norm_and_the_head_may_be_on_disk_too(llama: Folder) -> None:
    assert_same(llama.split("model.norm", "lm_head"), llama.whole())


def test_what_is_not_all_in_one_place_is_not_captured(llama: Folder) -> None:
    assert llama.whole().graphs.why_not() is None
    assert "on disk" in (llama.split().graphs.why_not() or "")


def test_what_is_read_has_the_type_that_was_asked_for(llama: Folder) -> None:
    assert_same(llama.split(dtype=torch.bfloat16), llama.whole(dtype=torch.bfloat16))


def test_weights_are_let_go_after_each_call(llama: Folder) -> None:
    model, truth = llama.split(), llama.whole()
    logits_of(model)
    assert all(p.is_meta for i in ON_DISK for p in model.adapter.layers[i].parameters())
    layers = sum(truth.layer_bytes(i) for i in ON_DISK)
    assert model.weight_bytes() == truth.weight_bytes() - layers
    assert [model.layer_bytes(i) for i in range(4)] == [truth.layer_bytes(i) for i in range(4)]
    assert model.layers_by_place() == {"cpu": 2, "disk": 2}


def test_no_hook_of_accelerate_is_left(llama: Folder) -> None:
    assert not any(hasattr(module, "_hf_hook") for module in llama.split().model.modules())


def test_fingerprints_do_not_depend_on_where_weights_are(llama: Folder) -> None:
    model = llama.split()
    ours = weight_fingerprint(model.model, model.adapter.stored)
    assert ours == weight_fingerprint(llama.stock)


@torch.inference_mode()
def test_a_model_without_some_blocks_reads_only_the_others(
    llama: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, read, asked = [], StoredWeights.read, list[str]()

    def spied(self: StoredWeights, names: Iterable[str], device: torch.device) -> dict[str, Tensor]:
        asked.extend(names := list(names))
        return read(self, names, device)

    for model in (llama.whole(), llama.split()):
        session = Session(model, CAPACITY)
        session.reset(tokens(9))
        session.prefill()
        light = SkippedModel(model, attention={1}, mlp={2}).over(session)
        with monkeypatch.context() as watching:
            watching.setattr(StoredWeights, "read", spied)
            found.append(light.logits(light.forward(light.ids(tokens(1, 1)))))
    assert torch.equal(*found)
    blocks = {".".join(name.split(".")[2:4]) for name in asked}
    assert {"1.mlp", "2.self_attn"} <= blocks
    assert not {"1.self_attn", "2.mlp"} & blocks


def test_a_file_that_went_away_is_named(llama: Folder) -> None:
    model = llama.split()
    (llama.folder / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors cannot be read any more"):
        logits_of(model)
