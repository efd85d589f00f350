"""Training-free methods on families of every make: token for token what generate() gives."""

from __future__ import annotations

import pytest

from benchmarks.families import PROMPT, TOKENS, TRAINING_FREE, outputs, tiny
from ppdbench.engine.known import known
from tests.families import greedy_truth

# One of each make: windows, tables by type, distances, parallel blocks, scales, experts, sinks,
# latent attention, layers without places, keys and values that several layers look at, inputs of
# each layer's own, several streams.
MAKES = [
    *("bloom", "cohere2", "deepseek_v3", "gemma3n_text", "gemma4_text", "gpt_oss", "gptj"),
    *("granite", "llama4_text", "minicpm3", "mixtral", "mpt", "olmo3", "smollm3"),
]
RUNNING = [row.family for row in known().values() if row.runs and row.kind != "text and more"]
# Of what drafts, in families that stand for no others: past any window, too, and `make families`
# lets every method write as much as greedy decoding.
FEWER = TOKENS // 2


def families() -> list[object]:
    """All that run; those that stand for no others take long in all."""
    return [pytest.param(f, marks=[] if f in MAKES else [pytest.mark.slow]) for f in RUNNING]


@pytest.mark.parametrize("family", families())
def test_methods_without_training_write_what_generate_writes(family: str) -> None:
    stock = tiny(family)
    truth = greedy_truth(stock, PROMPT, TOKENS)
    assert len(truth) == TOKENS
    length = TOKENS if family in MAKES else FEWER
    found = dict(outputs(stock, dict.fromkeys(TRAINING_FREE, length) | {"greedy": TOKENS}))
    assert {"greedy", "prompt-lookup", "layerskip", "jacobi"} <= found.keys()
    for name, ids in found.items():
        assert ids == truth[: len(ids)], f"{name} on {family}"
        assert len(ids) == (TOKENS if name == "greedy" else length)


def test_the_makes_are_families_that_run() -> None:
    assert set(MAKES) <= set(RUNNING)
