"""The memory of a method is what it holds itself, each tensor once."""

from dataclasses import dataclass, field

import torch

from ppdbench.bench.memory import own_bytes
from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.methods import method

TINY = "synthetic:layers=4,hidden=64,heads=2"


@dataclass(slots=True)
class Slotted:
    first: torch.Tensor
    rest: dict[str, list[torch.Tensor]] = field(default_factory=dict)


def test_tensors_in_slots_dicts_lists_and_modules_count():
    linear = torch.nn.Linear(4, 8)  # 40 numbers
    thing = Slotted(torch.zeros(10), {"more": [torch.zeros(5), torch.zeros(5)]})
    assert own_bytes([linear, thing]) == 4 * (40 + 10 + 10)


def test_views_of_one_memory_count_once():
    whole = torch.zeros(100)
    assert own_bytes([whole, whole[:50], whole.view(10, 10)]) == 400


def test_what_others_hold_does_not_count():
    shared, own = torch.zeros(100), torch.zeros(3)
    assert own_bytes([shared[:10], own], Slotted(shared)) == 12


def test_a_circle_of_references_ends():
    ring: list[object] = [torch.zeros(2)]
    ring.append(ring)
    assert own_bytes(ring) == 8


def _needs(name: str, **options: str) -> int:
    loaded = load(ModelSpec(name=TINY, dtype="float32", offline=True))
    decoder = method(name).build(options).prepare(Setup(loaded, 64))
    return own_bytes(decoder, loaded)


def test_a_method_without_parts_of_its_own_needs_next_to_nothing():
    assert _needs("prompt-lookup") == 0


def test_a_draft_model_counts_with_its_weights_and_its_cache():
    loaded = load(ModelSpec(name=TINY, dtype="float32", offline=True))
    needs = _needs("speculative", draft_model=TINY)
    assert needs > loaded.staged.weight_bytes()
    assert needs < 1.5 * loaded.staged.weight_bytes()
