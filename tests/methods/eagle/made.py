"""Networks of EAGLE, made and published as tests need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.decoding.decoder import Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill
from ppdbench.decoding.sampling import GREEDY, Chooser, Target
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.methods.eagle.network import (
    DraftNetwork,
    Eagle1,
    Eagle3,
    default_settings,
    draft_layer_config,
    feature_layers,
)
from ppdbench.methods.eagle.strategy import Eagle, EagleProposer
from ppdbench.trees.tree import Tree
from tests.decoding.matrix import CAPACITY, Case, decode_case
from tests.helpers import VOCAB, tokens

DRAFTED = 40  # the draft vocabulary of networks made here
SMALL = {"depth": 4, "top_k": 4, "nodes": 12}
PROMPTS = [tokens(9, seed) for seed in range(12)]
STATIC = Tree(((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 1, 0), (0, 1, 2), (2, 0, 0)))


def setup(model: StagedModel) -> Setup:
    return Setup(Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, ""), CAPACITY)


def random_network(model: StagedModel, version: int, seed: int = 0) -> DraftNetwork:
    """Weights large enough to have opinions; a draft vocabulary of every second token or so."""
    config = draft_layer_config(default_settings(model.adapter), "tests")
    torch.manual_seed(seed)
    network: DraftNetwork
    if version == 1:
        network = Eagle1(model.adapter, config)
    else:
        network = Eagle3(model.adapter, config, feature_layers(model.n_layers), DRAFTED)
        ids = torch.randperm(VOCAB)[:DRAFTED].sort().values
        network.d2t = ids - torch.arange(DRAFTED)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.25)
    return network.eval().requires_grad_(False)


def tensors_of(network: DraftNetwork) -> dict[str, Tensor]:
    """A network under the published names, with the prefix that EAGLE-3 comes with."""
    found = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    if network.d2t is None:
        return found
    known = torch.zeros(VOCAB, dtype=torch.bool)
    known[network.all_words()] = True
    renamed = {name.replace("layers.0.", "midlayer."): t for name, t in found.items()}
    return {**renamed, "t2d": known}


def written(folder: Path, model: StagedModel, tensors: dict[str, Tensor], **config: Any) -> str:
    """A published folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    settings = default_settings(model.adapter)
    size = tensors["lm_head.weight"].shape[0] if "lm_head.weight" in tensors else VOCAB
    content = {**settings, "draft_vocab_size": size, "torch_dtype": "float16", **config}
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def published(folder: Path, model: StagedModel, version: int) -> str:
    return written(folder, model, tensors_of(random_network(model, version)))


def random_drafter(model: StagedModel, version: int, folder: Path, **options: Any) -> EagleProposer:
    addon = published(folder, model, version)
    return Eagle(addon=addon, **{**SMALL, **options}).prepare(setup(model))


def static(folder: Path) -> str:
    path = folder / "tree.json"
    STATIC.save(path)
    return str(path)


def ready(trained: tuple[Loaded, Path], **options: Any) -> EagleProposer:
    loaded, folder = trained
    return Eagle(addon=str(folder), **{**SMALL, **options}).prepare(Setup(loaded, CAPACITY))


# The draft


class Watched(EagleProposer):
    """Keeps every draft with the text that it was made for."""

    seen: list[tuple[list[int], Draft]]

    def propose(self, session: Session, room: int) -> Draft:
        draft = super().propose(session, room)
        self.seen.append((list(session.tokens), draft))
        return draft


def watch(decoder: EagleProposer, model: StagedModel, n: int = 16) -> list[tuple[list[int], Draft]]:
    decoder.__class__ = Watched
    assert isinstance(decoder, Watched)
    decoder.seen = []
    decode_case(decoder, Case("own", PROMPTS[0], Limits(n)), model)
    return decoder.seen


@torch.inference_mode()
def true_features(network: DraftNetwork, model: StagedModel, text: list[int]) -> Tensor:
    """Of all tokens but the last, from one plain pass of the model."""
    taps: dict[int, Tensor] = {}
    cache, steps = model.new_cache(CAPACITY)
    step = steps.prefill(len(text) - 1)
    model.forward(torch.tensor([text[:-1]]), step, cache, tap=taps.__setitem__)
    return network.features(taps)


def opened(
    decoder: EagleProposer, model: StagedModel, chooser: Chooser = GREEDY
) -> tuple[Session, Any]:
    """A sequence right before its first draft, and what makes one."""
    session = Session(model, CAPACITY, spare=decoder.rows)
    session.reset(PROMPTS[0])
    taps: dict[int, Tensor] = {}
    with torch.inference_mode():
        session.tokens.append(int(session.prefill(tap=taps.__setitem__).argmax()))
        decoder.start(session, Prefill(chooser, taps))
    return session, torch.inference_mode()(lambda room: decoder.propose(session, room))


# Sampling


def drawer(target: Target, seed: int = 3) -> Chooser:
    return Chooser(target, torch.Generator().manual_seed(seed))
