"""Draft networks from files: our own add-ons, and what the authors of EAGLE publish.

A published folder has `config.json` and `model.safetensors` or `pytorch_model.bin`. Which
version it is shows in its tensors. EAGLE-3 calls its layer `midlayer.` or, like EAGLE-1,
`layers.0.`; `d2t` holds what to add to a draft id for the target's, `t2d` says the same the
other way round. Some carry a copy of the target's embedding, and biases where it has them.

An add-on has the same tensors under `layers.0.`; its options are `eagle` (the version),
`network` (the layer's configuration) and, for version 3, `reads`, `draft_vocab` and `rank`: with
both of these it holds, in place of a head, a low-rank change of the rows of the model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ppdbench.engine.addons import ADDON, Weights, addon_folder, open_addon
from ppdbench.engine.heads import head_rows
from ppdbench.engine.loading import Loaded
from ppdbench.engine.packing import SharedWords, is_lookup
from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_json
from ppdbench.files.keys import Keys
from ppdbench.methods.eagle.choice import lay_out_draft
from ppdbench.methods.eagle.flat import FlatDraft
from ppdbench.methods.eagle.network import (
    SETTINGS,
    DraftNetwork,
    Eagle1,
    Eagle3,
    draft_layer_config,
    feature_layers,
)
from ppdbench.methods.eagle.plan import VERSIONS

METHOD = "eagle"
CONFIG = "config.json"
PUBLISHED = ("model.safetensors", "pytorch_model.bin")
OLDER_SETTINGS = ("rope_theta", "rope_scaling")  # what became `rope_parameters`
OURS, THEIRS = "layers.0.", "midlayer."
ONLY_IN_3 = {"norm.weight", "lm_head.weight", "d2t", "t2d", f"{OURS}hidden_norm.weight"}


class LoadedDraft(NamedTuple):
    """A network ready to run, flat where it can, and the fingerprint of its weights."""

    network: DraftNetwork
    flat: FlatDraft | None
    fingerprint: str


def load_network(folder: str, loaded: Loaded, reads: tuple[int, ...] = ()) -> LoadedDraft:
    """The network in `folder`, run flat where the model itself is.

    `reads` names the layers that a published EAGLE-3 reads, where its files do not.
    """
    home = addon_folder(folder, METHOD, loaded)
    weights: Weights
    if (home / ADDON.header).is_file():
        addon = open_addon(folder, METHOD, loaded)
        weights, network = addon, _described(addon.options, home / ADDON.header, loaded, reads)
    else:
        weights = Weights(_published_file(home), loaded)
        network = _recognized(weights, home, loaded, reads)
    fill(network, weights)
    if isinstance(network, Eagle3) and network.change is not None and network.d2t is not None:
        network.settle_head(head_rows(loaded, network.all_words()))
    network.eval().requires_grad_(False)
    flat = lay_out_draft(network, flat=loaded.staged.flat is not None)
    return LoadedDraft(network, flat, weights.fingerprint)


def _described(
    options: dict[str, Any], file: Path, loaded: Loaded, reads: tuple[int, ...]
) -> DraftNetwork:
    """The network that an add-on's options describe, without weights."""
    if reads:
        raise ConfigError(f"eagle: reads={_listed(reads)}, but {file} says itself what it reads")
    keys = Keys(options, f"{file}: options")
    version, target = keys.number("eagle"), loaded.staged.adapter
    if version not in VERSIONS:
        raise keys.error(f"eagle is {version}; use {' or '.join(map(str, VERSIONS))}")
    keys.section("network")  # that it is a mapping
    config = _fitting(options["network"], file, loaded)
    with torch.device("meta"):
        if version == 1:
            return Eagle1(target, config)
        layers = _layers(keys.items("reads"), str(file))
        size, rank = keys.number("draft_vocab"), keys.number("rank")
        if not 0 <= size <= loaded.staged.vocab_size or rank < 0:
            raise keys.error(
                f"draft_vocab is {size} and rank {rank}; use 0..{loaded.staged.vocab_size} and 0 "
                "or more"
            )
        return Eagle3(target, config, layers, size, rank)


def _published_file(home: Path) -> Path:
    for name in PUBLISHED:
        if (home / name).is_file():
            return home / name
    raise ConfigError(
        f"{home} holds no draft network; expected {ADDON.header}, as `ppdbench train eagle` "
        f"writes, or a published {' or '.join(PUBLISHED)}"
    )


def _recognized(
    weights: Weights, home: Path, loaded: Loaded, reads: tuple[int, ...]
) -> DraftNetwork:
    """The network that the tensors of a published file show, without weights."""
    file = home / CONFIG
    content = read_json(file, "configuration", "a published draft network has one")
    if not isinstance(content, dict):
        raise ConfigError(f"{file} must be an object")
    given = {n: content[n] for n in (*SETTINGS, *OLDER_SETTINGS) if content.get(n) is not None}
    config, target = _fitting(given, file, loaded), loaded.staged.adapter
    if content.get("norm_before_residual"):
        raise ConfigError(f"{file}: norm_before_residual is not supported; use another network")
    names = {name.replace(THEIRS, OURS) for name in weights.names()}
    with torch.device("meta"):
        if not names & ONLY_IN_3:
            if reads:
                raise ConfigError(f"eagle: reads={_listed(reads)}, but {home} holds EAGLE-1")
            return with_biases(Eagle1(target, config), names)
        said = content.get("eagle_aux_hidden_state_layer_ids")
        chosen = reads or (
            feature_layers(loaded.staged.n_layers) if said is None else _layers(said, str(file))
        )
        size = content.get("draft_vocab_size") or loaded.staged.vocab_size
        if type(size) is not int or not 1 <= size <= loaded.staged.vocab_size:
            raise ConfigError(
                f"{file}: draft_vocab_size={size!r}; use 1..{loaded.staged.vocab_size}"
            )
        return with_biases(Eagle3(target, config, chosen, size), names)


def _fitting(settings: Mapping[str, Any], file: Path, loaded: Loaded) -> Any:
    """The configuration of a network that is as wide as the model."""
    config, width = draft_layer_config(settings, str(file)), loaded.staged.hidden_size
    if config.hidden_size != width:
        raise ConfigError(
            f"{file}: the draft network is {config.hidden_size} wide, this model {width}; they "
            "do not belong together"
        )
    return config


def _layers(found: Any, where: str) -> tuple[int, ...]:
    if not isinstance(found, list) or len(found) != 3 or not all(type(n) is int for n in found):
        raise ConfigError(f"{where}: the layers that EAGLE-3 reads are three numbers, not {found}")
    return tuple(found)


def _listed(layers: Iterable[int]) -> str:
    return "+".join(map(str, layers))


def with_biases(network: DraftNetwork, names: Iterable[str]) -> DraftNetwork:
    """The network with a bias wherever the file has one."""
    linears = {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear)}
    for name in names:
        linear = linears.get(name.removesuffix(".bias"))
        if name.endswith(".bias") and linear is not None:
            linear.bias = nn.Parameter(torch.empty(linear.out_features, device="meta"))
    return network


def fill(network: DraftNetwork, weights: Weights) -> None:
    """Give the network its tensors; missing, misshapen and unknown ones are refused by name."""
    names = weights.names()
    prefix = THEIRS if any(name.startswith(THEIRS) for name in names) else OURS
    taken: dict[str, Tensor] = {}
    for name, empty in network.state_dict().items():
        shape = tuple(empty.shape)
        if name == "d2t" and name not in names and shape == (network.target_vocab,):
            taken[name] = torch.zeros(shape, dtype=torch.long, device=network.target.device)
        else:
            taken[name] = weights.take(name.replace(OURS, prefix), shape)
    network.load_state_dict(taken, assign=True)
    _check_words(network, weights)
    _take_embedding(network, weights)
    for name in names:
        if name.endswith("rotary_emb.inv_freq"):  # some files hold what follows from the config
            weights.take(name, (None,))
    weights.close()


def _check_words(network: DraftNetwork, weights: Weights) -> None:
    """Refuse a draft vocabulary whose ids do not each mean another one of the target's."""
    if network.d2t is None:
        return
    if network.d2t.is_floating_point():
        raise ConfigError(f"{weights.file}: d2t holds {network.d2t.dtype}, not whole numbers")
    vocab, words = network.target_vocab, network.all_words()
    if not bool(((words >= 0) & (words < vocab)).all()):
        raise ConfigError(f"{weights.file}: d2t leads to ids outside 0..{vocab - 1}")
    if len(set(words.tolist())) < len(words):
        raise ConfigError(f"{weights.file}: d2t leads to the same id twice")
    if "t2d" in weights.names():
        drafted = weights.take("t2d", (vocab,)).bool()
        if not torch.equal(drafted.nonzero()[:, 0], words.sort().values):
            raise ConfigError(f"{weights.file}: t2d and d2t do not name the same ids")


def _rows_of(embedding: nn.Module) -> Tensor:
    """The rows that tokens are looked up in; none where something else is done, too."""
    if isinstance(embedding, SharedWords):
        return embedding.rows()
    return embedding.weight if is_lookup(embedding) else torch.empty(0)


def _take_embedding(network: DraftNetwork, weights: Weights) -> None:
    """Use the file's own embedding where it is another than the target's."""
    if "embed_tokens.weight" not in weights.names():
        return
    shape = (network.target_vocab, network.config.hidden_size)
    stored, shared = weights.take("embed_tokens.weight", shape), network.target.embedding
    if not torch.equal(stored, _rows_of(shared)):
        network.embed_tokens = nn.Embedding.from_pretrained(stored)  # type: ignore[no-untyped-call]
