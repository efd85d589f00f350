"""Experts that passes touch, counted by hand from the choices of plain transformers."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.bench.baseline import weight_bytes_read
from ppdbench.bench.profile import Costs, Meter
from ppdbench.cli.main import run
from ppdbench.engine import synthetic
from ppdbench.engine.experts import by_rows, experts_of_a_layer, watched
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from tests.families import stock_model

IDS = [5, 17, 33, 8, 61, 90, 12, 44]
EXPERTS, CHOSEN, LAYERS = 4, 2, 4
FAMILIES = ("mixtral", "qwen3_moe", "granitemoe", "gpt_oss")


@torch.no_grad()
def choices(model: Any, ids: list[int]) -> list[torch.Tensor]:
    """What each layer's router makes of tokens: the likeliest experts of each, [token, choice]."""
    found = []
    routers = [m for m in model.modules() if "Router" in type(m).__name__]
    assert len(routers) == LAYERS
    hooks = [
        router.register_forward_pre_hook(
            lambda module, given: found.append(
                torch.nn.functional.linear(
                    given[0].reshape(-1, given[0].shape[-1]),
                    module.weight,
                    getattr(module, "bias", None),
                )
                .topk(CHOSEN, dim=-1)
                .indices
            )
        )
        for router in routers
    ]
    model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def touched(chosen: torch.Tensor) -> int:
    return len(Counter(chosen.flatten().tolist()))


def expert_size(model: Any) -> int:
    """Bytes of one expert, by its configuration."""
    config = model.config
    inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
    numbers = 3 * config.hidden_size * inner
    if config.model_type == "gpt_oss":  # with biases
        numbers += 2 * inner + config.hidden_size
    return 4 * numbers


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pass_touches_the_experts_that_its_tokens_choose(family: str) -> None:
    stock = tiny(family)
    model = StagedModel(copy.deepcopy(stock))
    session = Session(model, 16)
    session.reset(IDS[:3])
    with watched(model) as calls:
        session.prefill()
        session.advance(torch.tensor([IDS[3:4]]))
        session.advance(torch.tensor([IDS[4:8]]))
    whole = choices(stock, IDS)
    per_layer = [
        [touched(chosen[part]) for part in (slice(0, 3), slice(3, 4), slice(4, 8))]
        for chosen in whole
    ]
    passes = [[call.touched for call in calls[at * LAYERS :][:LAYERS]] for at in range(3)]
    assert passes == [list(column) for column in zip(*per_layer, strict=True)]
    assert {call.expert_bytes for call in calls} == {expert_size(stock)}
    assert by_rows(calls, 4) == {
        1: (LAYERS, LAYERS * CHOSEN),
        3: (LAYERS, sum(passes[0])),
        4: (LAYERS, sum(passes[2])),
    }
    assert set(by_rows(calls, 1)) == {1}
    assert experts_of_a_layer(model) == EXPERTS


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_are_those_of_the_experts_that_are_read(family: str) -> None:
    stock = tiny(family)
    model = StagedModel(copy.deepcopy(stock))
    held = sum(p.numel() * p.element_size() for p in stock.parameters())
    words = stock.get_input_embeddings().weight
    looked_up = 0
    if stock.get_output_embeddings().weight is not words:
        looked_up = (len(words) - 1) * words[0].numel() * 4
    left = LAYERS * (EXPERTS - CHOSEN) * expert_size(stock)
    buffers = weight_bytes_read(model) - (held - looked_up - left)
    assert 0 <= buffers <= 200  # rotary frequencies

    meter = Meter(model, Clock(model.device))
    session = Session(model, 16)
    session.reset(IDS[:3])
    session.prefill()
    with meter._watched(model):
        session.advance(torch.tensor([IDS[3:8]]))
    chosen = sum(touched(chosen[3:8]) for chosen in choices(stock, IDS))
    ran = next(call for call in meter.calls if call.routed)
    costs = Costs(model)
    assert ran.bytes - ran.held == chosen * expert_size(stock)
    assert costs._below[-1] == sum(
        model.layer_bytes(i) - EXPERTS * expert_size(stock) for i in range(LAYERS)
    )


def test_dense_models_have_nothing_to_watch() -> None:
    model = StagedModel(stock_model("llama"))
    assert experts_of_a_layer(model) is None
    with watched(model) as calls:
        session = Session(model, 4)
        session.reset([1, 2])
        session.prefill()
    assert calls == []


def test_runs_record_and_show_the_experts_of_passes_by_their_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    tiny("mixtral", vocab_size=300, max_position_embeddings=600).save_pretrained(folder)
    synthetic.tokenizer(300, 600).save_pretrained(folder)
    words = f"decode --method prompt-lookup --model {folder} --task gsm8k --data builtin --limit 1"
    where = f"--max-new-tokens 24 --warmup 0 --offline --profile --out {tmp_path / 'run'}"
    assert run([*words.split(), *where.split()]) == 0
    assert "Experts that a layer reads in a pass, of 4: " in capsys.readouterr().out
    header = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert header["model"]["experts"] == EXPERTS
    lines = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    sample = next(s for s in map(json.loads, lines) if s["method"] == "prompt-lookup")
    assert sample["verdict"] == "identical"
    steps = Counter(sample["rows"])
    assert {int(n): calls for n, (calls, _) in sample["experts"].items()} == {
        n: LAYERS * count for n, count in steps.items()
    }
    assert all(
        CHOSEN * calls <= experts <= EXPERTS * calls
        for calls, experts in sample["experts"].values()
    )
    assert sample["experts"].get("1", [0, 0])[1] == LAYERS * CHOSEN * steps[1]
