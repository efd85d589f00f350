"""Predictive Pipelined Decoding gives greedy's tokens in every form, whatever happens to units."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, NumericalError, UnitError
from ppdbench.methods.ppd import forms, ranks
from ppdbench.methods.ppd.forms import Form
from ppdbench.testing import CAPACITY, CLOCK, MODELS, Case, assert_exact, cases, decode_case, tokens
from tests.families import FAMILIES, stock_model
from tests.helpers import VOCAB
from tests.methods.ppd.made import FAR, LONG, begun, check_everything, loaded, prepared

ROOT = Path(__file__).resolve().parents[3]


# One process


@pytest.mark.parametrize("family", FAMILIES)
def test_inline_gives_greedys_tokens_in_every_family(family: str) -> None:
    model = take_over(ModelSpec(name=family, device="cpu"), stock_model(family), None)
    n_layers = model.staged.n_layers
    for exit_after in {(n_layers + 1) // 2, n_layers - 1}:
        form = begun(model, k=3, exit_after=exit_after)
        for seed in range(2):
            case = Case(family, tokens(11, seed, VOCAB), Limits(20))
            assert_exact(form, case, model.staged)


def test_what_a_probe_found_stays_among_the_facts_of_a_run_that_has_begun() -> None:
    form = prepared(FAR.replace("layers=5", "layers=14"))
    assert form.chosen["exit_after"] == form.facts["exit_after"] >= 7
    assert form.chosen["k"] == form.facts["k"] == form.rows
    found = form.facts["exit_probe"]["matches"][str(form.facts["exit_after"])]
    assert len(found) == 8
    form.close()


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
