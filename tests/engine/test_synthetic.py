"""Synthetic models: what their specification accepts, and that `agree` does what it says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.shapes import NAMED, ModelShape, parse
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import build, tokenizer
from ppdbench.errors import ConfigError, UnknownName
from ppdbench.machine.clock import Clock
from tests.families import greedy_truth

CPU = torch.device("cpu")
SMALL = "synthetic:layers=8,hidden=64,heads=2,vocab=300,context=256"


def stock(spec: str = SMALL, **changes: object) -> Any:
    more = "".join(f",{key}={value}" for key, value in changes.items())
    return build(parse(spec + more), torch.float32, CPU)


# Specifications


def test_a_specification_names_a_shape_and_changes_it() -> None:
    assert parse("synthetic:llama-7b") == NAMED["llama-7b"]
    assert parse("llama-7b, agree=0.5") == parse("synthetic:llama-7b,agree=0.5")
    changed = parse("synthetic:llama-8b,layers=4,tie=true,seed=3")
    assert (changed.layers, changed.tie, changed.seed) == (4, True, 3)
    assert (changed.hidden, changed.n_kv_heads) == (4096, 8)
    assert parse("synthetic:layers=3,hidden=128") == ModelShape(layers=3, hidden=128)


def test_sizes_that_are_not_given_follow_from_the_width() -> None:
    shape = parse("synthetic:hidden=256")
    assert (shape.n_heads, shape.n_kv_heads, shape.n_ffn) == (4, 4, 704)
    assert parse("synthetic:hidden=32").n_heads == 1


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-7b", 6.74), ("llama-8b", 8.03), ("llama-13b", 13.02), ("llama-70b", 68.98)],
)
def test_named_shapes_have_as_many_parameters_as_their_namesakes(
    name: str, billions: float
) -> None:
    s = NAMED[name]
    attention = 2 * s.hidden * s.hidden * (1 + s.n_kv_heads / s.n_heads)
    layer = attention + 3 * s.hidden * s.n_ffn + 2 * s.hidden
    total = s.layers * layer + s.hidden + s.vocab * s.hidden * (1 if s.tie else 2)
    assert round(total / 1e9, 2) == billions


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("synthetic:", r"names no shape.*llama-7b.*synthetic:layers=12"),
        ("synthetic:lama-7b", r"unknown synthetic shape 'lama-7b': did you mean llama-7b"),
        ("synthetic:nothing-like-it", r"unknown synthetic shape .*known: .*llama-7b"),
        ("synthetic:layrs=3", r"setting 'layrs': did you mean layers\?"),
        ("synthetic:llama-7b,layers", r"layers='' is not a"),
        ("synthetic:layers=3,llama-7b", r"setting 'llama-7b'"),
        ("synthetic:layers=2.5", r"layers='2\.5' is not a"),
        ("synthetic:layers=8=9", r"layers='8=9' is not a"),
        ("synthetic:agree=x", r"agree='x' is not a float"),
        ("synthetic:tie=maybe", r"tie='maybe' is not a bool; use true or false"),
        ("synthetic:agree=1.01", r"agree=1\.01; use 0\.\.1"),
        ("synthetic:agree=-0.1", r"agree=-0\.1; use 0\.\.1"),
        ("synthetic:agree=nan", r"agree=nan; use 0\.\.1"),
        ("synthetic:layers=4,layers=4", r"layers is given twice"),
        ("synthetic:layers=0", r"layers=0; use 1 or more"),
        ("synthetic:context=1", r"context=1; use 2 or more"),
        ("synthetic:vocab=258", r"vocab=258; use 259 or more"),
        ("synthetic:hidden=64,heads=3", r"hidden=64 does not split into 3 heads"),
        ("synthetic:hidden=12,heads=4", r"hidden=12 does not split into 4 heads of even size"),
        ("synthetic:hidden=64,heads=4,kv_heads=3", r"heads=4 is no multiple of kv_heads=3"),
        ("synthetic:hidden=64,heads=4,kv_heads=8", r"heads=4 is no multiple of kv_heads=8"),
        ("synthetic:heads=-2", r"heads=-2; use"),
        ("synthetic:kv_heads=-1", r"kv_heads=-1; use"),
        ("synthetic:ffn=-64", r"ffn=-64; use"),
    ],
)
def test_a_bad_specification_is_refused_in_one_line(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(spec)
    assert "\n" not in str(caught.value)


def test_a_misspelt_name_is_an_unknown_name() -> None:
    with pytest.raises(UnknownName):
        parse("synthetic:llama7b")


# Weights


def weights(model: Any) -> dict[str, Tensor]:
    return dict(model.state_dict())


def test_the_same_seed_gives_the_same_weights_and_another_seed_others() -> None:
    first, again, other = (weights(stock(seed=seed)) for seed in (1, 1, 2))
    assert list(first) == list(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    random = [name for name in first if first[name].dim() > 1]
    assert len(random) >= 8 * 7 + 2
    assert not any(torch.equal(first[name], other[name]) for name in random)


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    stock()
    assert torch.equal(torch.rand(1), expected)


def test_agree_leaves_the_layers_below_the_first_quarter_alone() -> None:
    plain, quiet = weights(stock()), weights(stock(agree=0.75))
    for name, tensor in plain.items():
        layer = int(name.split("layers.")[1].split(".")[0]) if "layers." in name else None
        adds = name.endswith(("o_proj.weight", "down_proj.weight"))
        if adds and layer is not None and layer >= 2:
            torch.testing.assert_close(quiet[name], tensor / 4)
        else:
            assert torch.equal(quiet[name], tensor)


def test_a_tied_model_has_one_matrix_for_both_ends() -> None:
    model = stock(tie="true")
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    apart = stock()
    assert not torch.equal(apart.lm_head.weight, apart.model.embed_tokens.weight)


@torch.inference_mode()
def agreement(agree: float, seed: int) -> list[float]:
    """After each layer, the share of positions whose greedy token is the final one."""
    model = StagedModel(stock(agree=agree, seed=seed))
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 259, (4, 128), generator=draw)
    cache, steps = model.new_cache(128)
    step = steps.chain(0, 128)
    picks: dict[int, list[Tensor]] = {n: [] for n in range(1, model.n_layers + 1)}

    def pick(layer: int, hidden: Tensor) -> None:
        picks[layer].append(model.logits(hidden).argmax(-1))

    for text in ids:
        model.forward(text[None], step, cache, tap=pick)
    found = [torch.cat(picked) for picked in picks.values()]
    return [float((picked == found[-1]).float().mean()) for picked in found]


def test_more_agree_means_more_agreement_in_the_middle() -> None:
    middle = [agreement(agree, seed=0)[3] for agree in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)]
    assert all(low < high for low, high in pairwise(middle))
    assert middle[0] < 0.3
    assert middle[-1] == 1.0


def test_full_agreement_begins_above_the_first_quarter_and_not_before() -> None:
    rates = agreement(1.0, seed=1)
    assert rates[0] < 1.0
    assert rates[1:] == [1.0] * 7


def test_tokens_depend_on_the_context_and_are_no_near_ties() -> None:
    """A what-if model whose logits were all alike would test rounding."""
    logits = stock()(torch.randint(3, 259, (1, 64))).logits[0].detach()
    best = logits.topk(2).values
    assert len(set(logits.argmax(-1).tolist())) > 20
    assert float((best[:, 0] - best[:, 1]).median()) > 0.05


# Tokenizer


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        "  two  spaces, a\ttab,\r\na line \n\n",
        "naïve café, Straße, Ω≈ç√",
        "日本語のテキスト",
        "🙂👩‍👩‍👧 and \u200b nothing",
        "\x00\x01\x7f",
        "don't can't .Punctuation , spaced !",
        "⟨259⟩ is not token 259",
    ],
)
def test_any_text_survives_the_tokenizer(text: str) -> None:
    words = tokenizer(300, 64)
    ids = words.encode(text)
    assert words.decode(ids) == text
    assert len(ids) == len(text.encode())
    assert max(ids) < 3 + 256


def test_ids_beyond_bytes_decode_to_a_visible_placeholder() -> None:
    words = tokenizer(300, 64)
    assert len(words) == 300
    assert words.decode([259]) == "⟨259⟩"
    a, b = words.encode("ab")
    assert words.decode([a, 299, b, 259]) == "a⟨299⟩b⟨259⟩"


def test_special_ids_are_those_the_model_declares() -> None:
    words, config = tokenizer(300, 64), stock().config
    for kind in ("pad", "bos", "eos"):
        assert getattr(words, f"{kind}_token_id") == getattr(config, f"{kind}_token_id")
    assert words.model_max_length == 64


# As a model like any other


def greedy(loaded: Loaded, prompt: list[int], n: int) -> tuple[int, ...]:
    session = Session(loaded.staged, 128)
    return autoregressive(
        session, Request(prompt, Limits(n, loaded.eos_ids), Clock(CPU))
    ).output_ids


def test_a_saved_synthetic_model_loads_as_a_folder_and_gives_the_same_tokens(
    tmp_path: Path,
) -> None:
    model, words = stock(tie="true"), tokenizer(300, 256)
    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    direct = load(ModelSpec(name=SMALL + ",tie=true"))
    folder = load(ModelSpec(name=str(tmp_path)))
    assert direct.spec.is_synthetic
    assert not folder.spec.is_synthetic
    assert folder.fingerprint == direct.fingerprint
    assert (folder.eos_ids, folder.pad_id) == (direct.eos_ids, direct.pad_id) == ({2}, 0)
    assert folder.max_positions == direct.max_positions == 256
    text = "Once upon a time"
    prompt = direct.tokenizer.encode(text)
    assert folder.tokenizer.encode(text) == prompt
    expected = tuple(greedy_truth(model, prompt, 20))
    assert greedy(direct, prompt, 20) == greedy(folder, prompt, 20) == expected
    assert len(set(expected)) > 4
