"""Which layer goes where, and what is said where there is no room for it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine import placement, synthetic
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.cache import KVCache
from ppdbench.engine.footprint import Footprint, measure, on_meta
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.placement import DeviceMap, FreeMemory, Place, device_map, spread
from ppdbench.engine.session import Session
from ppdbench.engine.shapes import parse
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from tests.families import FAMILIES, stock_model

CPU = torch.device("cpu")
SHAPE = parse("synthetic:layers=8,hidden=64,ffn=192,vocab=300,context=4096")
SPEC = "synthetic:layers=8,hidden=64,ffn=192,vocab=300,context=4096"


def bare(context: int = 128) -> tuple[Adapter, Footprint]:
    model = on_meta(synthetic.configuration(SHAPE), torch.float32)
    return Adapter(model), measure(model, CPU, context)


def layers_of(found: DeviceMap) -> list[Place]:
    return [found[f"model.layers.{i}"] for i in range(SHAPE.layers)]


def distributed(mode: str, free: dict[Place, int], context: int = 128) -> list[Place]:
    adapter, need = bare(context)
    return layers_of(device_map(mode, adapter, need, FreeMemory(free)))


# The arithmetic


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_counted_to_the_byte_before_they_are_there(
    name: str, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packed:
        monkeypatch.setattr("ppdbench.engine.packing.PAYS_FROM", {})
    truth = stock_model(name)
    need = measure(on_meta(truth.config, torch.float32), CPU, 64)
    model = StagedModel(truth, packed=packed)
    tables = sum(b.numel() * b.element_size() for b in model.model.buffers())
    assert need.weights == model.weight_bytes() - tables
    assert need.cache == KVCache(model.cache_shape, 64).nbytes
    assert need.states == 0
    assert need.total == need.weights + need.cache + need.passes


def test_weights_that_layers_share_are_counted_with_the_first_of_them() -> None:
    model = on_meta(tiny("zamba").config, torch.float32)
    need = measure(model, CPU, 64)
    assert need.layers[3] < need.layers[1]
    assert need.around == sum(p.numel() * 4 for p in model.parameters()) - sum(need.layers) > 0


@pytest.mark.parametrize("family", ["lfm2", "falcon_h1", "mamba", "qwen3_next"])
@torch.inference_mode()
def test_states_are_counted_to_the_byte_with_the_copies_that_rejected_drafts_need(
    family: str,
) -> None:
    model = tiny(family)
    need = measure(on_meta(model.config, torch.float32), CPU, 64)
    session = Session(StagedModel(model), 64)
    session.reset(list(range(20)))
    session.prefill()
    for _ in range(6):  # more rows than states are kept behind
        session.forward(session.ids([3, 4, 5]))
    assert need.states > 0
    assert session.cache.nbytes == need.cache + need.states
    assert need.total == need.weights + need.cache + need.states + need.passes


def test_half_the_type_is_half_the_memory() -> None:
    config = synthetic.configuration(SHAPE)
    full, half = (
        measure(on_meta(config, dtype), CPU, 512) for dtype in (torch.float32, torch.bfloat16)
    )
    assert (full.weights, full.cache, full.passes) == (
        2 * half.weights,
        2 * half.cache,
        2 * half.passes,
    )


def test_eight_and_four_bits_shrink_the_layers_alone() -> None:
    model = on_meta(synthetic.configuration(SHAPE), torch.float32)
    plain, int8, nf4 = (measure(model, CPU, 0, scheme) for scheme in (None, "int8", "nf4"))
    assert plain.around == int8.around == nf4.around
    assert sum(plain.layers) > 3.5 * sum(int8.layers) > 1.5 * 3.5 * sum(nf4.layers)


# Distributed


@pytest.mark.parametrize("mode", ["auto", "balanced", "sequential"])
def test_what_fits_on_the_first_device_goes_there(mode: str) -> None:
    assert set(distributed(mode, {"cpu": 1 << 30})) == {"cpu"}


@pytest.mark.parametrize("mode", ["auto", "balanced", "sequential"])
def test_no_place_is_filled_beyond_its_memory(mode: str) -> None:
    adapter, need = bare()
    memory = FreeMemory({0: need.total // 2, 1: need.total // 6, "cpu": need.total // 6})
    found = device_map(mode, adapter, need, memory)
    held = spread(found, adapter, need)
    assert "disk" in held
    assert all(size <= memory.free[place] for place, size in held.items() if place != "disk")
    assert layers_of(found) == sorted(layers_of(found), key=[0, 1, "cpu", "disk"].index)


def test_balanced_gives_two_devices_about_as_many_layers_and_sequential_fills_the_first() -> None:
    free: dict[Place, int] = {0: 1 << 28, 1: 1 << 28, "cpu": 1 << 28}
    counts = Counter(distributed("balanced", free))
    assert set(counts) == {0, 1}
    assert abs(counts[0] - counts[1]) <= 2
    assert set(distributed("sequential", free)) == {0}


def test_longer_sequences_leave_room_for_fewer_layers() -> None:
    free: dict[Place, int] = {"cpu": 3_000_000}
    short, long = (distributed("auto", free, context) for context in (64, 256))
    assert 0 < long.count("cpu") < short.count("cpu")


def test_embedding_and_head_stay_where_tokens_enter() -> None:
    adapter, need = bare()
    found = device_map("auto", adapter, need, FreeMemory({"cpu": need.total // 2}))
    assert {found[name] for name in ("model.embed_tokens", "model.norm", "lm_head")} == {"cpu"}


def test_a_device_too_small_for_embedding_and_head_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"embedding, head and passes of 128 tokens need .* cpu"):
        distributed("auto", {"cpu": 1000})


# As a file says

HALVES = {"": 0, **{f"model.layers.{i}": "cuda:1" for i in range(4, 8)}}


def from_file(content: Any, path: Path, free: dict[Place, int] | None = None) -> DeviceMap:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    adapter, need = bare()
    rooms = {0: 1 << 30, 1: 1 << 30, "cpu": 1 << 30} if free is None else free
    return device_map(str(path), adapter, need, FreeMemory(rooms))


def test_a_file_puts_layers_where_it_says(tmp_path: Path) -> None:
    found = from_file(HALVES, tmp_path / "map.json")
    assert layers_of(found) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert found["lm_head"] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON file"),
        ([], "expected modules and devices"),
        ({"model.layers.0": "cpu"}, "does not say where model.embed_tokens goes"),
        ({"": 0, "model.layer.0": "cpu"}, "no module 'model.layer.0'; layers are model.layers.0"),
        ({"": 0, "model.layers.0": "tpu"}, "'tpu' is no device; use cuda:N, cpu or disk"),
        ({"": 0, "model.layers.0": True}, "True is no device"),
        ({"": 7}, "no cuda:7 for the model; use cuda:0, cuda:1, cpu, disk"),
        ({"": 0, "model.layers.0.mlp": "cpu"}, "a layer goes as a whole"),
        ({"": "disk"}, "model.embed_tokens on disk; tokens enter there"),
    ],
)
def test_a_file_that_cannot_work_is_refused_in_one_line(
    content: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        from_file(content, tmp_path / "map.json")
    assert "\n" not in str(caught.value)


def test_a_head_that_shares_its_weights_goes_with_the_embedding(tmp_path: Path) -> None:
    shape = parse("synthetic:layers=2,hidden=64,vocab=300,tie=true")
    model = on_meta(synthetic.configuration(shape), torch.float32)
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"": 0, "lm_head": 1}), "utf-8")
    memory = FreeMemory({0: 1 << 30, 1: 1 << 30})
    found = device_map(str(path), Adapter(model), measure(model, CPU, 64), memory)
    assert found["lm_head"] == 0


# What a user reads


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two megabytes."""
    memory = placement.FreeMemory({"cpu": 2_000_000})
    monkeypatch.setattr(placement.FreeMemory, "found", lambda *_: memory)


@pytest.mark.usefixtures("small")
def test_a_model_that_is_too_large_is_refused_before_it_is_made() -> None:
    with pytest.raises(ConfigError) as caught:
        load(ModelSpec(name=SPEC), context=256)
    text = str(caught.value)
    assert text.startswith("model needs 4.")
    for part in ("(weights ", "keys and values of 256 tokens ", "cpu has 2.0 MB: use"):
        assert part in text
    for way in ("--dtype bfloat16", "--quantize int8", "--device-map auto"):
        assert way in text


@pytest.mark.usefixtures("small")
def test_a_type_that_was_asked_for_is_not_suggested_again() -> None:
    with pytest.raises(ConfigError) as caught:
        load(ModelSpec(name=f"{SPEC},ffn=4096", dtype="bfloat16"), context=256)
    assert "--dtype" not in str(caught.value)


@pytest.mark.usefixtures("small")
def test_synthetic_weights_have_no_files_to_stay_in() -> None:
    with pytest.raises(ConfigError, match="synthetic weights have no files to stay in"):
        load(ModelSpec(name=SPEC, device_map="auto"), context=64)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device_map": "automatic"}, "use auto, balanced, sequential or a JSON file"),
        ({"max_memory": "cpu=1GB"}, "--max-memory limits what --device-map distributes"),
        ({"device_map": "auto", "quantize": "int8"}, "--quantize is for models on one device"),
        ({"device_map": "auto", "max_memory": "cpu"}, "use sizes such as 20GB or 500MiB"),
        ({"device_map": "auto", "max_memory": "cpu=lots"}, "use sizes such as 20GB"),
        ({"device_map": "auto", "max_memory": "cuda:9=1GB"}, "there is no cuda:9 here"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(
    settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppdbench.engine.loading.check_scheme", lambda name: None)
    with pytest.raises(ConfigError, match=message) as caught:
        load(ModelSpec(name=SPEC, device="cpu", **settings))
    assert "\n" not in str(caught.value)
