"""A prompt that runs once gives the outputs of one that runs each time."""

from __future__ import annotations

import pytest

from ppdbench.decoding.decoder import Decoder, Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.shared_prompt import SharedPrompt
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
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
