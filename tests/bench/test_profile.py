"""Every moment of a step belongs to one part, and bytes are those that its passes read."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from ppdbench.bench.profile import Costs, Meter
from ppdbench.bench.roofline import profile
from ppdbench.decoding import passes
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.machine.clock import Clock
from ppdbench.methods import method
from ppdbench.report.profile_tables import sheets
from tests.filled import add_up
from tests.helpers import tokens

MODEL = "synthetic:layers=4,hidden=32,heads=2,vocab=300,context=96,agree=0.9"


class Ticking(Clock):
    """Every reading is one second after the last."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.seconds = itertools.count()

    def now(self) -> float:
        return float(next(self.seconds))


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(ModelSpec(name=MODEL, device="cpu"))


def metered(loaded: Loaded, name: str, **options: str) -> tuple[Decoded, Meter, Decoder]:
    decoder = method(name).build(options).prepare(Setup(loaded, 64))
    clock = Ticking()
    meter = Meter(loaded.staged, clock)
    session = Session(loaded.staged, 64, spare=decoder.rows)
    with meter.over(decoder):
        decoded = decoder.decode(session, Request(tokens(9), Limits(12), clock))
    return decoded, meter, decoder


METHODS: dict[str, dict[str, str]] = {
    "greedy": {},
    "layerskip": {"exit_layer": "1", "draft_length": "3"},
    "draft-verify": {},
    "prompt-lookup": {},
    "speculative": {"draft_model": MODEL},
}


@pytest.mark.parametrize("name", METHODS)
def test_parts_add_up_to_the_steps(loaded: Loaded, name: str) -> None:
    decoded, meter, _ = metered(loaded, name, **METHODS[name])
    found = meter.profile(decoded)
    parts = [found[f"{part}_ms"] for part in ("draft_pass", "draft", "pass", "bookkeeping")]
    assert sum(parts) == pytest.approx(sum(decoded.step_ms))
    assert min(parts) >= 0
    drafts = name in ("layerskip", "draft-verify", "speculative")
    assert (found["draft_pass_bytes"] > 0) == (found["draft_pass_ms"] > 0) == drafts
    assert found["pass_bytes"] > 0


def test_nothing_of_the_prefill_is_counted(loaded: Loaded) -> None:
    decoded, meter, _ = metered(loaded, "greedy")
    # Pieces of one second each, per step: what embeds, where kernels do not look words up
    # themselves, and all layers with their readout; the clock ticks between them, too.
    flat = loaded.staged.flat
    pieces = 1 if flat is not None and flat.looks_up else 2
    assert meter.profile(decoded)["pass_ms"] == 1e3 * pieces * len(decoded.step_ms)


def test_what_is_prepared_before_decoding_is_no_part_of_the_prefill(loaded: Loaded) -> None:
    decoder = method("greedy").build({}).prepare(Setup(loaded, 64))
    clock = Ticking()
    meter, session = Meter(loaded.staged, clock), Session(loaded.staged, 64)
    with meter.over(decoder):
        clock.seconds = itertools.count(100)  # as if modules had been looked through
        meter.begin()
        decoded = decoder.decode(session, Request(tokens(9), Limits(12), clock))
    other, plain, _ = metered(loaded, "greedy")
    assert meter.profile(decoded) == plain.profile(other)


def test_rows_of_passes_that_draft_are_counted_once(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = method("prompt-lookup").build({}).prepare(Setup(loaded, 64))
    monkeypatch.setattr(passes, "new_rows", lambda: None)
    monkeypatch.setattr(decoder, "propose", lambda: passes.new_rows(), raising=False)
    meter = Meter(loaded.staged, Ticking())
    with meter.over(decoder):
        decoder.propose()  # type: ignore[attr-defined]
        assert meter.joining == []
        passes.new_rows()
        assert meter.joining == [1.0]


def test_what_was_changed_for_the_meter_is_as_before(loaded: Loaded) -> None:
    _, _, decoder = metered(loaded, "layerskip", exit_layer="1")
    assert not {"run", "logits", "embed"} & set(vars(loaded.staged))
    assert "propose" not in vars(decoder)


def test_a_greedy_step_reads_all_weights_and_the_rows_so_far(loaded: Loaded) -> None:
    decoded, meter, _ = metered(loaded, "greedy")
    staged = loaded.staged
    embedding = staged.adapter.embedding.get_parameter("weight")
    weights = staged.weight_bytes() - embedding.numel() * embedding.element_size()
    buffers = sum(b.numel() * b.element_size() for b in staged.model.buffers())
    row = staged.cache_shape.bytes(1)
    keys = sum(9 + step for step in range(1, 12))
    assert meter.profile(decoded)["pass_bytes"] == 11 * (weights - buffers) + row * keys


def test_a_step_to_an_exit_reads_the_layers_before_it_and_the_readout(loaded: Loaded) -> None:
    _, meter, _ = metered(loaded, "early-exit", exit_layer="1")
    whole = metered(loaded, "greedy")[1].calls[-1].bytes
    staged = loaded.staged
    above = sum(staged.layer_bytes(layer) for layer in range(1, staged.n_layers))
    keys = staged.cache_shape.bytes(1) // staged.n_layers * (staged.n_layers - 1)
    assert meter.calls[-1].bytes == whole - above - keys * 20


def test_skipped_blocks_are_not_read(loaded: Loaded) -> None:
    staged = loaded.staged
    skipping = SkippedModel(staged, {1, 2}, {1})
    step = Session(staged, 64).steps.chain(8, 1)
    cache, _ = staged.new_cache(64)
    whole, less = Costs(staged), Costs(skipping)
    hidden = torch.zeros(1, 1, 32)
    rows = 4 * (staged.cache_shape.bytes(9) // 4)
    assert whole.run(hidden, 0, 4, step, cache) == rows + sum(map(staged.layer_bytes, range(4)))
    assert skipping.layer_bytes(1) == 0 < skipping.layer_bytes(2) < staged.layer_bytes(2)
    assert less.run(hidden, 0, 4, step, cache) < whole.run(hidden, 0, 4, step, cache)


PLAIN: dict[str, Any] = {
    "task": "xsum",
    "method": "greedy",
    "verdict": "identical",
    "output_ids": [1, 2],
    "step_ms": [9.0],
}
SAMPLE: dict[str, Any] = {
    **PLAIN,
    "step_ms": [2.0, 2.0],
    "profile": {
        "draft_pass_ms": 1.0,
        "draft_ms": 0.5,
        "pass_ms": 2.0,
        "bookkeeping_ms": 0.5,
        "draft_pass_bytes": 1e6,
        "pass_bytes": 4e6,
    },
}


def test_fractions_are_bytes_per_time_against_the_measured_speed() -> None:
    found = profile(add_up([SAMPLE, SAMPLE, PLAIN]), bandwidth=4e9)
    assert found is not None
    assert found["step_ms"] == 2.0
    assert found["pass_share"] == 0.5
    assert found["bytes_per_step"] == 2.5e6
    assert found["draft_bandwidth_fraction"] == pytest.approx(0.25)
    assert found["pass_bandwidth_fraction"] == pytest.approx(0.5)
    assert found["bandwidth_fraction"] == pytest.approx(5e6 / 4e-3 / 4e9)


def test_what_was_not_profiled_has_no_profile_and_no_table() -> None:
    assert profile(add_up([PLAIN]), bandwidth=1e9) is None
    assert profile(add_up([SAMPLE]), bandwidth=None) is None
    assert sheets([{"label": "greedy", "task": "xsum", "profile": None}]) == []


def test_the_table_names_tasks_only_where_there_are_several() -> None:
    held = profile(add_up([SAMPLE]), bandwidth=4e9)
    one = {"label": "greedy", "task": "xsum", "profile": held}
    assert [row[0] for row in sheets([one])[0].rows] == ["greedy"]
    (sheet,) = sheets([one, {**one, "task": "squad"}])
    assert [row[0] for row in sheet.rows] == ["greedy, xsum", "greedy, squad"]
    assert "4.0 GB/s" in sheet.notes[0]
