"""The greedy loop: where outputs end, what the clock sees, and numbers gone wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Proposer, Request
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive, check_finite, speculative
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.engine.masks import FixedShape, StepMaker
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import NumericalError
from ppdbench.machine.clock import Clock
from tests.families import greedy_truth, stock_model
from tests.helpers import VOCAB, ScriptedClock, go, staged, tokens

CPU = torch.device("cpu")
PROMPT = tokens(9, seed=5)
N = 16


def decode(
    limits: Limits, prompt: list[int] | None = None, capacity: int = 64, model: str = "llama"
) -> Decoded:
    session = Session(staged(model), capacity)
    return autoregressive(
        session, Request(PROMPT if prompt is None else prompt, limits, Clock(CPU))
    )


@pytest.fixture(scope="module")
def free() -> tuple[int, ...]:
    """The output that nothing but its length ends."""
    output = decode(Limits(N)).output_ids
    assert len({*PROMPT, *output[:8]}) == 17, "choose a prompt whose output brings new tokens"
    return output


# Ends


def test_an_output_without_an_end_has_the_length_asked_for(free: tuple[int, ...]) -> None:
    stock = stock_model("llama")
    stock.generation_config.eos_token_id = None
    out = decode(Limits(N))
    assert out.finish == "length"
    assert list(out.output_ids) == greedy_truth(stock, PROMPT, N)
    assert len(out.output_ids) == N


def test_eos_ends_the_output_and_is_kept(free: tuple[int, ...]) -> None:
    out = decode(Limits(N, frozenset({free[5]})))
    assert out.output_ids == free[:6]
    assert out.finish == "eos"


def test_the_first_of_several_eos_ids_ends_the_output(free: tuple[int, ...]) -> None:
    for ids in ({free[6], free[3]}, {free[3], free[6]}, {free[3], VOCAB + 5}):
        out = decode(Limits(N, frozenset(ids)))
        assert out.output_ids == free[:4]
        assert out.finish == "eos"


def test_eos_as_the_very_first_token_is_an_output_of_one(free: tuple[int, ...]) -> None:
    out = decode(Limits(N, frozenset({free[0]})))
    assert out.output_ids == free[:1]
    assert (out.finish, out.accepted, out.step_ms) == ("eos", (), ())


def test_eos_on_the_last_token_allowed_counts_as_eos(free: tuple[int, ...]) -> None:
    assert decode(Limits(4, frozenset({free[3]}))).finish == "eos"


def test_a_single_new_token_takes_the_prefill_and_no_step(free: tuple[int, ...]) -> None:
    out = decode(Limits(1))
    assert out.output_ids == free[:1]
    assert (out.finish, out.proposed, out.accepted, out.step_ms) == ("length", (), (), ())


def test_counts_of_steps_fit_the_output(free: tuple[int, ...]) -> None:
    out = decode(Limits(N))
    assert out.accepted == out.proposed == (0,) * (N - 1)
    assert len(out.step_ms) == N - 1
    assert len(out.output_ids) == 1 + sum(out.accepted) + len(out.accepted)


def test_a_stop_string_across_token_borders_ends_the_output(free: tuple[int, ...]) -> None:
    words = tokenizer(300, 64)  # ids below 96 are ASCII characters
    text = words.decode(list(free))
    stop = text[3:6]
    assert len(stop) == 3
    assert text.find(stop) == 3
    out = decode(Limits(N, stop=(stop,), tokenizer=words))
    assert out.output_ids == free[:6]
    assert out.finish == "stop"


# Prompts


@pytest.mark.parametrize("model", ["llama", "mistral-window", "gemma2", "gpt2", "opt"])
def test_a_prompt_of_one_token_decodes(model: str) -> None:
    stock = stock_model(model)
    stock.generation_config.eos_token_id = None
    out = decode(Limits(N), prompt=[17], model=model)
    assert list(out.output_ids) == greedy_truth(stock, [17], N)


def test_a_prompt_may_fill_the_context_to_the_last_token() -> None:
    model = staged("llama")
    limit = model.adapter.max_positions
    prompt = tokens(limit, seed=2)
    with torch.inference_mode():
        expected = int(stock_model("llama")(torch.tensor([prompt])).logits[0, -1].argmax())
    assert decode(Limits(1), prompt, capacity=limit).output_ids == (expected,)
    # The last token is never run, so prompt and output may be one longer than the context.
    assert decode(Limits(2), prompt[1:], capacity=limit).finish == "length"


def test_a_session_serves_one_prompt_after_another() -> None:
    session = Session(staged("gemma3"), 64)
    prompts = [tokens(30, 1), tokens(1, 2), tokens(12, 3), tokens(30, 1)]
    for prompt in prompts:
        together = autoregressive(session, Request(prompt, Limits(N), Clock(CPU)))
        alone = decode(Limits(N), prompt, model="gemma3")
        assert together.output_ids == alone.output_ids
        assert session.tokens == [*prompt, *together.output_ids]


# Time


def test_the_clock_is_read_around_the_prefill_and_each_step_and_nowhere_else() -> None:
    clock = ScriptedClock([10.0, 10.5, 11.0, 11.25, 20.0, 20.125, 20.125, 22.125])
    out = autoregressive(Session(staged("llama"), 64), Request(PROMPT, Limits(4), clock))
    assert out.prefill_ms == 500.0
    assert out.step_ms == (250.0, 125.0, 2000.0)
    assert clock.left == []
    assert clock.synchronized >= 1


def test_the_work_lies_between_two_readings_of_the_clock() -> None:
    events: list[str] = []

    class WatchedClock(ScriptedClock):
        def synchronize(self) -> None:
            events.append("synchronize")

        def now(self) -> float:
            events.append("now")
            return super().now()

    class WatchedSession(Session):
        def forward(self, *arguments: Any, **options: Any) -> torch.Tensor:
            events.append("forward")
            return super().forward(*arguments, **options)

        def run_and_read(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, Reading]:
            events.append("forward")
            return super().run_and_read(*arguments, **options)

    session = WatchedSession(staged("llama"), 64)
    autoregressive(session, Request(PROMPT, Limits(3), WatchedClock(range(6))))
    assert events == ["synchronize", *["now", "forward", "now"] * 3]


class WorkClock(ScriptedClock):
    """Stands still but for the work that says how long it takes."""

    def __init__(self) -> None:
        super().__init__(())
        self.time = 0.0

    def now(self) -> float:
        return self.time


class TimedSession(Session):
    """A prompt takes 16 s and a pass 8 s."""

    clock: WorkClock

    def run_prompt(self, **options: Any) -> torch.Tensor:
        self.clock.time += 16
        return super().run_prompt(**options)

    def run_and_read(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, Reading]:
        self.clock.time += 8
        return super().run_and_read(*arguments, **options)


class TimedProposer(Proposer):
    """Starting, drafting nothing and learning take as many seconds as it is told."""

    def __init__(
        self, clock: WorkClock, *, start: float = 0, propose: float = 0, learn: float = 0
    ) -> None:
        self.clock, self.seconds = clock, {"start": start, "propose": propose, "learn": learn}

    def start(self, session: Session, prefill: Any) -> None:
        self.clock.time += self.seconds["start"]

    def propose(self, session: Session, room: int) -> Draft:
        self.clock.time += self.seconds["propose"]
        return Draft.empty()

    def learn(self, session: Session, verified: Any) -> None:
        self.clock.time += self.seconds["learn"]


def timed_speculation(**seconds: float) -> Decoded:
    """Four tokens: the last of three steps has no room for a draft."""
    session = TimedSession(staged("llama"), 64)
    session.clock = clock = WorkClock()
    out = speculative(session, TimedProposer(clock, **seconds), Request(PROMPT, Limits(4), clock))
    assert out.prefill_ms + sum(out.step_ms) == 1e3 * clock.time, "some work is not timed"
    return out


def test_what_a_method_starts_with_belongs_to_its_prefill_and_to_no_step() -> None:
    out = timed_speculation(start=1)
    assert out.prefill_ms == 17_000
    assert out.step_ms == (8_000, 8_000, 8_000)


def test_learning_belongs_to_the_step_and_drafting_is_told_apart_from_it() -> None:
    out = timed_speculation(propose=2, learn=4)
    assert out.prefill_ms == 16_000
    assert out.step_ms == (14_000, 14_000, 12_000)
    assert tuple(step.draft_ms for step in out.steps) == (2_000, 2_000, 0)


# Numbers gone wrong


def broken(token: int | None) -> StagedModel:
    """A model whose weights are NaN: one token's embedding, or the last layer."""
    stock = stock_model("llama")
    with torch.no_grad():
        if token is None:
            stock.model.layers[3].mlp.down_proj.weight[0, 0] = float("nan")
        else:
            stock.model.embed_tokens.weight[token] = float("nan")
    return StagedModel(stock)


def test_nan_weights_are_an_error_that_names_layer_and_position() -> None:
    session = Session(broken(None), 64)
    with pytest.raises(NumericalError, match="after layer 4 at output position 1;"):
        autoregressive(session, Request(PROMPT, Limits(3), Clock(CPU)))


@pytest.mark.parametrize("kind", ["top-k", "top-p", "min-p"])
def test_nan_is_the_same_error_where_tokens_are_drawn(kind: str) -> None:
    session, chooser = Session(broken(None), 64), Chooser(Target(kind=kind), generator_for(0))
    with pytest.raises(NumericalError, match="after layer 4 at output position 1;"):
        autoregressive(session, Request(PROMPT, Limits(3), Clock(CPU), chooser))


def test_nan_that_comes_up_late_is_placed_where_it_came_up(free: tuple[int, ...]) -> None:
    token = free[4]
    session = Session(broken(token), 64)
    assert autoregressive(session, Request(PROMPT, Limits(5), Clock(CPU))).output_ids == free[:5]
    with pytest.raises(NumericalError, match="after layer 4 at output position 6;"):
        autoregressive(session, Request(PROMPT, Limits(9), Clock(CPU)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_infinite_peaks_are_refused_like_nan(bad: float) -> None:
    for made in (list, torch.tensor):
        check_finite([made([1.0, -3e38]), made([3e38])], 4)
        with pytest.raises(NumericalError, match="after layer 7 at output position 2;"):
            check_finite([made([0.0, 1.0]), made([bad]), made([bad])], 7)


@torch.inference_mode()
def test_an_example_that_broke_spoils_none_after_it(free: tuple[int, ...]) -> None:
    """Fixed shapes read rows that are masked, and NaN survives being multiplied by zero."""
    token = free[1]
    model = broken(token)
    used, fresh = Session(model, 64), Session(model, 64)
    with pytest.raises(NumericalError):
        autoregressive(used, Request(PROMPT, Limits(9), Clock(CPU)))
    clean = [t for t in tokens(8, seed=3) if t != token]
    results = []
    for session in (used, fresh):
        session.reset(clean)
        session.prefill()
        step = StepMaker(64, CPU, shape=FixedShape(2, 64)).chain(len(clean), 2)
        results.append(go(model, [clean[0], clean[1]], step, session.cache))
    assert bool(torch.isfinite(results[1]).all())
    assert torch.equal(*results)
