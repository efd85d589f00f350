"""Times of passes by their rows: each side's own, behind the same tokens, in turns."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.bench.pass_curve import (
    IN_A_TURN,
    BehindOther,
    OurPasses,
    PassCurve,
    SideTimes,
    StockPasses,
    measure_curve,
    time_curve,
)
from ppdbench.decoding.stock import StockModel
from ppdbench.engine import synthetic
from ppdbench.engine.loading import Loaded, ModelSpec, load, load_stock
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.machine.clock import Clock
from ppdbench.tasks.passages import pseudo_prompts

SPEC = ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300,context=64", device="cpu")
BANDWIDTH = 1e9
CONTEXT = 20
Ran = list[tuple[str, int]]


class Worked(Clock):
    """A clock that stands still but for what passes are said to take."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.at = 0.0

    def now(self) -> float:
        return self.at


@pytest.fixture(scope="module")
def ours() -> Loaded:
    return load(SPEC)


@pytest.fixture(scope="module")
def stock(ours: Loaded) -> StockModel:
    return StockModel(load_stock(SPEC)[0])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> tuple[Worked, Ran]:
    """Passes take 40 ms and 1 per row, those of transformers 50 and 10 per row."""
    clock, seen = Worked(), list[tuple[str, int]]()
    for kind, fixed, each in ((OurPasses, 0.04, 0.001), (StockPasses, 0.05, 0.01)):
        real = kind.run

        def run(
            self: OurPasses | StockPasses,
            tokens: Sequence[int],
            real=real,  # type: ignore[no-untyped-def]
            fixed: float = fixed,
            each: float = each,
        ) -> list[int]:
            seen.append((type(self).__name__, len(tokens)))
            clock.at += fixed + each * len(tokens)
            found: list[int] = real(self, tokens)
            return found

        monkeypatch.setattr(kind, "run", run)
    return clock, seen


@pytest.fixture
def curve(ours: Loaded, stock: StockModel, ran: tuple[Worked, Ran]) -> PassCurve:
    return time_curve(
        ours,
        stock,
        rows=(9, 3),
        context=CONTEXT,
        rounds=2,
        clock=ran[0],
        bandwidth=BANDWIDTH,
    )


def test_times_are_each_sides_own_by_rows(curve: PassCurve) -> None:
    found = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert found["curve"] == [
        {
            "rows": n,
            "ms": pytest.approx(40 + n),
            "generate_ms": pytest.approx(50 + 10 * n),
            "behind_other_ms": pytest.approx(40 + n),
        }
        for n in (1, 3, 9)
    ]
    assert all(len(p.ours.ms) == len(p.stock.ms) == 2 * IN_A_TURN for p in curve.points)
    assert curve.unsteady is None


def test_the_limit_and_the_path_are_those_of_the_model(curve: PassCurve, ours: Loaded) -> None:
    found = curve.to_dict()
    weights = sum(p.numel() for name, p in stock_parameters() if "embed_tokens" not in name)
    row_of_the_table = 32
    assert curve.weight_bytes == pytest.approx(4 * (weights + row_of_the_table), rel=1e-3)
    assert found["reading_ms"] == pytest.approx(1e3 * curve.weight_bytes / BANDWIDTH)
    assert found["reading_share"] == pytest.approx(found["reading_ms"] / (40 + 1))
    assert len(curve.reading_shares) == 2
    assert (found["path"], found["why"]) == (ours.staged.path.kernels, ours.staged.path.why)
    assert found["prepared_s"] == ours.staged.path.prepared_s


def test_a_memory_that_changes_between_rounds_changes_no_ratio(curve: PassCurve) -> None:
    fast, slow = (1.0, 1.1, 1.0), (2.0, 2.0, 2.2)
    many = SideTimes((*(3 * t for t in fast), *(3 * t for t in slow), *(3 * t for t in fast)))
    one = SideTimes((*fast, *slow, *fast))
    points = tuple(replace(p, ours=one if p.rows == 1 else many) for p in curve.points)
    found = replace(curve, points=points, rounds=3, reading_shares=(0.8, 0.9, 0.7))
    assert found.over_one(found.points[-1]) == pytest.approx([3.0, 3.0, 3.0])
    assert found.reading_share == 0.8
    assert replace(found, reading_shares=()).reading_share == found.reading_ms / 1.1


def stock_parameters() -> list[tuple[str, torch.nn.Parameter]]:
    return list(load_stock(SPEC)[0].named_parameters())


def test_experts_are_those_that_routers_choose_for_the_rows_of_a_pass() -> None:
    model = tiny("mixtral", vocab_size=300)
    routers = [m for m in model.modules() if "Router" in type(m).__name__]
    chosen: list[torch.Tensor] = []
    (tokens,) = pseudo_prompts(synthetic.tokenizer(300, 64), 1, CONTEXT + 9)
    for router in routers:
        router.register_forward_hook(lambda _, __, out: chosen.append(out[-1][CONTEXT:]))
    with torch.inference_mode():
        model(torch.tensor([tokens]), use_cache=False)
    staged = StagedModel(tiny("mixtral", vocab_size=300))
    loaded = Loaded(SPEC, staged, synthetic.tokenizer(300, 64), frozenset(), 0, "")
    found = time_curve(
        loaded,
        StockModel(tiny("mixtral", vocab_size=300)),
        rows=(3, 9),
        context=CONTEXT,
        rounds=1,
        bandwidth=1.0,
    )
    for point in found.points:
        each = [len(set(rows[: point.rows].flatten().tolist())) for rows in chosen]
        assert point.experts == sum(each) / len(routers)
    assert found.experts_of_a_layer == 4


def test_sizes_and_sides_take_turns_in_both_directions(
    curve: PassCurve, ran: tuple[Worked, Ran]
) -> None:
    turns = [run for i, run in enumerate(ran[1]) if not i or run != ran[1][i - 1]]
    sides = "OurPasses", "StockPasses", "OurPasses"  # the last behind other work
    forward = [(side, n) for n in (1, 3, 9) for side in sides]
    assert turns[:-2] == [*forward, *forward[-2::-1]]  # the turn between both rounds is one


def test_other_memory_is_read_before_each_pass_behind_other_work_and_is_not_timed(
    ours: Loaded, stock: StockModel, ran: tuple[Worked, Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, seen = ran
    read: list[int] = []

    def before(self: BehindOther) -> None:
        read.append(len(seen))
        clock.at += 1.0

    monkeypatch.setattr(BehindOther, "before", before)
    found = time_curve(
        ours, stock, rows=(1,), context=CONTEXT, rounds=2, clock=clock, bandwidth=BANDWIDTH
    )
    assert len(read) == 2 * IN_A_TURN
    assert all(seen[n] == ("OurPasses", 1) for n in read)
    (point,) = found.points
    assert point.behind_other is not None
    assert point.behind_other.ms == pytest.approx((41.0,) * 2 * IN_A_TURN)


@torch.inference_mode()
def test_both_sides_run_the_same_rows_behind_the_same_tokens_again_and_again(
    ours: Loaded, stock: StockModel
) -> None:
    prompt, following = list(range(CONTEXT)), [7, 8, 9]
    wanted = stock.model(torch.tensor([[*prompt, *following]])).logits[0, -3:].argmax(-1).tolist()
    for side in (OurPasses(ours, prompt, 9), StockPasses(stock, prompt)):
        for _ in range(2):
            assert side.run(following) == wanted
            side.forget()


def test_passes_that_find_other_tokens_are_counted(
    curve: PassCurve, ours: Loaded, ran: tuple[Worked, Ran]
) -> None:
    assert curve.same_tokens == 9
    other = copy.deepcopy(load_stock(SPEC)[0])
    other.lm_head.weight.data.neg_()
    found = time_curve(
        ours, StockModel(other), rows=[9], context=CONTEXT, rounds=1, clock=ran[0], bandwidth=1.0
    )
    assert found.same_tokens < 9


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"rows": [0]}, "--rows 0: use 1 or more"),
        ({"context": 0}, "--context 0: use 1 or more"),
        ({"rounds": -1}, "--rounds -1: use 1 or more"),
        ({"rows": [45]}, "64 tokens at most; lower --context or --rows"),
    ],
)
def test_what_cannot_be_measured_is_refused(changed: dict[str, object], complaint: str) -> None:
    asked = {"rows": [1], "context": CONTEXT, "rounds": 1, **changed}
    with pytest.raises(ConfigError, match=complaint):
        measure_curve(SPEC, **asked)  # type: ignore[arg-type]
