"""Both sides decode the same tokens; numbers follow from a scripted clock."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from ppdbench.bench.baseline import (
    BaselineReport,
    Round,
    bytes_per_token,
    compare,
    compare_with_generate,
    weight_bytes_read,
)
from ppdbench.decoding.stock import StockModel
from ppdbench.engine.loading import ModelSpec, load, load_stock, take_over
from ppdbench.engine.quiet import quiet
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.machine.clock import Clock
from ppdbench.tasks.passages import pseudo_prompts
from tests.families import WINDOW, stock_model

SPEC = ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300,context=64", device="cpu")
PROMPTS = [[5, 17, 33, 8, 61], [90, 12, 44]]
BANDWIDTH = 1e9


class ScriptedClock(Clock):
    """Every reading is one second after the last."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.seconds = iter(range(1_000_000))

    def now(self) -> float:
        return float(next(self.seconds))


def stock() -> StockModel:
    return StockModel(load_stock(SPEC)[0])


@pytest.fixture(scope="module")
def report() -> BaselineReport:
    return compare(
        load(SPEC),
        stock(),
        prompts=PROMPTS,
        new_tokens=6,
        rounds=2,
        clock=ScriptedClock(),
        bandwidth=BANDWIDTH,
    )


def test_greedy_and_generate_give_the_same_tokens(report: BaselineReport) -> None:
    assert report.identical == 2
    assert report.first_differences == (None, None)


def test_speeds_follow_from_the_clock(report: BaselineReport) -> None:
    # A generate() reads the clock once per token. A greedy call does so twice for the prefill
    # and twice per step, 12 times in all, between its own two readings: 13 intervals.
    assert report.rounds == (Round(26.0, 10.0, 12.0, 10.0),) * 2
    assert report.greedy_tokens_per_s == pytest.approx(12 / 26)
    assert report.generate_tokens_per_s == pytest.approx(12 / 12)
    assert report.decode_tokens_per_s == pytest.approx(10 / 10)
    assert report.ratio == pytest.approx(12 / 26)
    assert report.decode_ratio == pytest.approx(10 / 10)
    assert report.bandwidth_utilisation == pytest.approx(report.bytes_per_token / BANDWIDTH)


def test_report_is_json_with_the_fixed_keys(report: BaselineReport) -> None:
    value = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    keys = {
        *("greedy_tokens_per_s", "generate_tokens_per_s", "ratio"),
        *("bandwidth_bytes_per_s", "bandwidth_utilisation"),
    }
    assert keys <= value.keys()
    assert (value["model"], value["synthetic"], value["dtype"]) == (SPEC.name, True, "float32")
    assert (value["rounds"], value["prompts"], value["prompt_tokens"]) == (2, 2, [5, 3])


def test_ratio_is_the_median_of_rounds_with_their_range(report: BaselineReport) -> None:
    from dataclasses import replace

    rounds = tuple(
        Round(ours, 0.5 * ours, theirs, 0.5 * theirs) for ours, theirs in ((1, 2), (1, 9), (2, 2))
    )
    spread = replace(report, rounds=rounds)
    assert spread.ratio == 2.0
    assert spread.ratio_range == (1.0, 9.0)


def test_an_eos_in_the_output_stops_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, tokenizer = load_stock(SPEC)
    first = int(theirs(torch.tensor([PROMPTS[0]])).logits[0, -1].argmax())
    theirs.generation_config.eos_token_id = first
    theirs.generation_config.repetition_penalty = 2.0
    theirs.config.eos_token_id = first
    ours = take_over(SPEC, load_stock(SPEC)[0], tokenizer)
    report = compare(
        ours, StockModel(theirs), prompts=PROMPTS, new_tokens=6, rounds=1, bandwidth=1.0
    )
    assert report.identical == 2


def test_one_new_token_has_no_decode_speed() -> None:
    report = compare(
        load(SPEC),
        stock(),
        prompts=PROMPTS,
        new_tokens=1,
        rounds=1,
        bandwidth=1.0,
    )
    assert report.decode_tokens_per_s is report.decode_ratio is None
    assert report.to_dict()["bandwidth_utilisation"] is None


def test_order_alternates_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from ppdbench.bench import baseline

    calls: list[str] = []
    for name in ("_Greedy", "_Generate"):
        original = getattr(baseline, name).__call__

        def spy(self: object, prompt: list[int], name: str = name, f: object = original) -> object:
            calls.append(name)
            return f(self, prompt)  # type: ignore[operator]

        monkeypatch.setattr(getattr(baseline, name), "__call__", spy)
    compare(
        load(SPEC),
        stock(),
        prompts=PROMPTS[:1],
        new_tokens=2,
        rounds=3,
        bandwidth=1.0,
    )
    warm_up, timed = calls[:2], calls[2:]
    assert warm_up == ["_Greedy", "_Generate"]
    assert timed == [
        *("_Greedy", "_Generate"),
        *("_Generate", "_Greedy"),
        *("_Greedy", "_Generate"),
    ]


def test_compare_with_generate_loads_both_and_tells_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ppdbench.bench.baseline.measure_bandwidth", lambda *_: 2.0)
    told: list[tuple[str, int, int | None]] = []
    quiet()
    report = compare_with_generate(
        SPEC,
        prompts=lambda tokenizer: pseudo_prompts(tokenizer, 2, 8),
        new_tokens=4,
        rounds=1,
        progress=lambda *step: told.append(step),
    )
    assert (report.identical, report.prompt_tokens) == (2, (8, 8))
    assert report.bandwidth_bytes_per_s == 2.0
    assert told[-1] == ("greedy against generate()", 1, 1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"rounds": 0}, "rounds=0; use 1 or more"),
        ({"new_tokens": 0}, "new_tokens=0; use 1 or more"),
        ({"new_tokens": 60}, "5 prompt tokens and 60 new ones, .* 64 at most"),
        ({"prompts": []}, "prompts of one token or more"),
        ({"prompts": [[]]}, "prompts of one token or more"),
    ],
)
def test_comparisons_that_cannot_be_are_refused(changes: dict[str, object], complaint: str) -> None:
    arguments: dict[str, object] = {"prompts": PROMPTS, "new_tokens": 2, "rounds": 1, **changes}
    with pytest.raises(ConfigError, match=complaint):
        compare_with_generate(SPEC, **arguments)  # type: ignore[arg-type]


def test_pseudo_prompts_are_as_long_as_asked_and_repeatable() -> None:
    tokenizer = load_stock(SPEC)[1]
    prompts = pseudo_prompts(tokenizer, 3, 50)
    assert [len(p) for p in prompts] == [50, 50, 50]
    assert len({tuple(p) for p in prompts}) == 3
    assert prompts == pseudo_prompts(tokenizer, 3, 50)


def parameters_read(stock: object, skipped: Iterator[str] | tuple[str, ...] = ()) -> int:
    named = stock.named_parameters()  # type: ignore[attr-defined]
    return sum(4 * p.numel() for name, p in named if not name.startswith(tuple(skipped)))


def buffers(stock: object) -> int:
    return sum(b.numel() * b.element_size() for b in stock.buffers())  # type: ignore[attr-defined]


@pytest.mark.parametrize("packed", [False, True])
def test_an_untied_embedding_is_read_by_the_row(packed: bool) -> None:
    stock = stock_model("llama")
    expected = parameters_read(stock, ("model.embed_tokens",)) + 32 * 4 + buffers(stock)
    assert weight_bytes_read(StagedModel(stock, packed=packed)) == expected


def test_a_table_that_is_also_the_head_is_read_whole() -> None:
    stock = stock_model("llama-mha-tied")
    expected = parameters_read(stock) + buffers(stock)
    assert weight_bytes_read(StagedModel(stock, packed=False)) == expected


def test_a_packed_copy_of_a_tied_head_is_read_whole_and_the_table_by_the_row() -> None:
    stock = stock_model("llama-mha-tied")
    expected = parameters_read(stock) + buffers(stock)
    model = StagedModel(stock)
    copied = getattr(model.adapter.head, "weight", None) is None
    assert weight_bytes_read(model) == expected + (32 * 4 if copied else 0)


def test_learned_positions_are_read_by_the_row() -> None:
    stock = stock_model("gpt2")
    places = stock.transformer.wpe.weight
    expected = parameters_read(stock) + buffers(stock) - 4 * places.numel() + 4 * 32
    assert weight_bytes_read(StagedModel(stock, packed=False)) == expected


def test_cache_rows_are_read_up_to_the_window() -> None:
    # Steps after prompts of 5 and 10 with 3 new tokens see 6, 7, 11 and 12 rows: 9 on average.
    model = StagedModel(stock_model("mistral"))
    row = model.cache_shape.bytes(1)
    assert bytes_per_token(model, [5, 10], 3) - weight_bytes_read(model) == 9 * row
    model = StagedModel(stock_model("mistral-window"))
    seen = (6 + 7 + 2 * WINDOW) / 4
    assert bytes_per_token(model, [5, 10], 3) - weight_bytes_read(model) == seen * row
