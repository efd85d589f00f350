"""Outputs are compared with the passes that chose them, made again with the threads they had."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from ppdbench.bench import interleaved
from ppdbench.bench.interleaved import Interleaved, PreparedMethod
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Target
from ppdbench.engine.flat.choice import EAGER, FLAT
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.machine.cores import confined
from ppdbench.methods.base import METHODS
from ppdbench.runs.workload import Item, RunConfig, Workload
from tests import flat_ops

SPEC = ModelSpec(name="synthetic:layers=2,hidden=32,heads=2,vocab=300", device="cpu")
UNIT, WHOLE = 1, 3


class OnUnits(Decoder):
    """Greedy decoding on one thread, with another token somewhere."""

    rows, units, threads = 1, 2, UNIT

    def __init__(self, wrong: int) -> None:
        self.wrong = wrong

    def decode(self, session: Session, request: Request) -> Decoded:
        decoded = autoregressive(session, request)
        ids = list(decoded.output_ids)
        ids[self.wrong] = (ids[self.wrong] + 1) % 300
        return dataclasses.replace(decoded, output_ids=tuple(ids))


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(SPEC, passes=EAGER)


@pytest.fixture(scope="module")
def item(loaded: Loaded) -> Item:
    config = RunConfig(model=SPEC, tasks=("gsm8k",), data="builtin", limit=1, max_new_tokens=6)
    return Workload.read(config).encode(loaded)[0]


@pytest.mark.parametrize("wrong", [0, 3])
def test_what_rounds_otherwise_on_other_threads_is_measured(
    loaded: Loaded, item: Item, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, list[int]] = {}
    for name in ("one_row_logits", "as_verified"):
        real = getattr(interleaved, name)

        def counted(*arguments: Any, real: Any = real, name: str = name) -> Any:
            threads.setdefault(name, []).append(torch.get_num_threads())
            return real(*arguments)

        monkeypatch.setattr(interleaved, name, counted)
    decoder = OnUnits(wrong)
    with confined((), WHOLE):
        setup = Setup(loaded, len(item.ids) + item.max_new_tokens)
        entry = PreparedMethod("odd", METHODS.get("ppd"), decoder)
        outcome = Interleaved(loaded, [entry], setup, Target()).run(item, turn=0)["odd"]
    assert outcome.verdict == "mismatch"
    assert outcome.judgement is not None
    assert outcome.judgement.position == wrong
    assert threads == {"one_row_logits": [WHOLE], "as_verified": [UNIT]}


def test_a_strict_reference_has_the_threads_of_the_units(
    loaded: Loaded, item: Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[bool, int]] = []
    real = Interleaved._greedy

    def greedy(self: Interleaved, item: Item, label: str, session: Session) -> Decoded:
        seen.append((session.fixed_rows is not None, torch.get_num_threads()))
        return real(self, item, label, session)

    monkeypatch.setattr(Interleaved, "_greedy", greedy)
    with confined((), WHOLE):
        setup = Setup(loaded, len(item.ids) + item.max_new_tokens)
        entry = PreparedMethod("odd", METHODS.get("ppd"), OnUnits(2))
        Interleaved(loaded, [entry], setup, Target(), strict=True).run(item, turn=0)
    assert [threads for fixed, threads in seen if fixed] == [UNIT]


def test_logits_of_a_strict_reference_are_not_taken_for_those_of_the_baseline(
    loaded: Loaded, item: Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed: dict[bool, set[str]] = {True: set(), False: set()}
    real = Interleaved._greedy

    def greedy(self: Interleaved, item: Item, label: str, session: Session) -> Decoded:
        fixed[session.fixed_rows is not None].add(label)
        return real(self, item, label, session)

    monkeypatch.setattr(Interleaved, "_greedy", greedy)
    setup = Setup(loaded, len(item.ids) + item.max_new_tokens)
    decoder = METHODS.get("prompt-lookup").build({}).prepare(setup)
    entry = PreparedMethod("prompt-lookup", METHODS.get("prompt-lookup"), decoder)
    # What its passes gave is kept by its label, beside the output of that label.
    Interleaved(loaded, [entry], setup, Target(), strict=True).hold(item)
    assert fixed[True]
    assert not fixed[True] & fixed[False]


class Drafting(Decoder):
    """Greedy decoding with another token somewhere, said to come from a tree."""

    rows = 7

    def decode(self, session: Session, request: Request) -> Decoded:
        decoded = autoregressive(session, request)
        first = (decoded.output_ids[0] + 1) % 300
        return dataclasses.replace(decoded, output_ids=(first, *decoded.output_ids[1:]), trees=True)


def test_strict_flat_passes_need_no_shape_and_excuse_nothing(
    item: Item, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat_ops.stand_in(monkeypatch)
    model = load(SPEC, passes=FLAT)
    excused, shapes = list[bool](), list[int | None]()
    real, greedy = interleaved.judge, Interleaved._greedy

    def judge(*arguments: Any, rounding: bool) -> Any:
        excused.append(rounding)
        return real(*arguments, rounding=rounding)

    def counted(self: Interleaved, item: Item, label: str, session: Session) -> Decoded:
        shapes.append(session.fixed_rows)
        return greedy(self, item, label, session)

    monkeypatch.setattr(interleaved, "judge", judge)
    monkeypatch.setattr(Interleaved, "_greedy", counted)
    setup = Setup(model, len(item.ids) + item.max_new_tokens)
    entry = PreparedMethod("odd", METHODS.get("prompt-lookup"), Drafting())
    for strict in (False, True):
        Interleaved(model, [entry], setup, Target(), strict=strict).run(item, turn=0)
    assert excused == [True, False]
    assert shapes == 2 * [None, None]  # the baseline and its twin, in no shape of their own


def test_each_example_and_each_method_draws_numbers_of_its_own(loaded: Loaded, item: Item) -> None:
    target = Target(kind="top-k", top_k=100, temperature=3.0)
    setup = Setup(loaded, len(item.ids) + item.max_new_tokens, seed=1)
    drawing = Interleaved(loaded, [], setup, target)
    other = dataclasses.replace(item, example=dataclasses.replace(item.example, id="another"))

    def drawn(item: Item, label: str = "greedy") -> tuple[int, ...]:
        return autoregressive(drawing.session, drawing.request(item, label)).output_ids

    assert drawn(item) == drawn(item)
    assert drawn(item) != drawn(other)
    assert drawn(item) != drawn(item, "ppd")
    assert drawn(item, "ppd:k=1") == drawn(item, "ppd:k=3"), "whatever else the run holds"
