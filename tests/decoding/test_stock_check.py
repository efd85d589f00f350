"""The engine held against the stock model: what both sides share is judged, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ppdbench.decoding.decoded import Decoded, StepRecord
from ppdbench.decoding.decoder import Decoder, Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Target
from ppdbench.decoding.stock_check import (
    MethodOutput,
    check_end_tokens,
    check_ends,
    check_greedy,
    hold_ranks,
    hold_to_stock,
)
from ppdbench.engine import attention
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.masks import Step
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ExactnessError
from ppdbench.methods.early_exit import EarlyExit, EarlyExitDecoder
from ppdbench.methods.hidden_transfer import network as hidden_transfer
from ppdbench.methods.hidden_transfer.network import TransferMatrices
from ppdbench.methods.hidden_transfer.strategy import HiddenTransferProposer
from ppdbench.methods.prompt_tokens import network as prompt_tokens
from ppdbench.methods.prompt_tokens.network import Chain, Prompts
from ppdbench.methods.prompt_tokens.strategy import PromptTokensProposer
from ppdbench.probe.drafts import hold_guesses
from ppdbench.probe.match import Prober
from ppdbench.trees.dynamic import DynamicTree
from ppdbench.trees.tree import Tree
from tests.decoding.judging import truth
from tests.decoding.matrix import CAPACITY, CLOCK, Oracle
from tests.families import FAMILIES, stock_model
from tests.helpers import staged, tokens

PROMPT = tokens(11, 3)
LIMITS = Limits(14)


def watched(model: StagedModel, tree: bool | None = None) -> MethodOutput:
    """Greedy decoding, or an oracle's chains or trees, with the logits that chose each token."""
    session = Session(model, CAPACITY, spare=16)
    oracle = None if tree is None else Oracle(model, 3, 2, tree)
    if oracle is not None:
        oracle.start(*[type("Start", (), {"tokens": [*PROMPT, 0]})()] * 2)  # type: ignore[arg-type]
    session.watch = watch = LogitWatch(range(32))
    if oracle is None:
        decoded = autoregressive(session, Request(PROMPT, LIMITS, CLOCK))
    else:
        decoded = oracle.decode(session, Request(PROMPT, LIMITS, CLOCK))
    return MethodOutput("odd", decoded, watch, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_holds(name: str, dtype: torch.dtype) -> None:
    model = staged(name) if dtype == torch.float32 else StagedModel(stock_model(name).to(dtype))
    noise = hold_to_stock(truth(name, dtype), PROMPT, [watched(model), watched(model, False)])
    assert 0 < noise < (1e-4 if dtype == torch.float32 else 0.5)


@pytest.mark.parametrize("tree", [False, True])
def test_each_token_is_watched_once_in_the_pass_that_chose_it(tree: bool) -> None:
    seen = watched(staged("llama"), tree)
    assert sorted(seen.watch.logits) == list(range(14))
    for position, logits in seen.watch.logits.items():
        assert int(logits.argmax()) == seen.decoded.output_ids[position]


def test_a_bug_that_both_sides_share_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Adapter.norm
    monkeypatch.setattr(Adapter, "norm", lambda self, hidden: 1.001 * real(self, hidden))
    model = staged("llama")
    with pytest.raises(ExactnessError, match=r"passes of odd are not the model's.* 0\.00"):
        hold_to_stock(truth("llama"), PROMPT, [watched(model)])


@pytest.mark.parametrize("position", [0, 3, 9, 13])
def test_logits_that_are_off_at_one_position_alone_are_found_there(position: int) -> None:
    seen = watched(staged("llama"))
    hold_to_stock(truth("llama"), PROMPT, [seen])
    moved = torch.zeros(96)
    moved[seen.decoded.output_ids[position]] = 0.1
    seen.watch.logits[position] = seen.watch.logits[position] + moved
    with pytest.raises(ExactnessError, match=f"passes of odd .* at output position {position} "):
        hold_to_stock(truth("llama"), PROMPT, [seen])


def test_a_token_that_is_not_the_likeliest_is_found_where_no_logits_were_seen() -> None:
    seen = watched(staged("llama"))
    hold_to_stock(truth("llama"), PROMPT, [dataclasses.replace(seen, watch=LogitWatch(()))])
    ids = list(seen.decoded.output_ids)
    ids[5] = (ids[5] + 1) % 96
    wrong = dataclasses.replace(seen.decoded, output_ids=tuple(ids))
    with pytest.raises(ExactnessError, match="position 5 transformers prefers another token"):
        hold_to_stock(
            truth("llama"), PROMPT, [dataclasses.replace(seen, decoded=wrong, watch=LogitWatch(()))]
        )


@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_early_exits_are_held_at_their_own_depth(
    confidence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = staged("llama")
    # Of consecutive states the cosine differs from token to token.
    options = EarlyExit(exit_layer=2, confidence=confidence, measure="state")

    def seen() -> MethodOutput:
        session = Session(model, CAPACITY)
        session.watch = watch = LogitWatch(range(32))
        decoded = EarlyExitDecoder(options, 2).decode(session, Request(PROMPT, LIMITS, CLOCK))
        return MethodOutput("early-exit", decoded, watch, False)

    depths = set(seen().watch.depths.values())
    assert depths == {2} if not confidence else len(depths) > 1
    hold_to_stock(truth("llama"), PROMPT, [seen()])
    real = Adapter.norm
    monkeypatch.setattr(Adapter, "norm", lambda self, hidden: 1.001 * real(self, hidden))
    with pytest.raises(ExactnessError, match="early-exit"):
        hold_to_stock(truth("llama"), PROMPT, [seen()])


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_ranks_of_a_probe_are_held_layer_by_layer(
    name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches, too; a rank that is off by a few is found where it is no rounding."""
    model = staged(name)
    loaded = Loaded(ModelSpec(), model, None, frozenset(), 0, "")
    prompts = [PROMPT, tokens(7, 5)][:batch]
    found = Prober(loaded, (1, 2, 3, 4), CAPACITY).probe(
        prompts, 10, Target(), [torch.Generator()] * batch
    )
    for prompt, result in zip(prompts, found, strict=True):
        hold_ranks(truth(name), prompt, result.output_ids, result.ranks)
        for layer in (1, 3, 4):
            ranks = {n: list(each) for n, each in result.ranks.items()}
            ranks[layer][6] += 2
            with pytest.raises(ExactnessError, match=f"after {layer} layers .* position 6"):
                hold_ranks(truth(name), prompt, result.output_ids, ranks)


ENDED = Decoded((5, 6, 2), 1.0, (StepRecord(1.0), StepRecord(1.0)), "eos")


@pytest.mark.parametrize(
    ("changed", "limit", "why"),
    [
        ({"output_ids": (5, 2, 6), "finish": "length"}, 3, "goes on after the end token"),
        ({"output_ids": (5, 2, 2)}, 3, "goes on after the end token at position 1"),
        ({"finish": "length"}, 3, "ended by 'length' with token 2"),
        ({"output_ids": (5, 6, 7)}, 3, "ended by 'eos' with token 7"),
        ({}, 2, "has 3 tokens, 2 were asked for"),
        ({"output_ids": (5, 6, 7), "finish": "length"}, 4, "ended after 3 of 4 tokens"),
    ],
)
def test_an_output_that_ends_in_the_wrong_place_is_refused(
    changed: dict[str, object], limit: int, why: str
) -> None:
    check_ends("odd", ENDED, Limits(3), frozenset({2}))
    with pytest.raises(ExactnessError, match=why):
        check_ends("odd", dataclasses.replace(ENDED, **changed), Limits(limit), frozenset({2}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changed",
    [
        {"steps": (StepRecord(1.0), StepRecord(1.0, rows=3))},
        {"steps": (StepRecord(1.0), StepRecord(1.0, accepted=1))},
        {"steps": (StepRecord(1.0),)},
    ],
    ids=["rows", "accepted", "missing"],
)
def test_a_baseline_that_drafts_is_refused(changed: dict[str, object]) -> None:
    check_greedy(ENDED)
    with pytest.raises(ExactnessError, match="not greedy decoding"):
        check_greedy(dataclasses.replace(ENDED, **changed))  # type: ignore[arg-type]


def test_other_end_tokens_than_the_models_are_refused() -> None:
    check_end_tokens(frozenset({2}), frozenset({2}))
    with pytest.raises(ExactnessError, match=r"end at tokens \[\], but the model declares \[2\]"):
        check_end_tokens(frozenset(), frozenset({2}))


def joining(model: StagedModel) -> dict[str, Decoder]:
    """Methods that put rows of their own behind a text, in all the forms that these take."""
    draw, size = torch.Generator().manual_seed(0), model.hidden_size
    matrices = tuple(torch.randn(size, size, generator=draw) for _ in range(3))
    transfer = TransferMatrices((1, 2, 2), matrices)
    chain = Tree(((0,), (0, 0), (0, 0, 0)))
    found: dict[str, Decoder] = {
        f"hidden-transfer {masked}": HiddenTransferProposer(transfer, chain, {}, masked=masked)
        for masked in (False, True)
    }
    for epts in (1, 2):
        rows = torch.randn(3 * epts, size, generator=draw).to(model.dtype)
        prompts = Prompts(Chain(3, epts), rows)
        tree = DynamicTree.uniform(chain, 3)
        found[f"prompt-tokens {epts}"] = PromptTokensProposer(prompts, tree, model, {})
    return found


def hold_all(name: str, dtype: torch.dtype = torch.float32) -> None:
    model = StagedModel(stock_model(name).to(dtype))
    text = [*PROMPT, *tokens(12, 7)]
    session = Session(model, CAPACITY, spare=24)
    hold_guesses(truth(name, dtype), session, text, len(PROMPT) - 1, joining(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_what_guesses_are_made_of_holds_in_every_family(name: str, dtype: torch.dtype) -> None:
    hold_all(name, dtype)


def scaled(monkeypatch: pytest.MonkeyPatch) -> str:
    real = attention.attend

    def attend(module: object, query: torch.Tensor, *more: object, **named: object) -> object:
        return real(module, query * 1.02, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "attend", attend)
    return "the pass over a text is not the model's"


def one_layer_too_low(monkeypatch: pytest.MonkeyPatch) -> str:
    def run_prompt(self: Session, *, tap: Any = None) -> torch.Tensor:
        seen: dict[int, torch.Tensor] = {}
        out = run(self, tap=seen.__setitem__)
        for layer in seen if tap is not None else ():
            tap(layer, seen[max(1, layer - 1)])
        return out

    run = Session.run_prompt
    monkeypatch.setattr(Session, "run_prompt", run_prompt)
    return "the pass over a text is not the model's: after 2 layers"


def too_far(monkeypatch: pytest.MonkeyPatch) -> str:
    for module in (hidden_transfer, prompt_tokens):
        change_behind(monkeypatch, module, lambda step: {"placed": step.positions + 1})
    return "what hidden-transfer False puts behind a text is not the model's"


def too_far_with_prompts(monkeypatch: pytest.MonkeyPatch) -> str:
    change_behind(monkeypatch, prompt_tokens, lambda step: {"placed": step.positions + 1})
    return "what prompt-tokens 1 puts behind a text is not the model's"


def alone(monkeypatch: pytest.MonkeyPatch) -> str:
    def seen(step: Step) -> dict[str, object]:
        assert step.visible is not None
        visible, n = step.visible.clone(), step.n_query
        visible[:, :, -n:] = torch.eye(n, dtype=torch.bool)
        return {"visible": visible}

    change_behind(monkeypatch, hidden_transfer, seen)
    return "what hidden-transfer False puts behind a text is not the model's"


def change_behind(
    monkeypatch: pytest.MonkeyPatch, module: Any, change: Callable[[Step], dict[str, object]]
) -> None:
    def behind(*given: Any) -> Step:
        step = real(*given)
        return dataclasses.replace(step, **change(step))  # type: ignore[arg-type]

    real = module.behind
    monkeypatch.setattr(module, "behind", behind)


@pytest.mark.parametrize("plant", [scaled, one_layer_too_low, too_far, too_far_with_prompts, alone])
def test_a_bug_in_what_guesses_are_made_of_is_found(
    plant: Callable[[pytest.MonkeyPatch], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_all("llama")
    said = plant(monkeypatch)
    with pytest.raises(ExactnessError, match=said):
        hold_all("llama")
