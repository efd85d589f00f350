"""Ranks are what transformers' own hidden states say, however they were computed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.decoding.sampling import Target, generator_for
from ppdbench.engine.heads import ExitHead
from ppdbench.engine.loading import Loaded, ModelSpec, load, load_stock, take_over
from ppdbench.errors import NumericalError
from ppdbench.probe import match
from ppdbench.probe.match import Prober
from ppdbench.runs.workload import RunConfig, Workload, capacity
from tests.families import FAMILIES, greedy_truth, stock_model

PROMPTS = [[5, 17, 33, 8], [61, 90, 12, 44, 70, 23, 9, 31, 2], [7], [4, 4, 4, 50, 51, 52]]
GREEDY = Target()


def loaded(stock: Any) -> Loaded:
    return take_over(ModelSpec(name="tiny"), copy.deepcopy(stock), None)


ROUNDING = 1e-5  # of logits


def brute_force(
    stock: Any, prompt: list[int], output: list[int], ahead: float = 0.0
) -> dict[int, list[int]]:
    """One uncached pass over prompt and output, every layer's logits, all ranks.

    Counted is what is larger by more than `ahead`.
    """
    body = stock.get_submodule(body_path(stock))
    norm = getattr(body, "norm", None) or getattr(body, "ln_f", None) or body.final_layer_norm
    raw: list[torch.Tensor] = []
    layers = getattr(body, "layers", None) or body.h
    handles = [layer.register_forward_hook(lambda _m, _i, out: raw.append(out)) for layer in layers]
    with torch.no_grad():
        full = stock(torch.tensor([prompt + output[:-1]]))
    for handle in handles:
        handle.remove()
    ranks = {}
    for number, hidden in enumerate(raw, start=1):
        with torch.no_grad():
            logits = stock.get_output_embeddings()(norm(hidden))[0, len(prompt) - 1 :]
        cap = getattr(stock.config, "final_logit_softcapping", None)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        if number == len(raw):
            torch.testing.assert_close(logits, full.logits[0, len(prompt) - 1 :])
        chosen = logits[torch.arange(len(output)), torch.tensor(output)]
        ranks[number] = (logits > chosen[:, None] + ahead).sum(-1).tolist()
    return ranks


def body_path(stock: Any) -> str:
    paths = {"gpt2": "transformer", "gpt_neox": "gpt_neox", "opt": "model.decoder"}
    return paths.get(stock.config.model_type, "model")


def probe_one(
    model: Loaded, prompts: list[list[int]], n: int, target: Target = GREEDY, **options: Any
) -> list[match.ProbedSequence]:
    room = max(map(len, prompts)) + n
    prober = Prober(model, range(1, model.staged.n_layers + 1), room, **options)
    generators = [generator_for(0, str(i)) for i in range(len(prompts))]
    return prober.probe(prompts, n, target, generators)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "opt-350m-like"])
def test_ranks_equal_brute_force_in_every_family(name: str) -> None:
    stock = stock_model(name)
    stock.generation_config.eos_token_id = None
    model = loaded(stock)
    for prompt in PROMPTS:
        (result,) = probe_one(model, [prompt], 20)
        assert result.output_ids == greedy_truth(stock, prompt, 20)
        assert result.ranks == brute_force(stock, prompt, result.output_ids)


@pytest.mark.parametrize("task", ["gsm8k", "humaneval"])
def test_ranks_of_a_real_model_on_real_rows_equal_brute_force(
    task: str, stories: Path, real_rows: Path
) -> None:
    spec = ModelSpec(name=str(stories))
    stock, _ = load_stock(spec)
    model = load(spec)
    config = RunConfig(model=spec, tasks=(task,), data=str(real_rows), limit=6, max_new_tokens=48)
    items = Workload.read(config).encode(model)
    prober = Prober(model, range(1, 6), capacity(items))
    for item in items:
        (result,) = prober.probe([item.ids], 48, GREEDY, [generator_for(0)])
        # One by one and all at once round differently, and some tokens are equal but for that.
        least, most = (
            brute_force(stock, item.ids, result.output_ids, ahead)
            for ahead in (ROUNDING, -ROUNDING)
        )
        for layer, ranks in result.ranks.items():
            ranges = list(zip(least[layer], ranks, most[layer], strict=True))
            assert all(low <= rank < high for low, rank, high in ranges)
            assert sum(low + 1 < high for low, _, high in ranges) <= 2
        assert result.ranks[5] == [0] * 48
        assert any(result.ranks[2]), "an early layer that is always right proves nothing"


@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma2", "gemma3", "gpt2", "opt"])
def test_sequences_in_a_batch_have_the_ranks_of_single_runs(name: str) -> None:
    model = loaded(stock_model(name))
    single = [probe_one(model, [prompt], 16)[0] for prompt in PROMPTS]
    together = probe_one(model, PROMPTS, 16)
    for one, of_batch in zip(single, together, strict=True):
        assert of_batch.output_ids == one.output_ids
        assert of_batch.ranks == one.ranks


def test_small_budgets_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(stock_model("llama"))
    whole = probe_one(model, PROMPTS, 16)
    monkeypatch.setattr(match, "LOGITS_BUDGET", 3 * 96 * 4)
    monkeypatch.setattr(match, "HIDDEN_BUDGET", 5 * 4 * 32 * 4)
    pieces = probe_one(model, PROMPTS, 16)
    assert [p.ranks for p in pieces] == [w.ranks for w in whole]
    assert all(len(ranks) == 16 for p in pieces for ranks in p.ranks.values())


@pytest.mark.parametrize("kind", ["top-k", "top-p"])
def test_sampled_targets_are_ranked_against_the_drawn_token(kind: str) -> None:
    stock = stock_model("llama")
    model = loaded(stock)
    target = Target(kind=kind, top_k=5, top_p=0.9)
    (result,) = probe_one(model, [PROMPTS[0]], 30, target)
    assert result.output_ids != greedy_truth(stock, PROMPTS[0], 30)
    assert result.ranks == brute_force(stock, PROMPTS[0], result.output_ids)
    if kind == "top-k":
        assert max(result.ranks[4]) < 5


def test_sampled_draws_do_not_depend_on_the_company() -> None:
    model = loaded(stock_model("llama"))
    target = Target(kind="top-p")
    prober = Prober(model, [4], 40)
    alone = prober.probe([PROMPTS[1]], 12, target, [generator_for(3, "b")])[0]
    pair = [PROMPTS[0], PROMPTS[1]]
    beside = prober.probe(pair, 12, target, [generator_for(3, "a"), generator_for(3, "b")])[1]
    assert alone.output_ids == beside.output_ids


def test_stopping_at_eos_keeps_the_ranks_up_to_it() -> None:
    stock = stock_model("llama")
    model = loaded(stock)
    forced = probe_one(model, PROMPTS, 24)
    stop = forced[0].output_ids[7]
    prober = Prober(model, range(1, 5), 40)
    generators = [generator_for(0)] * len(PROMPTS)
    stopped = prober.probe(PROMPTS, 24, GREEDY, generators, stop_at=frozenset([stop]))
    for full, cut in zip(forced, stopped, strict=True):
        n = full.output_ids.index(stop) + 1 if stop in full.output_ids else 24
        assert cut.output_ids == full.output_ids[:n]
        assert cut.ranks == {layer: ranks[:n] for layer, ranks in full.ranks.items()}


def test_a_layers_own_predictions_are_its_rank_zero_tokens() -> None:
    stock = stock_model("llama")
    (result,) = probe_one(loaded(stock), [PROMPTS[0]], 20, predictions=True)
    assert set(result.predictions) == {1, 2, 3, 4}
    for layer, tokens in result.predictions.items():
        matches = [p == t for p, t in zip(tokens, result.output_ids, strict=True)]
        assert matches == [rank == 0 for rank in result.ranks[layer]]


def test_heads_equal_to_the_models_own_give_its_ranks() -> None:
    stock = stock_model("llama")
    model = loaded(stock)
    own = stock.get_output_embeddings().weight.detach()
    other = torch.randn_like(own)
    heads = {2: ExitHead(weight=own), 3: ExitHead(weight=other)}
    (result,) = probe_one(model, [PROMPTS[0]], 20, heads=heads)
    assert result.head_ranks[2] == result.ranks[2]
    assert result.head_ranks[3] != result.ranks[3]
    assert set(result.head_ranks) == {2, 3}


@pytest.mark.parametrize(
    ("layer", "poison"),
    [(2, float("nan")), (4, float("nan")), (3, float("inf")), (4, float("inf"))],
)
@pytest.mark.parametrize("tokens", [1, 4])
def test_bad_logits_are_refused_with_example_and_layer(
    tokens: int, layer: int, poison: float
) -> None:
    model = loaded(stock_model("llama"))
    model.staged.flat = None  # what is poisoned is what eager passes call
    adapter = model.staged.adapter
    plain = adapter.call_layer

    def call(index: int, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        out = plain(index, hidden, *rest)
        return torch.full_like(out, poison) if index + 1 == layer else out

    adapter.call_layer = call  # type: ignore[method-assign]
    prober = Prober(model, range(1, 5), 40)
    told = f"example two: NaN or infinite logits after layer {layer} at output position 1; "
    with pytest.raises(NumericalError, match=told):
        prober.probe(PROMPTS[:1], tokens, GREEDY, [generator_for(0)], names=["two"])
