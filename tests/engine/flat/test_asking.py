"""Few rows ask ahead for weights where that is faster, and numbers are the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.engine.flat import asking
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.native import TILES, loaded
from ppdbench.engine.flat.weights import pack
from ppdbench.engine.staged import StagedModel
from ppdbench.machine.clock import Clock
from tests.engine.flat.made import DTYPES
from tests.families import stock_model

WORDS = "ahead for weights"


class Machine(Clock):
    """A clock, kernels and their passes of one row and of three: each takes so long where rows ask,
    and where they do not.
    """

    def __init__(self, one: tuple[float, float], three: tuple[float, float]) -> None:
        super().__init__(torch.device("cpu"))
        self._at, self._takes = 0.0, (one, three)
        self.asks: tuple[bool, bool] | None = None

    def now(self) -> float:
        return self._at

    def ask(self, dtype: torch.dtype, *, two: bool, more: bool) -> None:
        assert dtype == torch.float32
        self.asks = two, more

    def run(self, which: int) -> None:
        assert self.asks is not None
        self._at += self._takes[which][not self.asks[which]]


TIMES = [(1.0, 2.0), (2.0, 1.0), (1.0, 1.0), (1.0, 1.0625), (1.0625, 1.0)]


@pytest.mark.parametrize("one", TIMES, ids=str)
@pytest.mark.parametrize("three", TIMES, ids=str)
def test_the_slower_way_is_never_taken(
    one: tuple[float, float], three: tuple[float, float]
) -> None:
    machine: Any = Machine(one, three)
    runs = [partial(machine.run, which) for which in (0, 1)]
    found = asking.choose(machine, torch.float32, runs, machine)
    assert tuple(zip(found.asked_s, found.left_s, strict=True)) == (one, three)
    better = one[0] <= one[1], three[0] <= three[1]
    assert machine.asks == (found.two, found.more) == better
    said = {
        (True, True): "few rows ask ahead for weights: ",
        (False, False): "few rows do not ask ahead",
        (True, False): "few rows ask ahead for weights where they are one or two",
        (False, True): "few rows ask ahead for weights where they are three or more",
    }
    assert found.words.startswith(said[better])
    assert f"{1e3 * one[0]:.2f} and {1e3 * three[0]:.2f} ms asking" in found.words
    assert f"{1e3 * one[1]:.2f} and {1e3 * three[1]:.2f} ms not" in found.words


def forget() -> None:
    """Nothing has been measured, so all rows ask."""
    loaded().asked_over.clear()
    for each in DTYPES:
        loaded().ask(each, two=True, more=True)


@pytest.fixture(autouse=True)
def for_itself() -> Iterator[None]:
    """What tests before it measured counts for no test here, nor the other way round."""
    forget()
    yield
    forget()


@pytest.mark.parametrize("shape", [(45, 37), (96, 1024)], ids=str)
def test_asking_changes_no_bit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    drawn = torch.Generator().manual_seed(0)
    linear = pack(torch.randn(*shape, generator=drawn).to(dtype))
    rows = torch.randn(7, shape[1], generator=drawn).to(dtype)
    found = {}
    for ask in (True, False):
        loaded().ask(dtype, two=ask, more=ask)
        found[ask] = [linear(rows[:n]) for n in range(1, len(rows) + 1)]
    assert all(map(torch.equal, found[True], found[False]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_model_with_most_weights_decides(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded_model(**sizes: int) -> StagedModel:
        return StagedModel(stock_model("llama", **sizes).to(dtype), passes=FLAT)

    assert WORDS not in loaded_model().path.why  # its weights stay in a cache
    monkeypatch.setattr(asking, "LEAST_BYTES", 1)
    tiled = dtype == torch.bfloat16 and TILES in loaded().paths
    large = loaded_model(num_hidden_layers=4)
    assert (WORDS in large.path.why) != tiled
    assert (dtype in loaded().asked_over) != tiled
    assert WORDS not in loaded_model(num_hidden_layers=2).path.why


@pytest.mark.parametrize("family", ["gemma3n_text", "gemma4_text", "diffllama", "gpt2"])
def test_layers_that_take_more_than_a_state_are_timed_as_well(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LEAST_BYTES", 1)
    model = StagedModel(tiny(family), passes=FLAT)
    assert WORDS in model.path.why
