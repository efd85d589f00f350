"""Files of EAGLE: every way to publish a network, and every way in which one is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.decoder import Setup
from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import Loaded, ModelSpec, take_over
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.methods.eagle.files import load_network
from ppdbench.methods.eagle.network import Eagle3, feature_layers
from ppdbench.methods.eagle.plan import EaglePlan
from ppdbench.methods.eagle.strategy import Eagle
from ppdbench.methods.eagle.train import EagleObjective
from tests.decoding.matrix import CAPACITY, Case, assert_exact
from tests.families import stock_model
from tests.helpers import VOCAB, staged
from tests.methods.eagle.made import (
    DRAFTED,
    PROMPTS,
    SMALL,
    published,
    random_drafter,
    random_network,
    ready,
    setup,
    static,
    tensors_of,
    watch,
    written,
)


@pytest.mark.parametrize("version", [1, 3])
def test_every_way_to_publish_the_same_network_gives_the_same_drafts(
    version: int, tmp_path: Path
) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, version))
    variants = {"plain": tensors}
    variants["other prefix"] = {n.replace("midlayer.", "layers.0."): t for n, t in tensors.items()}
    embedding = model.adapter.embedding.get_parameter("weight").clone()
    variants["with the embedding"] = {**tensors, "embed_tokens.weight": embedding}
    variants["with frequencies"] = {
        **tensors,
        "layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4),
    }
    zero = {"fc.bias": 32, "layers.0.self_attn.q_proj.bias": 32, "layers.0.mlp.up_proj.bias": 48}
    plain = variants["other prefix"]
    variants["with biases"] = {**plain, **{n: torch.zeros(size) for n, size in zero.items()}}
    if version == 3:
        variants["without t2d"] = {n: t for n, t in tensors.items() if n != "t2d"}
    found = {}
    for name, variant in variants.items():
        addon = written(tmp_path / name, model, variant)
        found[name] = watch(Eagle(addon=addon, **SMALL).prepare(setup(model)), model)
    torch.save(tensors, tmp_path / "plain" / "pytorch_model.bin")
    (tmp_path / "plain" / "model.safetensors").unlink()
    addon = str(tmp_path / "plain")
    found["pickled"] = watch(Eagle(addon=addon, **SMALL).prepare(setup(model)), model)
    assert all(drafts == found["plain"] for drafts in found.values())


@pytest.mark.parametrize("changed", ["fc.bias", "embed_tokens.weight"])
def test_what_some_files_hold_besides_is_used(changed: str, tmp_path: Path) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, 1))
    shape = (32,) if changed == "fc.bias" else (VOCAB, 32)
    more = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    plain = random_drafter(model, 1, tmp_path / "plain")
    addon = written(tmp_path / "more", model, {**tensors, changed: more})
    other = Eagle(addon=addon, **SMALL).prepare(setup(model))
    assert watch(plain, model) != watch(other, model)


def test_a_head_over_the_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, 3))
    del tensors["d2t"], tensors["t2d"]
    tensors["lm_head.weight"] = torch.randn(VOCAB, 32)
    decoder = Eagle(addon=written(tmp_path, model, tensors), **SMALL).prepare(setup(model))
    assert decoder.network.n_words == VOCAB
    assert_exact(decoder, Case("own", PROMPTS[0], Limits(20)), model)


def test_files_may_say_which_layers_they_read_and_an_option_overrules_them(
    tmp_path: Path,
) -> None:
    model = staged("llama")
    addon = published(tmp_path / "plain", model, 3)
    assert Eagle(addon=addon).prepare(setup(model)).taps == feature_layers(4)
    said = written(
        tmp_path / "said",
        model,
        tensors_of(random_network(model, 3)),
        eagle_aux_hidden_state_layer_ids=[1, 3, 4],
    )
    assert Eagle(addon=said).prepare(setup(model)).taps == (1, 3, 4)
    overruled = Eagle(addon=said, reads="1+2+3", **SMALL).prepare(setup(model))
    assert overruled.taps == (1, 2, 3)
    assert_exact(overruled, Case("own", PROMPTS[0], Limits(20)), model)


def test_the_rotary_positions_are_those_of_the_file(tmp_path: Path) -> None:
    model = staged("llama")
    tensors = tensors_of(random_network(model, 1))
    drafts = []
    for theta in (10000.0, 10.0):
        folder = tmp_path / str(theta)
        addon = written(folder, model, tensors)
        config = json.loads((folder / "config.json").read_text())
        del config["rope_parameters"]
        (folder / "config.json").write_text(json.dumps({**config, "rope_theta": theta}))
        drafts.append(watch(Eagle(addon=addon, **SMALL).prepare(setup(model)), model))
    assert drafts[0] == watch(random_drafter(model, 1, tmp_path / "plain"), model)
    assert drafts[0] != drafts[1]


def test_what_was_read_is_told_by_its_fingerprint(tmp_path: Path) -> None:
    model = staged("llama")
    one, two = (random_drafter(model, v, tmp_path / str(v)).loaded for v in (1, 3))
    assert one["addon"] != two["addon"]
    tree = random_drafter(model, 1, tmp_path / "tree", tree=static(tmp_path)).loaded
    assert tree["addon"] == one["addon"]
    assert "tree" in tree


BAD_READS: dict[str, tuple[int, str, str]] = {
    "of version 1": (1, "1+2+3", r"reads=1\+2\+3, but .* holds EAGLE-1"),
    "beyond the last": (3, "1+2+5", "features after layer 5, but this model has 4 layers"),
}


@pytest.mark.parametrize("what", sorted(BAD_READS))
def test_layers_that_cannot_be_read_are_refused(what: str, tmp_path: Path) -> None:
    version, reads, message = BAD_READS[what]
    with pytest.raises(ConfigError, match=message):
        random_drafter(staged("llama"), version, tmp_path, reads=reads)


def some(version: int, **changed: Any) -> dict[str, Tensor]:
    """Tensors of a network, some replaced, some (None) left out."""
    tensors: dict[str, Any] = tensors_of(random_network(staged("llama"), version))
    tensors |= {name.replace("__", "."): value for name, value in changed.items()}
    return {name: value for name, value in tensors.items() if value is not None}


BAD_TENSORS: dict[str, tuple[dict[str, Tensor], str]] = {
    "a missing projection": (
        some(1, layers__0__self_attn__k_proj__weight=None),
        r"lacks the tensor layers\.0\.self_attn\.k_proj\.weight",
    ),
    "a missing norm": (
        some(3, midlayer__hidden_norm__weight=None),
        r"lacks the tensor midlayer\.hidden_norm\.weight",
    ),
    "a missing map": (some(3, d2t=None), "lacks the tensor d2t"),
    "a second layer": (
        some(1, layers__1__mlp__up_proj__weight=torch.zeros(48, 32)),
        r"unexpected tensors: layers\.1\.mlp\.up_proj\.weight",
    ),
    "an unknown bias": (some(3, norm__bias=torch.zeros(32)), r"unexpected tensors: norm\.bias"),
    "another width": (
        some(1, fc__weight=torch.zeros(32, 48)),
        r"fc\.weight has shape \[32, 48\], not \[32, 64\]",
    ),
    "another vocabulary": (
        some(1, embed_tokens__weight=torch.zeros(90, 32)),
        r"embed_tokens\.weight has shape \[90, 32\], not \[96, 32\]",
    ),
    "a map out of the vocabulary": (
        some(3, d2t=torch.full((DRAFTED,), 90)),
        r"d2t leads to ids outside 0\.\.95",
    ),
    "a map below the vocabulary": (
        some(3, d2t=torch.full((DRAFTED,), -5)),
        r"d2t leads to ids outside 0\.\.95",
    ),
    "a map that meets itself": (
        some(3, d2t=-torch.arange(DRAFTED)),
        "d2t leads to the same id twice",
    ),
    "a map of fractions": (some(3, d2t=torch.zeros(DRAFTED)), r"d2t holds torch\.float32"),
    "maps that differ": (
        some(3, t2d=torch.zeros(VOCAB, dtype=torch.bool)),
        "t2d and d2t do not name the same ids",
    ),
}


@pytest.mark.parametrize("what", sorted(BAD_TENSORS))
def test_wrong_tensors_are_named(what: str, tmp_path: Path) -> None:
    tensors, message = BAD_TENSORS[what]
    model = staged("llama")
    with pytest.raises(ConfigError, match=message):
        Eagle(addon=written(tmp_path, model, tensors)).prepare(setup(model))


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "another width": ({"hidden_size": 64}, "network is 64 wide, this model 32"),
    "no number": ({"num_attention_heads": "4"}, "describes no layer that can be built"),
    "an unknown activation": ({"hidden_act": "sinus"}, "describes no layer that can be built"),
    "unknown positions": (
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        "describes no layer that can be built",
    ),
    "nothing about heads": ({"num_attention_heads": None}, "does not say num_attention_heads"),
    "no size": ({"draft_vocab_size": "many"}, r"draft_vocab_size='many'; use 1\.\.96"),
    "too large a size": ({"draft_vocab_size": 97}, r"draft_vocab_size=97; use 1\.\.96"),
    "two layers": (
        {"eagle_aux_hidden_state_layer_ids": [1, 2]},
        r"EAGLE-3 reads are three numbers, not \[1, 2\]",
    ),
    "another residual": ({"norm_before_residual": True}, "norm_before_residual is not supported"),
}


@pytest.mark.parametrize("what", sorted(BAD_CONFIGS))
def test_wrong_configurations_are_one_line(what: str, tmp_path: Path) -> None:
    config, message = BAD_CONFIGS[what]
    model = staged("llama")
    addon = written(tmp_path, model, tensors_of(random_network(model, 3)), **config)
    with pytest.raises(ConfigError, match=message) as caught:
        Eagle(addon=addon).prepare(setup(model))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", '{"a": '])
def test_torn_configurations_are_named(content: str, tmp_path: Path) -> None:
    model = staged("llama")
    addon = published(tmp_path, model, 1)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=r"config\.json"):
        Eagle(addon=addon).prepare(setup(model))


class Harmful:
    def __reduce__(self) -> Any:
        return (os.system, ("true",))


def test_a_published_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    model = staged("llama")
    addon = published(tmp_path, model, 1)
    (tmp_path / "model.safetensors").unlink()
    torch.save({**some(1), "more": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin is refused"):
        Eagle(addon=addon).prepare(setup(model))
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(ConfigError, match="or a published model"):
        Eagle(addon=addon).prepare(setup(model))


def test_a_network_for_another_model_is_refused(trained: tuple[Loaded, Path]) -> None:
    words = tokenizer(300, 96)
    other = take_over(ModelSpec(name="other"), stock_model("llama", seed=1), words)
    with pytest.raises(ConfigError, match="were trained for another model"):
        Eagle(addon=str(trained[1])).prepare(Setup(other, CAPACITY))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eagle": 2}, "eagle is 2; use 1 or 3"),
        ({"eagle": "3"}, "eagle must be a whole number"),
        ({"network": 3}, "network must be a mapping"),
        ({"network": {}}, "does not say hidden_size"),
        ({"eagle": 3, "draft_vocab": 97}, r"draft_vocab is 97 .*; use 0\.\.96"),
        ({"eagle": 3, "draft_vocab": 0, "rank": -1}, "rank -1; use .* 0 or more"),
        ({"eagle": 3, "reads": [1, 2]}, r"three numbers, not \[1, 2\]"),
    ],
)
def test_an_addon_whose_options_do_not_fit_is_refused(
    change: dict[str, Any], message: str, trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    loaded, folder = trained
    header = json.loads((folder / "addon.json").read_text())
    header["options"] |= {"reads": [1, 2, 4], "rank": 0, **change}
    (tmp_path / "addon.json").write_text(json.dumps(header))
    (tmp_path / "addon.safetensors").write_bytes((folder / "addon.safetensors").read_bytes())
    with pytest.raises(ConfigError, match=message):
        load_network(str(tmp_path), loaded)


def test_an_addon_says_itself_what_it_reads(trained: tuple[Loaded, Path]) -> None:
    with pytest.raises(ConfigError, match="says itself what it reads"):
        ready(trained, reads="1+2+3")


def test_a_change_of_the_models_rows_becomes_one_matrix(tmp_path: Path) -> None:
    """What was trained, and what is read of it: rows of the head and what is added to them."""
    words, stock = torch.tensor([3, 5, 8, 13, 21, 34, 55, 89]), stock_model("llama")
    plan = EaglePlan(passes=1, draft_vocab=len(words), rank=4)
    objective = EagleObjective(stock, plan, 16, 0, words=words)
    network = objective.network
    assert isinstance(network, Eagle3)
    assert network.change is not None
    with torch.no_grad():
        for part in network.change.parameters():
            part += torch.randn_like(part)
    states = torch.randn(1, 5, 32)
    trained = network.logits(states)
    down, up = (part.get_parameter("weight") for part in network.change)
    rows = stock.get_output_embeddings().weight[words] + up @ down
    torch.testing.assert_close(trained, network.norm(states) @ rows.T, atol=1e-4, rtol=1e-4)
    tokens = tokenizer(300, 96)
    objective.save(tmp_path, tokens, torch.float32)
    assert (tmp_path / "addon.safetensors").stat().st_size < 4 * sum(
        p.numel() for name, p in network.named_parameters() if "change" not in name
    ) + 4 * 4 * (32 + len(words)) + 8 * len(words) + 4096
    loaded = take_over(ModelSpec(name="tiny"), stock, tokens)
    read = load_network(str(tmp_path), loaded)
    assert read.network.all_words().tolist() == words.tolist()
    torch.testing.assert_close(read.network.logits(states), trained, atol=1e-4, rtol=1e-4)
    if read.flat is not None:
        torch.testing.assert_close(read.flat.logits(states), trained, atol=1e-4, rtol=1e-4)
