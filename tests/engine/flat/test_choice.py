"""The choice of flat passes: only where they are faster, and compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.flat import choice, products
from ppdbench.engine.flat.choice import EAGER, FASTER, FLAT
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from tests import flat_ops
from tests.engine.flat.made import DTYPES, made, outputs
from tests.families import stock_model
from tests.helpers import CAPACITY, assert_near, tokens


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    flat_ops.stand_in(monkeypatch)


class Turns(Clock):
    """A clock by which flat and eager passes take as long as they are said to.

    Of several times each is that of passes of another number of rows.
    """

    def __init__(self, flat_s: float | Sequence[float], eager_s: float | Sequence[float]) -> None:
        super().__init__(torch.device("cpu"))
        # Exact: a sum of many times rounds otherwise than a sum of few.
        self._at, self._both = Fraction(0), [_by_rows(flat_s), _by_rows(eager_s)]
        self._reads = -1  # the first is when laying out begins

    def now(self) -> Fraction:  # type: ignore[override]
        self._reads += 1
        if self._reads and self._reads % 2 == 0:
            group = (self._reads // 2 - 1) // choice.IN_A_TURN
            turn, rows = divmod(group, len(choice.ROWS))
            self._at += self._both[turn % 2][rows]
        return self._at


def _by_rows(seconds: float | Sequence[float]) -> list[Fraction]:
    each = [seconds] * len(choice.ROWS) if isinstance(seconds, float) else seconds
    return list(map(Fraction, each))


@pytest.mark.parametrize(
    ("flat_s", "eager_s"), [(1e-3, 2e-3), (2e-3, 1e-3), (1e-3, 1e-3), (1e-3, 3e-3), (3e-3, 1e-3)]
)
def test_the_slower_path_is_never_chosen(flat_s: float, eager_s: float) -> None:
    adapter = StagedModel(stock_model("llama"), packed=False).adapter
    found, path = choice.lay_out(adapter, tokens(9), FASTER, Turns(flat_s, eager_s))
    assert (found is not None) == (flat_s < eager_s)
    assert path.kernels.startswith("flat" if flat_s < eager_s else "eager")
    assert f"{1e3 * flat_s:.2f} ms flat, {1e3 * eager_s:.2f} ms eager" in path.why
    assert path.prepared_s > 0
    kinds = {type(m) for layer in adapter.layers for m in layer.modules()}
    assert (nn.Linear in kinds) == (found is None)


@pytest.mark.parametrize(
    ("flat_s", "eager_s"),
    [((1e-3, 3e-3), (2e-3, 2e-3)), ((3e-3, 1e-3), (2e-3, 2e-3)), ((2e-3, 9e-3), (5e-3, 8e-3))],
)
def test_what_is_slower_for_some_rows_is_not_chosen(
    flat_s: tuple[float, float], eager_s: tuple[float, float]
) -> None:
    adapter = StagedModel(stock_model("llama"), packed=False).adapter
    found, path = choice.lay_out(adapter, tokens(9), FASTER, Turns(flat_s, eager_s))
    assert found is None
    for rows, flat, eager in zip(choice.ROWS, flat_s, eager_s, strict=True):
        assert f"{rows} row" in path.why
        assert f"{1e3 * flat:.2f} ms flat, {1e3 * eager:.2f} ms eager" in path.why


# So many times flat passes of one row and of nine, and eager ones of either, are measured.
ONE_TURN, ALL_TURNS = (3, 3, 3, 3), (6, 6, 6, 6)


@pytest.mark.parametrize(
    ("flat_s", "eager_s", "measured"),
    [
        ((1e-3, 1e-3), (1.9e-3, 9e-3), ALL_TURNS),
        ((1e-3, 2e-3), (2.1e-3, 4.1e-3), ONE_TURN),
        ((2.1e-3, 4.1e-3), (1e-3, 2e-3), ONE_TURN),
        ((1e-3, 1e-3), (2.1e-3, 9e-3), (3, 3, 3, 0)),
        ((1e-3, 2e-3), (4.1e-3, 9e-3), (3, 3, 3, 0)),
    ],
)
def test_what_is_clear_is_not_measured_again(
    flat_s: tuple[float, float], eager_s: tuple[float, float], measured: tuple[int, ...]
) -> None:
    adapter, clock = StagedModel(stock_model("llama"), packed=False).adapter, Turns(flat_s, eager_s)
    clock.now()
    one, nine = choice.measure(adapter, tokens(9), clock)
    took = zip((*flat_s, *eager_s), measured, strict=True)
    assert clock.now() == sum(Fraction(seconds) * times for seconds, times in took)
    assert (one.flat_s, nine.flat_s, one.eager_s) == (*flat_s, eager_s[0])
    # Eager passes of nine rows take no less than those of one, which flat ones of nine undercut.
    assert nine.at_least == (not measured[-1])
    assert nine.eager_s == eager_s[not nine.at_least]


def test_a_bound_is_said_to_be_one() -> None:
    adapter = StagedModel(stock_model("llama"), packed=False).adapter
    _, path = choice.lay_out(adapter, tokens(9), FASTER, Turns((1e-3, 2e-3), (5e-3, 6e-3)))
    assert "1 row: 1.00 ms flat, 5.00 ms eager" in path.why
    assert "9 rows: 2.00 ms flat, at least 5.00 ms eager" in path.why


def test_without_kernels_passes_are_eager_and_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(dtype: torch.dtype) -> None:
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


def _less_by_one(self: flat_ops.Pass, row: int, window: int | None) -> tuple[Tensor, Tensor]:
    slots, places = SEEN(self, row, window)
    return (slots[1:], places[1:]) if len(slots) > 1 else (slots, places)


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

    def compare(self: choice.Trial, index: int, flat: nn.Module, wanted: list[Tensor]) -> None:
        compared.append(index)
        real(self, index, flat, wanted)

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
