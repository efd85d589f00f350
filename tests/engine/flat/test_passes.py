"""Flat passes of every family: near to eager ones, and each row as if it were alone.

Operations are run by the torch that says what they mean; kernels are held against it elsewhere.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ppdbench.decoding.draft import Draft, Insertion
from ppdbench.decoding.passes import run_pass
from ppdbench.engine.adapters import Adapter
from ppdbench.engine.flat import choice, products
from ppdbench.engine.flat.choice import EAGER, FASTER, FLAT
from ppdbench.engine.masks import TrainedRows
from ppdbench.engine.session import PaddedBatch, Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, eager
from ppdbench.machine.clock import Clock
from tests import flat_ops
from tests.families import FAMILIES, stock_model
from tests.helpers import CAPACITY, assert_near, tokens

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    flat_ops.stand_in(monkeypatch)


def made(name: str, dtype: torch.dtype = torch.float32, **overrides: Any) -> StagedModel:
    model = StagedModel(stock_model(name, **overrides).to(dtype), passes=FLAT)
    assert model.flat is not None, model.path.why
    return model


@torch.inference_mode()
def outputs(model: StagedModel) -> list[Tensor]:
    """Logits of a prefill, of single rows, of chains and of a tree, kept and gone on from."""
    session = Session(model, CAPACITY, spare=8)
    session.reset(tokens(11))
    found = [session.prefill(), session.advance(session.ids([5]))]
    for n in (2, 3):
        found.append(session.logits(session.forward(session.ids(tokens(n, n)))))
        session.cache.truncate(session.cached - 1)
    start = session.cached
    tree = session.tree((-1, 0, 0, 1))
    hidden = session.run(session.embed(session.ids(tokens(4, 7)), tree), 0, model.n_layers, tree)
    found.append(session.logits(hidden))
    session.cache.keep(start, [0, 2])
    found.append(session.advance(session.ids([5])))
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_what_it_gives_eagerly(name: str) -> None:
    model = made(name)
    with eager(model):
        truth = outputs(model)
    for ours, expected in zip(outputs(model), truth, strict=True):
        assert_near(ours, expected)


@torch.inference_mode()
def one_by_one(model: StagedModel, ids: list[int]) -> tuple[Tensor, Session]:
    session = Session(model, CAPACITY, spare=12)
    session.reset(tokens(9))
    session.prefill()
    return torch.cat([session.advance(session.ids([token])) for token in ids], 1), session


@torch.inference_mode()
def drafted(model: StagedModel, draft: Draft, first: int) -> Tensor:
    session = Session(model, CAPACITY, spare=12)
    session.reset([*tokens(9), first])
    session.steps.prefill(9)
    session.forward(session.ids(tokens(9)), session.steps.prefill(9))
    return session.logits(run_pass(session, draft, start=9))


def repeated(hidden: Tensor, n: int) -> Tensor:
    return hidden[:, :1].expand(-1, n, -1)


TREE = (-1, -1, 0, 0, 1, 3)  # of nodes; 0 and 1 hang on the newest token
BRANCH = (0, 3, 5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["llama", "qwen2-window", "gemma2", "gpt2", "gpt_neox", "opt"])
def test_rows_of_chains_trees_and_passes_that_others_join_are_those_of_single_ones(
    name: str, dtype: torch.dtype
) -> None:
    model, ids = made(name, dtype), [7, 8, 9, 10]
    single, _ = one_by_one(model, ids)
    chain = drafted(model, Draft(tuple(ids[1:])), ids[0])
    assert torch.equal(chain, single)
    nodes = [50, 60, 51, 52, 61, 53]
    for place, token in zip(BRANCH, ids[1:], strict=True):
        nodes[place] = token
    branch = [0, *(1 + node for node in BRANCH)]
    assert torch.equal(drafted(model, Draft(tuple(nodes), TREE), ids[0])[:, branch], single)
    joining = Insertion(2, partial(repeated, n=2), ((), (0, 7)), (1, 2))
    joined = Draft(tuple(nodes), TREE, insertions=(joining,))
    assert torch.equal(drafted(model, joined, ids[0])[:, branch], single)


@torch.inference_mode()
def test_layers_in_stretches_and_behind_taps_are_those_of_one_run() -> None:
    model, seen = made("llama"), dict[int, Tensor]()
    whole, session = one_by_one(model, [7, 8])
    session.cache.truncate(10)
    step = session.chain(1)
    hidden = session.run(session.embed(session.ids([8]), step), 0, 1, step, tap=seen.__setitem__)
    hidden = session.run(hidden, 1, model.n_layers, step, tap=seen.__setitem__)
    assert torch.equal(session.logits(hidden), whole[:, 1:])
    assert sorted(seen) == [1, 2, 3, 4]
    assert torch.equal(seen[4], hidden)


@torch.inference_mode()
def test_trained_keys_and_values_stand_in_for_those_of_their_rows() -> None:
    model = made("llama")
    shape = model.cache_shape
    given = TrainedRows(*torch.randn(2, shape.n_layers, shape.n_heads, 1, shape.head_dim), first=1)
    found = []
    for _ in range(2):
        session = Session(model, CAPACITY)
        session.reset(tokens(5))
        session.prefill()
        step = session.tree((-1, 0, 1))
        step.given = (given,)
        found.append(session.forward(session.ids([4, 5, 6]), step))
        if len(found) == 1:
            model.flat = None
    assert_near(*found)


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_models_that_lack_blocks_run_flat_too(name: str) -> None:
    model = made(name)
    with eager(model):
        plainly = SkippedModel(model, {1, 2}, {2, 3})
    skipping = SkippedModel(model, {1, 2}, {2, 3})
    assert skipping.flat is not None
    found = []
    for one in (skipping, plainly):
        session = Session(model, CAPACITY)
        session.reset(tokens(6))
        session.prefill()
        if one is plainly:
            model.flat = None
        found.append(one.over(session).advance(session.ids([4])))
    assert_near(*found)


@torch.inference_mode()
def test_batches_run_eagerly_over_the_same_weights() -> None:
    model = made("llama-mha-tied")
    plain = StagedModel(stock_model("llama-mha-tied"), packed=False)
    prompts = [tokens(5, 1), tokens(7, 2)]
    ours, theirs = (PaddedBatch(m, CAPACITY, 2).prefill(prompts, 0) for m in (model, plain))
    assert_near(ours, theirs)
    tied = plain.model.get_input_embeddings().weight
    assert model.weight_bytes() == plain.weight_bytes() + tied.numel() * tied.element_size()


def test_compiled_passes_take_their_place_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ppdbench.engine import artefacts
    from tests.compiling import uncompiled

    monkeypatch.setattr(artefacts, "runner", uncompiled)
    model = made("llama-mha-tied")
    before = outputs(model)
    model.compile([1, 3])
    assert model.path.kernels == "compiled"
    for ours, expected in zip(outputs(model), before, strict=True):
        assert_near(ours, expected)


# The choice


class Turns(Clock):
    """A clock by which flat and eager passes take as long as they are said to."""

    def __init__(self, flat_s: float, eager_s: float) -> None:
        super().__init__(torch.device("cpu"))
        # Exact: a sum of many times rounds otherwise than a sum of few.
        self._at, self._both = Fraction(0), [Fraction(flat_s), Fraction(eager_s)]
        self._reads = -1  # the first is when laying out begins

    def now(self) -> Fraction:  # type: ignore[override]
        self._reads += 1
        if self._reads and self._reads % 2 == 0:
            turn = (self._reads // 2 - 1) // (len(choice.ROWS) * choice.IN_A_TURN)
            self._at += self._both[turn % 2]
        return self._at


@pytest.mark.parametrize(("flat_s", "eager_s"), [(1e-3, 2e-3), (2e-3, 1e-3), (1e-3, 1e-3)])
def test_the_slower_path_is_never_chosen(flat_s: float, eager_s: float) -> None:
    adapter = StagedModel(stock_model("llama"), packed=False).adapter
    found, path = choice.lay_out(adapter, tokens(9), FASTER, Turns(flat_s, eager_s))
    assert (found is not None) == (flat_s < eager_s)
    assert path.kernels.startswith("flat" if flat_s < eager_s else "eager")
    assert f"{1e3 * flat_s:.2f} ms flat, {1e3 * eager_s:.2f} ms eager" in path.why
    assert path.prepared_s > 0
    kinds = {type(m) for layer in adapter.layers for m in layer.modules()}
    assert (nn.Linear in kinds) == (found is None)


def test_without_kernels_passes_are_eager_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise choice.Unavailable("no C++ compiler found")

    monkeypatch.setattr(choice, "library", missing)
    model = StagedModel(stock_model("llama"), passes=FASTER)
    assert model.flat is None
    assert model.path.kernels == EAGER
    assert "no C++ compiler" in model.path.why
    assert_near(outputs(model)[0], outputs(StagedModel(stock_model("llama")))[0])


def test_types_and_layers_without_operations_stay_eager() -> None:
    half = StagedModel(stock_model("llama").half(), passes=FLAT)
    assert half.flat is None
    assert "float16" in half.path.why
    model = stock_model("llama")
    for layer in model.model.layers:
        layer.mlp.act_fn = nn.Tanh()
    odd = StagedModel(model, passes=FLAT)
    assert odd.flat is None
    assert "Tanh" in odd.path.why
    assert {type(m).__name__ for m in odd.adapter.layers[0].modules()} & {"PackedLinear"}


def _wrong_tail(found: Tensor) -> Tensor:
    return torch.cat([found[..., :-1], 0 * found[..., -1:]], -1)


class WrongTail(flat_ops.PlainLinear):
    """The last column is left out."""

    def __call__(self, x: Tensor) -> Tensor:
        return _wrong_tail(super().__call__(x))


class StalePad(flat_ops.PlainLinear):
    """A row beside others takes what the one before it left."""

    def __call__(self, x: Tensor) -> Tensor:
        found = super().__call__(x)
        return found if len(found) < 4 else torch.cat([found[:3], found[2:3], found[4:]])


class NoBias(flat_ops.PlainLinear):
    """The bias is forgotten."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, None)


def _less_by_one(self: flat_ops.Pass, row: int, window: int | None) -> Tensor:
    slots: Tensor = SEEN(self, row, window)
    return slots[1:] if len(slots) > 1 else slots


SEEN = flat_ops.Pass.keys


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bug", [WrongTail, StalePad, NoBias, None])
def test_planted_bugs_are_refused_and_passes_stay_eager(
    bug: type[flat_ops.PlainLinear] | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug is None:
        monkeypatch.setattr(flat_ops.Pass, "keys", _less_by_one)
    else:
        monkeypatch.setattr(products, "pack", bug)
    model = StagedModel(stock_model("qwen2").to(dtype), passes=FLAT)
    assert model.flat is None
    assert model.path.kernels == EAGER
    assert "times what is allowed" in model.path.why
    plain = StagedModel(stock_model("qwen2").to(dtype))
    for ours, expected in zip(outputs(model), outputs(plain), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("where", ["model.layers.2.mlp.up_proj", "lm_head"])
def test_one_number_of_one_weight_that_is_laid_out_wrongly_is_found(
    where: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = stock_model("llama").to(dtype)
    meant = stock.get_submodule(where).weight.data_ptr()

    def damaged(weight: Tensor, bias: Tensor | None = None) -> flat_ops.PlainLinear:
        made = flat_ops.PlainLinear(weight, bias)
        if weight.data_ptr() == meant:
            made.blob[3, 5] += 2**-6
        return made

    monkeypatch.setattr(products, "pack", damaged)
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is None
    # The head is the first of its shape, and multiplied by.
    first = where == "lm_head"
    assert ("times what is allowed" if first else "holds other weights") in model.path.why


@pytest.mark.parametrize(("name", "times"), [("llama", 1), ("gemma2", 4)])
def test_of_layers_that_are_alike_one_is_held_against_itself(
    name: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = list[int]()
    real = choice.Trial.compare

    def compare(self: choice.Trial, index: int, flat: nn.Module) -> None:
        compared.append(index)
        real(self, index, flat)

    monkeypatch.setattr(choice.Trial, "compare", compare)
    assert made(name).flat is not None
    assert len(compared) == times


def test_a_final_norm_that_is_misread_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Adapter.norm
    monkeypatch.setattr(Adapter, "norm", lambda self, hidden: 1.001 * real(self, hidden))
    model = StagedModel(stock_model("llama"), passes=FLAT)
    assert model.flat is None
    assert "the readout is off by" in model.path.why


@torch.inference_mode()
def test_a_model_that_runs_a_part_of_its_layers_writes_those() -> None:
    whole, part = (
        StagedModel(stock_model("llama"), keep=keep, passes=FLAT) for keep in (None, range(2, 4))
    )
    assert part.flat is not None, part.path.why
    found = []
    for model in (whole, part):
        session = Session(model, CAPACITY, layers=range(2, 4))
        hidden = torch.ones(1, 3, model.hidden_size)
        found.append(session.run(hidden, 2, 4, session.chain(3)))
    assert torch.equal(*found)
