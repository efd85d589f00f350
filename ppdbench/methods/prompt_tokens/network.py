"""Prompt tokens: trained rows behind a known token whose outputs guess what will follow it.

Hardware-aware parallel prompt decoding (Chen et al. 2024). The token itself gives the next one;
prompt token j, j places further on, guesses the one at distance j. A prompt token may be an
ensemble of embeddings (EPTs) that share its position: each is a row of its own, and the guess
is the average over them. Tokens of the text never see these rows.

A folder that `train prompt-tokens` wrote holds `embeddings` [prompts * epts, hidden] and, with
the options that ask for them, `weights` [epts], `head.weight` or `head.down` and `head.up` (as
`engine.heads` has them: `of_state` is the change of a state), `prefix.keys` and `prefix.values`
[layers, KV heads, prompts * prefix, head dim]. Published adapters are PEFT's:
`adapter_config.json` and one tensor `prompt_embeddings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.addons import Addon, Weights, addon_folder, open_addon
from ppdbench.engine.heads import ExitHead, take_head
from ppdbench.engine.loading import Loaded
from ppdbench.engine.masks import Step, TrainedRows, behind
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, UnknownName
from ppdbench.files.json_file import read_json
from ppdbench.files.keys import Keys
from ppdbench.methods.base import check_words
from ppdbench.methods.prompt_tokens.plan import AGGREGATIONS, LEARNED

METHOD = "prompt-tokens"
MASKS = ("ensemble", "decoder", "encoder")
PEFT_CONFIG = "adapter_config.json"
PEFT_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")


@dataclass(frozen=True)
class Chain:
    """The rows behind one token: prompt token after prompt token, each with all its EPTs.

    `mask` says which rows of the chain an EPT sees besides itself. ensemble: those of its own
    number in earlier prompt tokens; decoder: all rows before it; encoder: all rows of earlier
    prompt tokens and of its own. None sees a later prompt token, so that a chain may end early.
    Behind the chain stand `prefix` rows for each prompt token, which only its EPTs see.
    """

    prompts: int = 3
    epts: int = 1
    mask: str = "ensemble"
    prefix: int = 0

    def __post_init__(self) -> None:
        for name, least in (("prompts", 1), ("epts", 1), ("prefix", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{METHOD}: {name}={value!r}; use {least} or more")
        check_words(METHOD, self, mask=MASKS)

    def rows(self, prompts: int) -> int:
        """Return the number of rows that the first `prompts` prompt tokens take."""
        return prompts * self.epts

    @cached_property
    def sees(self) -> tuple[tuple[int, ...], ...]:
        """The other rows of the chain that each row sees."""
        return tuple(
            tuple(other for other in range(self.rows(self.prompts)) if self._visible(row, other))
            for row in range(self.rows(self.prompts))
        )

    def _visible(self, row: int, other: int) -> bool:
        if row == other:
            return False
        if self.mask == "decoder":
            return other < row
        (prompt, ept), (earlier, twin) = divmod(row, self.epts), divmod(other, self.epts)
        if self.mask == "encoder":
            return earlier <= prompt
        return earlier < prompt and twin == ept

    def sees_prefix(self, row: int) -> range:
        """Return the prefix rows that a row of the chain sees."""
        first = row // self.epts * self.prefix
        return range(first, first + self.prefix)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The number of places behind the token at which each row stands."""
        return tuple(1 + row // self.epts for row in range(self.rows(self.prompts)))

    def masks(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Make the masks of the chain's rows: over each other, [row, row], and over the prefix."""
        rows = self.rows(self.prompts)
        own = torch.eye(rows, dtype=torch.bool)
        prefix = torch.zeros(rows, self.prompts * self.prefix, dtype=torch.bool)
        for row, seen in enumerate(self.sees):
            own[row, list(seen)] = True
            prefix[row, list(self.sees_prefix(row))] = True
        return own.to(device), prefix.to(device)


@dataclass(frozen=True)
class Prompts:
    """The trained parts: `embeddings` [prompts * epts, hidden] and what was trained with them.

    `weights` [epts] weigh an ensemble, whose plain mean is taken without. `head` reads prompt
    tokens in the place of the model's own. The states that are read are the mean of what the
    last `exits` layers gave. `prefix` are the keys and values of the chain's prefix rows.
    """

    chain: Chain
    embeddings: Tensor
    weights: Tensor | None = None
    head: ExitHead | None = None
    exits: int = 1
    prefix: TrainedRows | None = None
    folder: Path = Path()
    fingerprint: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def words(self, n: int = 1) -> Tensor:
        """Return the embeddings of `n` chains and the prefix behind them: [1, rows, hidden]."""
        extra = self.chain.prompts * self.chain.prefix
        empty = self.embeddings.new_zeros(extra, self.embeddings.shape[-1])
        return torch.cat([self.embeddings.repeat(n, 1), empty])[None]

    def chains(self, states: Tensor, n: int) -> Tensor:
        """The states [batch, n, rows, hidden] of `n` chains, without those of the prefix."""
        rows = self.chain.rows(self.chain.prompts)
        return states[:, : n * rows].reshape(len(states), n, rows, -1)

    def given_behind(self, rows: int) -> tuple[TrainedRows, ...]:
        """The prefix of a pass that has so many rows before it."""
        return () if self.prefix is None else (replace(self.prefix, first=rows),)

    def logits(self, adapter: Adapter, exits: Sequence[Tensor]) -> Tensor:
        """Guesses [..., prompts, vocab] of a chain's rows [..., prompts * epts, hidden].

        `exits` are what the last `self.exits` layers gave. An ensemble is averaged before the
        head: that is linear, so that its logits are averaged too.
        """
        states = exits[0] if len(exits) == 1 else torch.stack(list(exits)).mean(0)
        *shape, rows, _ = states.shape
        epts = self.chain.epts
        ensembles = adapter.norm(states).reshape(*shape, rows // epts, epts, -1)
        if self.weights is None:
            normed = ensembles.mean(-2)
        else:
            normed = (self.weights[:, None] * ensembles).sum(-2)
        if self.head is None:
            return adapter.readout(normed)
        return self.head.logits(adapter, normed)


def load_prompts(folder: str | Path, loaded: Loaded) -> Prompts:
    """The prompt tokens in `folder`, which `train prompt-tokens` or PEFT wrote."""
    loaded.staged.adapter.check_one_state(METHOD)
    home = addon_folder(folder, METHOD, loaded)
    if (home / PEFT_CONFIG).is_file():
        return _of_peft(home, loaded)
    addon = open_addon(home, METHOD, loaded)
    prompts = _of_addon(addon, loaded)
    addon.close()
    return prompts


def _of_addon(addon: Addon, loaded: Loaded) -> Prompts:
    keys, staged = Keys(addon.options, f"{addon.folder}, options"), loaded.staged
    exits, rank = keys.number("exits"), keys.number("rank")
    with keys.telling():
        chain = Chain(
            keys.number("prompts"), keys.number("epts"), keys.text("mask"), keys.number("prefix")
        )
        if not 1 <= exits <= staged.n_layers:
            raise ConfigError(f"exits={exits}; use 1..{staged.n_layers}")
        aggregation = keys.text("aggregation")
        if aggregation not in AGGREGATIONS:
            raise UnknownName("aggregation", aggregation, AGGREGATIONS)
    custom, of_state = keys.flag("custom_head", False), keys.flag("of_state", False)
    return Prompts(
        chain,
        addon.take("embeddings", (chain.rows(chain.prompts), staged.hidden_size)),
        addon.take("weights", (chain.epts,)) if aggregation == LEARNED else None,
        take_head(addon, "head", rank or None, loaded, of_state=of_state) if custom else None,
        exits,
        _prefix(addon, chain, loaded) if chain.prefix else None,
        addon.folder,
        addon.fingerprint,
        addon.facts(),
    )


def _prefix(addon: Addon, chain: Chain, loaded: Loaded) -> TrainedRows:
    cache, rows = loaded.staged.cache_shape, chain.prompts * chain.prefix
    shape = (cache.n_layers, cache.n_heads, rows, cache.head_dim)
    return TrainedRows(addon.take("prefix.keys", shape), addon.take("prefix.values", shape))


def _of_peft(folder: Path, loaded: Loaded) -> Prompts:
    """Read what PEFT saved; whose model it is for, only the tensor's width tells."""
    chain = _peft_chain(folder / PEFT_CONFIG)
    found = [folder / name for name in PEFT_WEIGHTS if (folder / name).is_file()]
    if not found:
        raise ConfigError(f"{folder} holds no weights; expected {' or '.join(PEFT_WEIGHTS)}")
    weights = Weights(found[0], loaded)
    shape = (chain.rows(chain.prompts), loaded.staged.hidden_size)
    embeddings = weights.take("prompt_embeddings", shape)
    weights.close()
    return Prompts(
        chain, embeddings, folder=folder, fingerprint=weights.fingerprint, facts=weights.facts()
    )


def _peft_chain(path: Path) -> Chain:
    config = read_json(path, "adapter", "")
    if not isinstance(config, dict) or config.get("peft_type") != "PROMPT_TUNING":
        raise ConfigError(f"{path} describes no prompt tuning, which prompt tokens are")
    keys = Keys(config, str(path))
    with keys.telling():
        return Chain(
            keys.number("num_special_tokens"), keys.number("virtual_tokens_per_special_token")
        )


def chains_behind(prompts: Prompts, places: Tensor, length: int, last: int) -> Step:
    """The pass over a whole chain behind each of the `places` [n] of a text of `length` rows.

    Chains do not see each other. No row stands beyond the position `last`.
    """
    chain, n = prompts.chain, len(places)
    own, prefix = chain.masks(places.device)
    rows, extra = n * len(own), prefix.shape[1]
    which = torch.arange(n, device=places.device).repeat_interleave(len(own))
    seen = torch.eye(rows + extra, dtype=torch.bool, device=places.device)
    seen[:rows, :rows] = own.repeat(n, n) & (which[:, None] == which)
    seen[:rows, rows:] = prefix.repeat(n, 1)
    reach = torch.cat([places.repeat_interleave(len(own)), places.new_full((extra,), -1)])
    depths = places.new_tensor(chain.depths)
    deepest = (places.amax() + chain.prompts).expand(extra)  # so that every window holds it
    positions = torch.cat([(places[:, None] + depths).flatten(), deepest]).clamp(max=last)
    step = behind(length, reach, positions, seen)
    step.given = prompts.given_behind(rows)
    return step


def guesses_behind(prompts: Prompts, session: Session, positions: Sequence[int]) -> Tensor:
    """Logits [position, distance, vocab] of a whole chain behind some places of the cached text."""
    states, n = states_behind(prompts, session, positions), len(positions)
    last = session.model.n_layers
    exits = range(last - prompts.exits + 1, last + 1)
    read = [prompts.chains(states[layer], n) for layer in exits]
    return prompts.logits(session.model.adapter, read)[0]


def states_behind(
    prompts: Prompts, session: Session, positions: Sequence[int]
) -> dict[int, Tensor]:
    """Return the states of all rows behind some places of the cached text, by layers run."""
    model, length, n = session.model, session.cached, len(positions)
    places = torch.tensor(positions, device=model.device)
    step = chains_behind(prompts, places, length, session.capacity - 1)
    hidden = model.adapter.place(prompts.words(n), step.positions)
    states = {0: hidden}
    session.run(hidden, 0, model.n_layers, step, tap=states.__setitem__)
    session.cache.truncate(length)
    return states


def plain_prompts(prompts: Prompts) -> Prompts:
    """The same rows as any model could run them: no prefix, and each sees only its own number."""
    return replace(prompts, chain=replace(prompts.chain, mask="ensemble", prefix=0), prefix=None)
