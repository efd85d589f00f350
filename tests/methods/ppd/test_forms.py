"""Predictive Pipelined Decoding gives greedy's tokens in every form, whatever happens to units."""

from __future__ import annotations

import functools
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.halves import added_bytes
from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.flat.passes import FlatLayers
from ppdbench.engine.loading import Loaded, ModelSpec, load, take_over
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, NumericalError, UnitError
from ppdbench.methods.ppd import forms, ranks
from ppdbench.methods.ppd.decode import LocalUpperHalf
from ppdbench.methods.ppd.forms import Form
from ppdbench.methods.ppd.strategy import PredictivePipelined
from ppdbench.testing import CAPACITY, CLOCK, MODELS, Case, assert_exact, cases, decode_case, tokens
from tests import flat_ops
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB

ROOT = Path(__file__).resolve().parents[3]
LONG = "synthetic:layers=4,hidden=32,heads=4,vocab=300,context=512,agree=0.8"
FAR = "synthetic:layers=5,hidden=32,heads=4,vocab=300,context=64,agree=0"


@functools.cache
def loaded(name: str) -> Loaded:
    return load(ModelSpec(name=name, device="cpu"))


def begun(model: Loaded, **options: object) -> Form:
    form = PredictivePipelined(**options).prepare(Setup(model, CAPACITY))  # type: ignore[arg-type]
    form.begin()
    return form


def prepared(name: str, **options: object) -> Form:
    return begun(loaded(name), **options)


def check_everything(form: Form, name: str) -> list[bool]:
    """All cases, freely and in one fixed shape; which tokens were among their candidates."""
    matches: list[bool] = []
    for fixed in (None, form.rows):
        for case in cases(loaded(name).staged):
            found = assert_exact(form, case, loaded(name).staged, fixed_rows=fixed)
            assert found.pipelined is not None
            assert len(found.pipelined.matches) == len(found.output_ids)
            matches += found.pipelined.matches
    return matches


# One process


@pytest.mark.parametrize("name", [*MODELS, FAR])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_inline_gives_greedys_tokens_at_every_exit(name: str, k: int) -> None:
    n_layers = loaded(name).staged.n_layers
    for exit_after in range((n_layers + 1) // 2, n_layers):
        check_everything(prepared(name, k=k, exit_after=exit_after), name)


@pytest.mark.parametrize("family", FAMILIES)
def test_inline_gives_greedys_tokens_in_every_family(family: str) -> None:
    model = take_over(ModelSpec(name=family, device="cpu"), stock_model(family), None)
    n_layers = model.staged.n_layers
    for exit_after in {(n_layers + 1) // 2, n_layers - 1}:
        form = begun(model, k=3, exit_after=exit_after)
        for seed in range(2):
            case = Case(family, tokens(11, seed, VOCAB), Limits(20))
            assert_exact(form, case, model.staged)


def test_a_wrong_guess_costs_nothing_but_the_gain() -> None:
    """Where layers disagree most tokens are missed, and candidates leave no trace in the cache."""
    matches = check_everything(prepared(FAR, k=1), FAR)
    assert 0 < sum(matches) < 0.5 * len(matches)


def test_matches_are_the_ranks_that_probing_finds() -> None:
    model = loaded(FAR).staged
    case = next(cases(model))
    for k in (1, 2, 5):
        form = prepared(FAR, k=k, exit_after=3)
        found = decode_case(form, case, model)
        session = Session(model, CAPACITY)
        session.reset([*case.prompt, *found.output_ids[:-1]])
        step = session.chain(len(session.tokens))
        hidden = session.run(session.embed(session.ids(session.tokens), step), 0, 3, step)
        early = model.logits(hidden)[0, len(case.prompt) - 1 :]
        own = early.gather(1, torch.tensor(found.output_ids)[:, None])
        ranks = (early > own).sum(1)
        assert found.pipelined is not None
        assert found.pipelined.matches == tuple((ranks < k).tolist())


def test_more_candidates_are_never_fewer_matches() -> None:
    counts = [sum(check_everything(prepared(FAR, k=k), FAR)) for k in (1, 3, 40)]
    assert counts[0] < counts[1] < counts[2]


def test_reading_out_before_the_token_is_known_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether the early head runs for all candidates or, the token known, for the right one."""
    model = loaded(MODELS[1]).staged
    form = prepared(MODELS[1], k=3, exit_after=2)
    early = [decode_case(form, case, model) for case in cases(model)]
    monkeypatch.setattr(LocalUpperHalf, "answered", lambda _: True)
    late = [decode_case(form, case, model) for case in cases(model)]
    for a, b in zip(early, late, strict=True):
        assert a.pipelined is not None
        assert b.pipelined is not None
        assert (a.output_ids, a.pipelined.matches) == (b.output_ids, b.pipelined.matches)


def test_sampled_outputs_are_those_of_sampling_token_by_token() -> None:
    """Tokens are drawn from the last layer's logits, one draw each, as without candidates."""
    from ppdbench.decoding.loop import autoregressive

    model, target = loaded(MODELS[0]).staged, Target(kind="top-k", top_k=5)
    form = prepared(MODELS[0], k=2)
    case = next(cases(model))
    for seed in range(4):
        draws = [Chooser(target, torch.Generator().manual_seed(seed)) for _ in range(2)]
        session = Session(model, CAPACITY, spare=form.rows)
        ours = form.decode(session, Request(case.prompt, case.limits, CLOCK, draws[0]))
        theirs = autoregressive(session, Request(case.prompt, case.limits, CLOCK, draws[1]))
        assert ours.output_ids == theirs.output_ids


def test_what_a_probe_found_stays_among_the_facts_of_a_run_that_has_begun() -> None:
    form = prepared(FAR.replace("layers=5", "layers=14"))
    assert form.chosen["exit_after"] == form.facts["exit_after"] >= 7
    assert form.chosen["k"] == form.facts["k"] == form.rows
    found = form.facts["exit_probe"]["matches"][str(form.facts["exit_after"])]
    assert len(found) == 8
    form.close()


def test_a_nan_is_refused_and_the_next_output_is_right() -> None:
    model = load(ModelSpec(name=MODELS[0], device="cpu"))
    model.staged.flat = None  # programs keep weights of their own of norms
    form = begun(model, k=2)
    session = Session(model.staged, CAPACITY, spare=form.rows)
    case = next(cases(model.staged))
    norm = model.staged.adapter.final_norm
    assert norm is not None
    weight = norm.get_parameter("weight")
    kept = weight.clone()
    weight.fill_(float("nan"))
    with pytest.raises(NumericalError):
        form.decode(session, Request(case.prompt, case.limits, CLOCK))
    weight.copy_(kept)
    again = form.decode(session, Request(case.prompt, case.limits, CLOCK))
    assert again.output_ids == decode_case(form, case, model.staged).output_ids


# Bad options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": -1}, "k=-1; use 0 or more"),
        ({"k": 301}, "use 1..300"),
        ({"exit_after": 1}, "less than half"),
        ({"exit_after": 4}, "this model has 4 layers"),
        ({"exit_after": -1}, "use 0"),
        ({"form": "pipe"}, "use inline, split, replicated"),
        ({"patience": 0.0}, "above 0"),
        ({"head": "nowhere"}, "nowhere"),
    ],
)
def test_bad_options_say_what_is_allowed(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prepared(MODELS[0], **options)


# Several processes


@pytest.fixture(scope="module", params=["split", "replicated"])
def spread(request: pytest.FixtureRequest) -> Iterator[Form]:
    form = prepared(FAR, form=request.param, k=2, exit_after=3, patience=20.0)
    yield form
    form.close()


def test_units_give_greedys_tokens(spread: Form) -> None:
    matches = check_everything(spread, FAR)
    inline = check_everything(prepared(FAR, k=2, exit_after=3), FAR)
    assert sum(matches) == sum(inline)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 3])
def test_unit_b_goes_on_by_itself_at_an_exit_in_the_middle(k: int) -> None:
    form = prepared(MODELS[1], form="split", k=k, patience=20.0)
    try:
        matches = check_everything(form, MODELS[1])
    finally:
        form.close()
    assert 0.3 < sum(matches) / len(matches) <= 1


def test_a_unit_that_is_a_copy_runs_flat_where_its_starter_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flat_ops.stand_in(monkeypatch)
    here, ran = os.getpid(), multiprocessing.Array("b", 2)  # in this process, in the other
    real = FlatLayers.run

    def noted(layers: FlatLayers, *given: Any) -> torch.Tensor | None:
        ran[os.getpid() != here] = 1
        return real(layers, *given)

    monkeypatch.setattr(FlatLayers, "run", noted)
    model = load(ModelSpec(name=FAR, device="cpu"), passes=FLAT)
    form = begun(model, form="split", k=3, exit_after=3, patience=20.0)
    try:
        ran[:] = [0, 0]
        case = Case("flat", tokens(9, 0, 300), Limits(20))
        decode_case(form, case, model.staged)
        assert ran[:] == [1, 1]
        assert_exact(form, case, model.staged)
    finally:
        form.close()


@pytest.mark.slow
def test_a_run_of_all_forms_gives_greedys_tokens(tmp_path: Path) -> None:
    words = ["--offline", "--data", "builtin", "--task", "gsm8k", "--limit", "1", "--warmup", "0"]
    forms = [f"ppd:form={form},k=2" for form in ("split", "replicated", "inline")]
    methods = [word for form in forms for word in ("--method", form)]
    size = ["--model", LONG, "--threads", "1", "--max-new-tokens", "16"]
    assert run(["bench", *words, *methods, *size, "--out", str(tmp_path / "run")]) == 0
    lines = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["verdict"] for line in lines] == ["identical"] * 3


def test_sampling_on_units_draws_what_one_process_draws(spread: Form) -> None:
    inline = prepared(FAR, k=2, exit_after=3)
    case, target = next(cases(loaded(FAR).staged)), Target(kind="top-p", top_p=0.9)
    outputs = []
    for form in (spread, inline):
        chooser = Chooser(target, torch.Generator().manual_seed(7))
        session = Session(loaded(FAR).staged, CAPACITY, spare=form.rows)
        outputs.append(
            form.decode(session, Request(case.prompt, case.limits, CLOCK, chooser)).output_ids
        )
    assert outputs[0] == outputs[1]


def test_each_unit_holds_its_share_of_the_weights(spread: Form) -> None:
    whole = loaded(FAR).staged.weight_bytes()
    held = spread.facts["weight_bytes_per_unit"]
    if spread.facts["form"] == "replicated":
        assert held == [whole] * 3
    else:
        assert 0.999 * whole < sum(held) <= whole  # tables of positions are not counted
        assert max(held) < 0.8 * whole


@pytest.mark.skipif(sys.platform != "linux", reason="processes share weights on Linux")
def test_the_weights_of_two_units_are_in_memory_once() -> None:
    model = load(ModelSpec(name="synthetic:layers=12,hidden=512", device="cpu"))
    # A unit with its own half would add 0.5 of them. What is left is Python's own: the same for any
    # model, more in a process that has imported and run much.
    assert added_bytes(model, k=1) < 0.45 * model.staged.weight_bytes()


def test_events_of_a_unit_do_not_overlap(spread: Form) -> None:
    found = decode_case(spread, next(cases(loaded(FAR).staged)), loaded(FAR).staged)
    assert found.pipelined is not None
    by_unit: dict[str, list[tuple[float, float]]] = {}
    for unit, _, _, began, ended in found.pipelined.events:
        by_unit.setdefault(unit, []).append((began, ended))
    assert len(by_unit) == spread.units
    for spans in by_unit.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert found.pipelined.communication_ms > 0


def children() -> list[psutil.Process]:
    return [psutil.Process(p.pid) for p in multiprocessing.active_children()]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["split", "replicated"])
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSTOP])
def test_a_unit_that_dies_or_hangs_ends_the_output_within_its_patience(
    form: str, kind: signal.Signals
) -> None:
    before = set(children())
    ready = prepared(MODELS[0], form=form, k=1, patience=2.0)
    case = Case("long", tokens(9, 0, 300), Limits(50))
    model = loaded(MODELS[0]).staged
    decode_case(ready, case, model)
    (unit,) = set(children()) - before
    began = time.monotonic()
    words = "was killed by SIGKILL|does not answer" if kind == signal.SIGKILL else "answer"
    with pytest.raises(UnitError, match=words):
        unit.send_signal(kind)
        for _ in range(50):
            decode_case(ready, case, model)
    assert time.monotonic() - began < 12
    assert not unit.is_running() or unit.status() == psutil.STATUS_ZOMBIE
    # The next output starts a new unit.
    assert_exact(ready, case, model)
    ready.close()
    assert set(children()) <= before


def test_a_unit_that_is_killed_while_this_process_does_something_else_ends_that() -> None:
    before = set(children())
    answered = signal.getsignal(signal.SIGCHLD)  # other tests' units may be at work
    ready = prepared(MODELS[0], form="split", k=1)
    (unit,) = set(children()) - before
    began = time.monotonic()
    with pytest.raises(UnitError, match="unit B was killed by SIGKILL"):
        unit.kill()
        time.sleep(60)  # as a long baseline does
    assert time.monotonic() - began < 20
    # The next output starts a new unit, whose death at the end is no news.
    assert_exact(ready, Case("short", tokens(9, 0, 300), Limits(3)), loaded(MODELS[0]).staged)
    ready.close()
    assert signal.getsignal(signal.SIGCHLD) == answered
    assert set(children()) <= before


def test_children_that_are_no_units_may_die() -> None:
    ready = prepared(MODELS[0], form="split", k=1)
    subprocess.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
    ready.close()


def test_units_of_torchrun_end_the_run_instead_of_beginning_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise NumericalError("NaN in layer 2")

    form = prepared(MODELS[0], form="split", k=1)
    monkeypatch.setattr(forms, "decode_pipelined", broken)
    case = next(cases(loaded(MODELS[0]).staged))
    with pytest.raises(NumericalError):
        decode_case(form, case, loaded(MODELS[0]).staged)
    form.close()
    form = prepared(MODELS[0], form="split", k=1)
    monkeypatch.setattr(ranks, "world", lambda: 2)
    with pytest.raises(UnitError, match=r"NaN in layer 2; units that torchrun .* --resume"):
        decode_case(form, case, loaded(MODELS[0]).staged)
    monkeypatch.undo()
    form.close()


@pytest.mark.slow
def test_a_unit_whose_starter_is_gone_ends_itself() -> None:
    program = """if __name__ == "__main__":
        import os, signal
        from tests.methods.ppd.test_forms import MODELS, children, prepared
        prepared(MODELS[0], form="split", k=1)
        print(children()[0].pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    pid = int(done.stdout)
    until = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < until:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)
