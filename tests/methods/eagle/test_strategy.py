"""EAGLE: what is accepted of what the network drafts, and the output that stays greedy's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ppdbench.decoding.decoder import Guesser, Request
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import Loaded
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError, NumericalError
from ppdbench.methods import METHODS
from ppdbench.methods.eagle.network import (
    Eagle3,
    default_settings,
    draft_layer_config,
)
from ppdbench.methods.eagle.rows import DraftRows
from ppdbench.methods.eagle.strategy import Eagle, EagleProposer
from ppdbench.testing import assert_order_is_nothing, ends_inside_drafts
from tests.decoding.matrix import CAPACITY, CLOCK, Case, assert_exact, cases, decode_case, free
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB, assert_near, staged
from tests.methods.eagle.made import (
    PROMPTS,
    drawer,
    opened,
    random_drafter,
    random_network,
    ready,
    setup,
    static,
    tensors_of,
    true_features,
    watch,
    written,
)

FITTING = sorted(set(FAMILIES) - {"opt-350m-like"})
SOME = {"plain 1", "one token", "3 new tokens", "up to the capacity"}


def accepted(decoder: EagleProposer, model: StagedModel, n: int = 6) -> float:
    """Accepted tokens per step; every output is checked to be greedy's."""
    results = [assert_exact(decoder, Case("own", p, Limits(36)), model) for p in PROMPTS[:n]]
    return sum(sum(r.accepted) for r in results) / sum(len(r.accepted) for r in results)


# The output


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("name", FITTING)
def test_the_output_is_greedy_decodings(name: str, version: int, tmp_path: Path) -> None:
    model = staged(name)
    decoder = random_drafter(model, version, tmp_path)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_in_one_fixed_shape_the_output_is_the_same(tree: str, version: int, tmp_path: Path) -> None:
    tree = static(tmp_path) if tree == "static" else tree
    for name in ("llama", "gemma3", "gpt2"):
        model = staged(name)
        decoder = random_drafter(model, version, tmp_path, tree=tree)
        for case in (case for case in cases(model) if name == "llama" or case.name in SOME):
            assert_exact(decoder, case, model, fixed_rows=decoder.rows)


@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_what_is_accepted_ends_at_eos_and_at_limits(
    tree: str, trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    tree = static(tmp_path) if tree == "static" else tree
    decoder, model = ready(trained, tree=tree), trained[0].staged
    for case in cases(model):
        assert_exact(decoder, case, model)
    inside = ends_inside_drafts(decoder, PROMPTS[:2], model)
    assert inside > 10, "no end fell inside a draft"


def test_the_order_of_examples_changes_nothing(trained: tuple[Loaded, Path]) -> None:
    model = trained[0].staged
    found = assert_order_is_nothing(ready(trained), list(cases(model))[:5], model)
    assert any(map(sum, found))


# What is accepted


def test_trained_networks_are_accepted(trained: tuple[Loaded, Path]) -> None:
    model = trained[0].staged
    assert accepted(ready(trained), model) > 2.5
    assert accepted(ready(trained, tree="chain"), model) > 1.5


def test_disturbed_networks_are_accepted_less_and_the_output_stays(
    trained: tuple[Loaded, Path], tmp_path: Path
) -> None:
    loaded, folder = trained
    whole = accepted(ready(trained), loaded.staged)
    shutil.copytree(folder, disturbed := tmp_path / "disturbed")
    tensors = load_file(file := disturbed / "addon.safetensors")
    norm = tensors["layers.0.post_attention_layernorm.weight"]
    norm.copy_(torch.randn(norm.shape, generator=torch.Generator().manual_seed(1)))
    save_file(tensors, file)
    assert accepted(ready((loaded, disturbed)), loaded.staged) < whole - 1


@pytest.mark.parametrize("mistake", ["late features", "late tokens", "no features"])
def test_each_mistake_in_what_rows_read_costs_acceptance(
    mistake: str, trained: tuple[Loaded, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = trained[0].staged
    decoder = ready(trained)
    whole = accepted(decoder, model, 4)
    read = DraftRows.read

    def wrong(self: DraftRows, ids: Tensor, features: Tensor) -> Tensor:
        if mistake == "late tokens":
            ids = ids.roll(1, 1) if ids.shape[1] > 1 else ids * 0
        elif mistake == "late features":
            features = features.roll(1, 1) if features.shape[1] > 1 else features * 0
        elif self.held:  # after the prompt
            features = features * 0
        return read(self, ids, features)

    monkeypatch.setattr(DraftRows, "read", wrong)
    assert accepted(decoder, model, 4) < whole - 0.3


def test_a_network_that_is_always_right_is_always_accepted(tmp_path: Path) -> None:
    """Layers that add nothing leave the embedding, which the first half of `fc` hands on."""
    stock = stock_model("llama")
    with torch.no_grad():
        for layer in stock.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model = StagedModel(stock)
    tensors = tensors_of(random_network(model, 1))
    tensors["fc.weight"] = torch.eye(32, 64)
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"layers.0.{part}.weight"].zero_()
    addon = written(tmp_path, model, tensors)
    chain = Eagle(addon=addon, tree="chain", depth=4).prepare(setup(model))
    ours = assert_exact(chain, Case("plain", PROMPTS[0], Limits(24)), model)
    assert ours.accepted == ours.proposed == (4, 4, 4, 4, 2)


def test_accepted_rows_are_those_of_the_targets_true_features(
    trained: tuple[Loaded, Path],
) -> None:
    """After trees, branches and rejections the cache is what one pass over the text gives."""
    model, decoder = trained[0].staged, ready(trained)
    text, _ = watch(decoder, model, 30)[-1]
    rows = decoder._rows
    assert rows.held == len(text) - 1
    network = decoder.network
    fresh = DraftRows(network, CAPACITY, 0)
    with torch.inference_mode():
        fresh.read(torch.tensor([text[1:]]), true_features(network, model, text))
    for ours, truth in zip(rows.cache._keys[0], fresh.cache._keys[0], strict=True):
        assert_near(ours[:, : rows.held], truth[:, : rows.held])
    for ours, truth in zip(rows.cache._values[0], fresh.cache._values[0], strict=True):
        assert_near(ours[:, : rows.held], truth[:, : rows.held])


@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_a_draft_costs_one_pass_per_depth_and_one_wait(
    tree: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = staged("llama")
    tree = static(tmp_path) if tree == "static" else tree
    decoder = random_drafter(model, 3, tmp_path, tree=tree)
    passes: list[int] = []
    waits: list[int] = []
    rooms: list[int] = []
    forward, listed, propose = Eagle3.forward, Tensor.tolist, EagleProposer.propose

    def run(self: Eagle3, ids: Tensor, *rest: Any) -> Tensor:
        passes.append(ids.shape[1])
        return forward(self, ids, *rest)

    def read(tensor: Tensor) -> Any:
        waits.append(tensor.numel())
        return listed(tensor)

    def drafted(self: EagleProposer, session: Session, room: int) -> Draft:
        rooms.append(room)
        with monkeypatch.context() as inside:
            inside.setattr(Tensor, "tolist", read)
            return propose(self, session, room)

    monkeypatch.setattr(Eagle3, "forward", run)
    monkeypatch.setattr(EagleProposer, "propose", drafted)
    decode_case(decoder, Case("own", PROMPTS[0], Limits(30)), model)
    assert len(waits) == len(rooms) > 5
    # One of them reads what was accepted; before the first draft it is the prompt.
    assert len(passes) == sum(min(decoder.grower.depth, room) for room in rooms)


# Guesses


@pytest.mark.parametrize("version", [1, 3])
def test_guesses_are_the_chain_that_it_would_draft_there(version: int, tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, version, tmp_path, tree="chain")
    assert isinstance(decoder, Guesser)
    seen = watch(decoder, model, 24)
    text = seen[-1][0]
    places = [len(before) - 2 for before, _ in seen]
    session = Session(model, CAPACITY, spare=decoder.rows)
    with torch.inference_mode():
        found = decoder.guesses(session, text, places)
    assert found.shape == (len(places), 4, VOCAB)
    for place, (_, draft) in zip(found.argmax(-1).tolist(), seen, strict=True):
        assert tuple(place[: len(draft)]) == draft.tokens


def test_guesses_at_the_first_and_the_last_place_need_no_more_text(tmp_path: Path) -> None:
    model = staged("llama")
    decoder = random_drafter(model, 3, tmp_path)
    session = Session(model, CAPACITY)
    with torch.inference_mode():
        both = decoder.guesses(session, PROMPTS[0], [0, 8])
        alone = decoder.guesses(session, PROMPTS[0][:1], [0])
    torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{"tree": "chain"}, {"top_k": 1}])
def test_a_draw_from_one_token_is_the_greedy_output(
    options: dict[str, Any], trained: tuple[Loaded, Path]
) -> None:
    decoder, model = ready(trained, **options), trained[0].staged
    session = Session(model, CAPACITY, spare=decoder.rows)
    one = drawer(Target(kind="top-k", top_k=1))
    ours = decoder.decode(session, Request(PROMPTS[0], Limits(24), CLOCK, one))
    assert ours.output_ids == free(model, PROMPTS[0], 24)
    assert sum(ours.accepted) > 0


@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_sampled_outputs_follow_the_model_through_a_draft_vocabulary(
    tree: str, tmp_path: Path
) -> None:
    """The second token of 300 outputs, against exact probabilities."""
    model = StagedModel(stock_model("llama", vocab_size=6, num_hidden_layers=3))
    network = Eagle3(
        model.adapter, draft_layer_config(default_settings(model.adapter), "tests"), (1, 2, 3), 4
    )
    tensors = {name: t for name, t in network.state_dict().items() if name != "d2t"}
    tensors["d2t"] = torch.tensor([0, 1, 1, 2])
    addon = written(tmp_path, model, tensors)
    decoder = Eagle(addon=addon, tree=tree, depth=2, top_k=2).prepare(setup(model))
    target, n = Target(kind="top-p", top_p=1.0, temperature=2.0), 300
    session, chooser, prompt = Session(model, 16, spare=decoder.rows), drawer(target), [3, 4, 5]

    def after(ids: list[int]) -> Tensor:
        session.reset(ids)
        with torch.inference_mode():
            return target.distribution(session.prefill()[:, -1])[0]

    truth = sum((p * after([*prompt, t]) for t, p in enumerate(after(prompt))), torch.zeros(6))
    counts, kept = torch.zeros(6), 0
    for _ in range(n):
        out = decoder.decode(session, Request(list(prompt), Limits(4), CLOCK, chooser))
        counts[out.output_ids[1]] += 1
        kept += out.accepted[0] > 0
    assert n / 10 < kept < n * 9 / 10
    # Chi-squared over 5 degrees of freedom: 20.5 is passed once in a thousand.
    assert float(((counts - truth * n) ** 2 / (truth * n)).sum()) < 20.5


# Sizes that were left open


@pytest.mark.parametrize(
    ("device", "asked", "sizes"),
    [
        ("cuda", {}, (5, 10, 60)),
        ("cpu", {}, (2, 3, 5)),
        ("cpu", {"nodes": 20, "depth": 6}, (6, 3, 20)),
    ],
)
def test_a_tree_is_small_where_rows_of_a_pass_are_dear(
    device: str, asked: dict[str, int], sizes: tuple[int, int, int]
) -> None:
    found = Eagle(**asked)._sizes(device)
    assert (found["depth"], found["top_k"], found["nodes"]) == sizes


# What is refused


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "no depth": ({"depth": -1}, "eagle: depth=-1; use 0 or more"),
    "no guesses": ({"top_k": -1}, "eagle: top_k=-1; use 0 or more"),
    "no nodes": ({"nodes": -1}, "eagle: nodes=-1; use 0 or more"),
    "no layers": ({"reads": "2,16"}, "eagle: reads='2,16'; use three layers, such as"),
    "two layers": ({"reads": "2+3"}, "eagle: reads='2+3'; use three layers, such as"),
    "no addon": ({}, "eagle: no add-on for tiny; train one with `ppdbench train eagle"),
    "no folder": ({"addon": "nowhere"}, "nowhere holds no draft network"),
    "an empty folder": ({"addon": "."}, "holds no draft network"),
}


@pytest.mark.parametrize("what", sorted(BAD_OPTIONS))
def test_impossible_options_are_errors_that_say_what_to_do(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options, message = BAD_OPTIONS[what]
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        Eagle(**options).prepare(setup(staged("llama")))


@pytest.mark.parametrize("tree", ["dynamic", "chain", "static"])
def test_nan_is_an_error_not_a_draft(tree: str, tmp_path: Path) -> None:
    model = staged("llama")
    tree = static(tmp_path) if tree == "static" else tree
    decoder = random_drafter(model, 3, tmp_path, tree=tree)
    decoder.network.norm.get_parameter("weight").fill_(float("nan"))
    with pytest.raises(NumericalError, match="eagle: NaN or infinite logits of the draft network"):
        opened(decoder, model)[1](9)


def test_it_is_listed_as_exact_and_trained() -> None:
    method = METHODS.get("eagle")
    assert method.exact
    assert method.trained
    built = method.build({"addon": "x", "tree": "chain", "depth": "3", "reads": "2+16+29"})
    assert built == Eagle(addon="x", tree="chain", depth=3, reads="2+16+29")
