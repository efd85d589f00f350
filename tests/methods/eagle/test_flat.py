"""Programs of draft networks: the same as their modules, or not used at all."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ppdbench.decoding.limits import Limits
from ppdbench.engine.flat.ops import Program
from ppdbench.engine.flat.products import FlatProduct
from ppdbench.engine.packing import PackedLinear
from ppdbench.methods.eagle.choice import lay_out_draft
from ppdbench.methods.eagle.files import with_biases
from ppdbench.methods.eagle.flat import FlatDraft
from ppdbench.methods.eagle.network import DraftNetwork
from ppdbench.methods.eagle.rows import DraftRows, FlatLevel, MaskedLevel
from tests.decoding.matrix import Case, assert_exact
from tests.engine.flat import made as flat_models
from tests.engine.flat.conftest import kernels as kernels
from tests.helpers import VOCAB
from tests.methods.eagle.made import PROMPTS, random_drafter, random_network

pytestmark = pytest.mark.usefixtures("kernels")

PROMPT, LEVELS = 300, ((0, 0, 0, 0), (1, 0, 3, 1, 1), (4, 4, 2))
# Programs may be off by as much as modules are, and by a little of the largest number.
SLACK = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def made(version: int, dtype: torch.dtype, *, biases: bool = False) -> DraftNetwork:
    network = random_network(flat_models.made("llama", dtype), version).to(dtype)
    if biases:
        with_biases(network, [f"{n}.bias" for n, m in network.named_modules() if is_linear(m)])
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                owner = network.get_submodule(name.removesuffix(".bias"))
                owner.bias = nn.Parameter(torch.randn(parameter.shape).to(dtype), False)
    return network


def is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear


@torch.inference_mode()
def drafted(network: DraftNetwork, flat: FlatDraft | None) -> list[Tensor]:
    """States of a long prompt, of more rows, and of levels of guesses with what they read."""
    drawn = torch.Generator().manual_seed(1)
    rows = DraftRows(network, PROMPT + 9, sum(map(len, LEVELS)), flat)
    found = []
    for n in (PROMPT, 3, 1):
        tokens = torch.randint(VOCAB, (1, n), generator=drawn)
        features = torch.randn(1, n, network.config.hidden_size, generator=drawn)
        found.append(rows.read(tokens, features.to(network.dtype)))
    for _ in range(2):  # the second draft overwrites the first
        level = rows.branches(found[2][:, -1:])
        assert isinstance(level, MaskedLevel if flat is None else FlatLevel)
        for origin in LEVELS:
            tokens = torch.randint(VOCAB, (len(origin),), generator=drawn)
            found.append(level.extend(torch.tensor(origin), tokens))
            found.append(level.logits())
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("version", "biases"), [(1, False), (3, False), (3, True)])
def test_programs_give_what_modules_do(version: int, dtype: torch.dtype, biases: bool) -> None:
    network = made(version, dtype, biases=biases)
    truth = drafted(copy.deepcopy(network).double(), None)
    modules = drafted(network, None)
    flat = lay_out_draft(network, flat=True)
    assert flat is not None
    for ours, theirs, true in zip(drafted(network, flat), modules, truth, strict=True):
        allowed = 2 * farthest(theirs, true) + SLACK[dtype] * float(true.abs().max())
        assert farthest(ours, true) <= allowed


def farthest(found: Tensor, true: Tensor) -> float:
    return float((found.double() - true).abs().max())


def test_weights_are_held_once() -> None:
    network = made(3, torch.float32)
    lay_out_draft(network, flat=True)
    products = [m for m in network.modules() if isinstance(m, PackedLinear)]
    assert len(products) == 9
    assert all(isinstance(m, FlatProduct) for m in products)
    assert not any(p.dim() > 1 for m in products for p in m.parameters())


def test_without_a_program_the_modules_stay() -> None:
    network = made(3, torch.float32)
    assert lay_out_draft(network, flat=False) is None
    assert not any(isinstance(m, FlatProduct) for m in network.modules())


@pytest.mark.parametrize("wrong", ["rotate", "attend", "rms_norm"])
def test_a_wrong_program_is_not_used(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = made(3, torch.float32)
    wanted = drafted(network, None)
    monkeypatch.setattr(Program, wrong, lambda *_, **__: None)
    assert lay_out_draft(network, flat=True) is None
    for ours, theirs in zip(drafted(network, None), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drafts_of_a_program_are_verified_to_the_same_outputs(
    version: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = flat_models.made("llama", dtype)
    drafter = random_drafter(model, version, tmp_path)
    assert any(isinstance(m, FlatProduct) for m in drafter.network.modules())
    assert_exact(drafter, Case("own", PROMPTS[0], Limits(24)), model)
