"""Prompts and beginnings that run once give the outputs of those that run each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding import shared_prompt
from ppdbench.decoding.decoder import Decoder, Proposer, Request
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.shared_prompt import KnownTexts, SharedPrompt
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.taps import StateTap
from ppdbench.methods.autoregressive import Greedy
from ppdbench.methods.layerskip.strategy import LayerSkip, SelfSpeculation
from tests.decoding.matrix import CLOCK
from tests.families import stock_model

PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1], [3, 1, 4, 1, 5]]
TARGET = Target(kind="top-p", top_p=0.9)


def output(decoder: Decoder, session: Session, prompt: list[int], seed: int) -> tuple[int, ...]:
    chooser = Chooser(TARGET, generator_for(seed, "shared"))
    return decoder.decode(session, Request(list(prompt), Limits(8), CLOCK, chooser)).output_ids


@pytest.mark.parametrize("name", ["greedy", "layerskip"])
def test_outputs_are_those_of_a_session_that_runs_every_prompt(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = StagedModel(stock_model("llama", vocab_size=20, num_hidden_layers=3))
    decoder: Decoder = SelfSpeculation(LayerSkip(draft_length=3), 1)
    if name == "greedy":
        decoder = Greedy().prepare(None)  # type: ignore[arg-type]
    shared, plain = (kind(model, 32, spare=5) for kind in (SharedPrompt, Session))
    ran: list[int] = []
    whole = Session.run_prompt

    def counted(self: Session, **options: object) -> object:
        ran.append(len(self.tokens))
        return whole(self, **options)  # type: ignore[arg-type]

    wanted = [output(decoder, plain, prompt, seed) for prompt in PROMPTS for seed in range(4)]
    monkeypatch.setattr(Session, "run_prompt", counted)
    assert wanted == [
        output(decoder, shared, prompt, seed) for prompt in PROMPTS for seed in range(4)
    ]
    assert ran == [5, 3, 5]


def test_a_prompt_whose_rows_were_wiped_runs_again() -> None:
    model = StagedModel(stock_model("llama", vocab_size=20, num_hidden_layers=3))
    shared, plain = (kind(model, 32, spare=5) for kind in (SharedPrompt, Session))
    decoder = Greedy().prepare(None)  # type: ignore[arg-type]
    wanted = output(decoder, plain, PROMPTS[0], 1)
    assert output(decoder, shared, PROMPTS[0], 0) == output(decoder, plain, PROMPTS[0], 0)
    shared.wipe()
    shared._known = KnownTexts()
    assert output(decoder, shared, PROMPTS[0], 1) == wanted


# Beginnings


class Guessing(Proposer):
    """Drafts the same tokens each time, as a chain or a tree, and looks at states of layer 1."""

    taps = (1,)
    rows = 8

    def __init__(self, parents: tuple[int, ...] | None) -> None:
        self.parents = parents
        self.seen: list[Tensor] = []

    def start(self, session: Session, prefill: Any) -> None:
        """Know nothing."""

    def propose(self, session: Session, room: int) -> Draft:
        guesses = [(session.tokens[-1] + n) % 20 for n in (1, 2, 3, 5)]
        if self.parents is None:
            return Draft.chain(guesses[:room])
        return Draft.tree(guesses, list(self.parents))

    def learn(self, session: Session, verified: Any) -> None:
        self.seen += [verified.taps[1].clone(), verified.hidden.clone()]


def flat(layers: int = 3) -> StagedModel:
    stock = stock_model("llama", vocab_size=20, num_hidden_layers=layers)
    model = StagedModel(stock, passes=FLAT)
    assert model.flat is not None, model.path.why
    return model


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each pass that is run."""
    ran: list[int] = []

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: StagedModel, hidden: Tensor, *given: Any) -> Any:
            ran.append(hidden.shape[1])
            return real(self, hidden, *given)

        return run

    for name in ("pass_over", "pass_and_read"):
        monkeypatch.setattr(StagedModel, name, counted(getattr(StagedModel, name)))
    return ran


@pytest.mark.parametrize("parents", [None, (-1, -1, 1, 0), (-1, -1, -1, -1)])
def test_beginnings_that_ran_before_give_what_they_gave(
    parents: tuple[int, ...] | None, passes: list[int]
) -> None:
    model = flat()
    found: dict[type[Session], tuple[list[tuple[int, ...]], list[Tensor], int]] = {}
    for kind in (Session, SharedPrompt):
        session, drafting = kind(model, 32, spare=8), Guessing(parents)
        passes.clear()
        outputs = [output(drafting, session, p, seed) for p in PROMPTS for seed in range(20)]
        found[kind] = outputs, drafting.seen, sum(passes)
    plain, shared = found[Session], found[SharedPrompt]
    assert plain[0] == shared[0]
    assert len(plain[1]) == len(shared[1])
    assert all(map(torch.equal, plain[1], shared[1]))
    assert shared[2] < 0.7 * plain[2]


def test_sessions_share_what_they_know_and_methods_do(passes: list[int]) -> None:
    model, known = flat(), KnownTexts()
    greedy = Greedy().prepare(None)  # type: ignore[arg-type]
    drafting = Guessing(None)
    first, second, third = (SharedPrompt(model, 32, spare=8, known=known) for _ in range(3))
    expected = output(drafting, first, PROMPTS[0], 0)
    passes.clear()
    assert output(drafting, second, PROMPTS[0], 0) == expected
    assert passes == [len(PROMPTS[0])]  # each has rows of the prompt of its own
    output(greedy, third, PROMPTS[0], 0)
    rows = len(passes)
    output(greedy, first, PROMPTS[0], 0)
    assert len(passes) == rows


@torch.inference_mode()
def test_prompts_that_differ_in_their_first_token_alone_have_rows_of_their_own() -> None:
    model, known = flat(), KnownTexts()
    found: list[Tensor] = []
    for prompt in ([3, 1, 4, 1, 5], [2, 1, 4, 1, 5]):
        both = []
        for session in (Session(model, 32), SharedPrompt(model, 32, known=known)):
            session.reset(prompt)
            session.prefill()
            session.tokens.append(4)
            hidden, reading = session.run_and_read([4])
            both += [hidden.clone(), reading.logits.clone()]
        assert torch.equal(both[0], both[2])
        assert torch.equal(both[1], both[3])
        found.append(both[0])
    assert not torch.equal(*found)


def test_rows_of_another_model_are_not_handed_out(passes: list[int]) -> None:
    known = KnownTexts()
    greedy = Greedy().prepare(None)  # type: ignore[arg-type]
    for layers in (3, 2):
        model = flat(layers)
        expected = output(greedy, Session(model, 32), PROMPTS[0], 0)
        assert output(greedy, SharedPrompt(model, 32, known=known), PROMPTS[0], 0) == expected


def test_what_is_too_much_to_keep_runs_again(
    passes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = flat()
    greedy = Greedy().prepare(None)  # type: ignore[arg-type]
    session = SharedPrompt(model, 32)
    expected = output(greedy, session, PROMPTS[0], 0)
    monkeypatch.setattr(shared_prompt, "KEPT_BYTES", 1)
    small = SharedPrompt(model, 32)
    for _ in range(2):
        passes.clear()
        assert output(greedy, small, PROMPTS[0], 0) == expected
        assert passes[-7:] == [1] * 7


def test_states_that_nobody_kept_are_not_handed_out(passes: list[int]) -> None:
    session = SharedPrompt(flat(), 32)
    session.reset(PROMPTS[0])
    with torch.inference_mode():
        session.prefill()
        session.tokens.append(4)
        for layer in (1, 2, 1):
            seen: dict[int, Tensor] = {}
            session.run_and_read([4], tap=StateTap([layer], seen))
            assert seen.keys() == {layer}
            session.cache.truncate(len(PROMPTS[0]))
    # The second time another layer is looked at, the third time the newest row has only that.
    assert len(passes) == 4


def test_eager_rows_run_each_time(passes: list[int]) -> None:
    model = StagedModel(stock_model("llama", vocab_size=20, num_hidden_layers=3))
    greedy = Greedy().prepare(None)  # type: ignore[arg-type]
    session = SharedPrompt(model, 32)
    for _ in range(2):
        passes.clear()
        output(greedy, session, PROMPTS[0], 0)
        assert passes[-7:] == [1] * 7
