"""Compiled passes give what eager ones give, whatever their rows, masks and cache.

What is handed to the compiler is run as plain Python here, but for one test that compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ppdbench.engine import artefacts
from ppdbench.engine.artefacts import Runner, Traced
from ppdbench.engine.families import compiled_families
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, eager
from ppdbench.errors import NumericalError
from ppdbench.machine.cores import confined
from tests.compiling import uncompiled, watched
from tests.families import stock_model
from tests.helpers import CAPACITY, assert_near, tokens

SHAPES = [
    *("llama", "llama-mha-tied", "llama3-rope", "mistral", "mistral-window"),
    *("qwen2", "qwen2-window", "qwen3", "phi3", "phi3-window"),
    *("olmo2", "gemma2", "gemma3", "gpt_neox", "gpt_neox-serial"),
]


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artefacts, "runner", uncompiled)


def made(name: str, *counts: int, dtype: torch.dtype = torch.float32) -> StagedModel:
    model = StagedModel(stock_model(name).to(dtype))
    model.compile(counts)
    return model


@torch.inference_mode()
def outputs(model: StagedModel, *, spare: int = 8) -> list[Tensor]:
    """Logits of a prefill, of single rows, of chains and of a tree, kept and gone on from."""
    session = Session(model, CAPACITY, spare=spare)
    session.reset(tokens(11))
    found = [session.prefill()]
    found += [session.advance(session.ids([token])) for token in tokens(3, 1)]
    for n in (2, 3, 4):
        hidden = session.forward(session.ids(tokens(n, n)))
        found.append(session.logits(hidden))
        session.cache.truncate(session.cached - 1)
    start = session.cached
    tree = session.tree((-1, 0, 0, 1))
    hidden = session.run(session.embed(session.ids(tokens(4, 7)), tree), 0, model.n_layers, tree)
    found.append(session.logits(hidden))
    session.cache.keep(start, [0, 2])
    found.append(session.advance(session.ids([5])))
    return found


@pytest.mark.parametrize("name", SHAPES)
def test_every_kind_of_pass_gives_what_it_gives_eagerly(name: str) -> None:
    model = made(name, 1, 3, 4)
    with eager(model):
        truth = outputs(model)
    for ours, expected in zip(outputs(model), truth, strict=True):
        assert_near(ours, expected)


@pytest.mark.parametrize("name", SHAPES)
def test_in_bfloat16_every_kind_of_pass_is_as_near_to_float32_as_eager_ones(name: str) -> None:
    assert_as_near(made(name, 1, 3, 4, dtype=torch.bfloat16), name)


def assert_as_near(model: StagedModel, name: str) -> None:
    """Compiled bfloat16 rounds less often than eager, so neither is the truth about the other."""
    weights = stock_model(name).to(torch.bfloat16).float()
    truth = outputs(StagedModel(weights, packed=False))
    with eager(model):
        eagerly = furthest(outputs(model), truth)
    assert furthest(outputs(model), truth) <= max(2 * eagerly, 2**-4)


def furthest(found: list[Tensor], truth: list[Tensor]) -> float:
    """The largest difference, of the largest value; NaN where there is one."""
    pairs = zip(found, truth, strict=True)
    off = torch.stack([(a.float() - b).abs().max() / b.abs().max() for a, b in pairs])
    return float(off.max())


def assert_first_of_equals(model: StagedModel) -> None:
    for hidden in torch.randn(200, 1, 1, model.hidden_size).to(model.dtype):
        found = model.read(hidden)
        (ties,) = (found.logits[0, 0] == found.logits.max()).nonzero(as_tuple=True)
        assert int(found.likeliest) == int(ties[0])


def test_of_equal_logits_in_bfloat16_the_first_is_the_likeliest() -> None:
    assert_first_of_equals(made("llama", 1, dtype=torch.bfloat16))


def test_passes_are_filled_up_to_the_next_count_and_wider_ones_run_eagerly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    widths: list[int] = []

    def widths_of(what: str) -> Callable[[list[Tensor]], object]:
        return lambda flat: widths.append(flat[0].shape[1]) if what.startswith("layer") else None

    monkeypatch.setattr(artefacts, "runner", watched(widths_of))
    model = made("llama", 1, 3)
    widths.clear()
    outputs(model)
    layers = model.n_layers
    # Three single rows, chains of 2 and 3 rows, and the row after the tree; 4 rows are too many.
    assert widths == [1] * 3 * layers + [3] * 2 * layers + [1] * layers


def test_a_pass_at_the_end_of_the_cache_leaves_no_row_behind_it_to_fill_up() -> None:
    model = made("llama", 1, 4)
    cache, steps = model.new_cache(8)
    filled = torch.randn(1, 6, model.hidden_size)
    model.run(filled, 0, model.n_layers, steps.chain(0, 6), cache)
    step, rotary = steps.chain(6, 2), {None: (torch.zeros(1, 2, 8), torch.zeros(1, 2, 8))}
    assert model.compiled.over(step, cache, rotary) is None
    assert model.compiled.over(steps.chain(7, 1), cache, rotary) is not None


def test_taps_see_the_rows_of_the_pass_alone() -> None:
    model, seen = made("llama", 4), []
    session = Session(model, CAPACITY, spare=4)
    session.reset(tokens(5))
    session.prefill()
    session.forward(session.ids([7, 8]), tap=lambda layer, hidden: seen.append(hidden.shape))
    assert seen == [(1, 2, model.hidden_size)] * model.n_layers


def test_layers_that_a_model_lacks_are_left_to_it() -> None:
    model = made("llama", 1)
    skipping = SkippedModel(model, {1}, {2})
    with eager(model):
        plainly = SkippedModel(model, {1}, {2})
    answers = []
    for one in (skipping, plainly):
        session = Session(model, CAPACITY)
        session.reset(tokens(6))
        session.prefill()
        answers.append(one.over(session).advance(session.ids([4])))
    assert_near(*answers)


def test_weights_are_plain_afterwards_and_a_tied_head_is_tied_again() -> None:
    packed = StagedModel(stock_model("llama-mha-tied"))
    plain = StagedModel(stock_model("llama-mha-tied"), packed=False)
    assert packed.weight_bytes() > plain.weight_bytes()
    packed.compile([1])
    assert packed.weight_bytes() == plain.weight_bytes()


def test_wider_passes_keep_packed_weights_beside_the_plain_ones() -> None:
    model = StagedModel(stock_model("llama-mha-tied"))
    before = outputs(model)
    packed, read = model.weight_bytes(), model.layer_bytes(0)
    model.compile([1], wider=True)
    assert model.layer_bytes(0) == read
    plain = StagedModel(stock_model("llama-mha-tied"), packed=False)
    assert model.weight_bytes() > packed > plain.weight_bytes()
    for ours, expected in zip(outputs(model), before, strict=True):
        assert_near(ours, expected)
    model.compile([1])
    assert model.weight_bytes() == plain.weight_bytes()


@pytest.mark.parametrize("name", ["gpt2", "opt"])
def test_other_families_say_that_they_run_eagerly(name: str) -> None:
    why = StagedModel(stock_model(name)).compiled.why_not()
    assert why is not None
    assert "llama" in why


def test_other_types_say_that_they_run_eagerly() -> None:
    model = StagedModel(stock_model("llama").to(torch.float16))
    assert model.compiled.why_not() == "not for float16, but for float32 and bfloat16"


def test_all_compiled_families_are_tested() -> None:
    assert {stock_model(name).config.model_type for name in SHAPES} == set(compiled_families())


def test_a_name_tells_shapes_apart_and_no_more_than_that() -> None:
    def names(model: StagedModel, n: int = 1) -> tuple[str, str]:
        return model.compiled._names(n)

    model = StagedModel(stock_model("llama"))
    before = names(model)
    assert names(StagedModel(stock_model("llama", num_hidden_layers=2))) == before
    assert names(StagedModel(stock_model("llama"), packed=False)) == before
    assert names(model, 2)[0] != before[0]
    half = StagedModel(stock_model("llama").to(torch.bfloat16))
    assert not {*names(half)} & {*before}
    assert names(StagedModel(stock_model("llama", rms_norm_eps=1e-3))) != before
    assert names(StagedModel(stock_model("llama", vocab_size=97)))[1] != before[1]


def test_a_pass_that_computes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(what: str, make: Callable[[], Traced]) -> Runner:
        run = uncompiled(what, make)
        return lambda flat: [1.01 * run(flat)[0], *run(flat)[1:]]

    monkeypatch.setattr(artefacts, "runner", wrong)
    with pytest.raises(NumericalError, match=r"compiled pass of 1 rows is off by .* --compile off"):
        made("llama", 1)


def test_a_pass_that_finds_another_likeliest_token_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(what: str, make: Callable[[], Traced]) -> Runner:
        run = uncompiled(what, make)

        def ran(flat: list[Tensor]) -> list[Tensor]:
            first, *rest = run(flat)
            return [first, *(rest and [rest[0] ^ 1, rest[1]])]

        return ran

    monkeypatch.setattr(artefacts, "runner", wrong)
    with pytest.raises(NumericalError, match=r"--compile off"):
        made("llama", 1)


def test_what_is_compiled_serves_the_number_of_threads_that_it_was_made_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []

    def by_threads_and_rows(what: str) -> Callable[[list[Tensor]], object]:
        name = f"{torch.get_num_threads()} threads, {what.split()[1]} rows"
        return lambda flat: used.append(name)

    monkeypatch.setattr(artefacts, "runner", watched(by_threads_and_rows))
    with confined((), 1):
        model = made("llama", 1)
    with confined((), 2):
        assert model.compiled.counts == ()
        model.compile((1, 3))
    for threads, wanted in ((1, "1 threads, 1 rows"), (2, "2 threads, 1 rows"), (3, None)):
        used.clear()
        with confined((), threads):
            session = Session(model, CAPACITY)
            session.reset(tokens(5))
            session.prefill()
            session.advance(session.ids([3]))
        assert set(used) == ({wanted} if wanted else set())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_compiled_is_kept_on_disk_and_gives_the_same_logits(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    if (why := artefacts.why_not()) is not None:
        pytest.skip(why)
    monkeypatch.setenv("PPDBENCH_CACHE", str(tmp_path))
    model = made("qwen2", 1, 3, dtype=dtype)
    assert model.compiled.missing([1, 3]) == []
    if dtype == torch.float32:
        with eager(model):
            truth = outputs(model)
        for ours, expected in zip(outputs(model), truth, strict=True):
            assert_near(ours, expected)
    else:
        assert_as_near(model, "qwen2")
    assert_first_of_equals(model)

    def refuse(*_: object) -> None:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(artefacts, "_compile", refuse)
    made("qwen2", 1, 3, dtype=dtype)
