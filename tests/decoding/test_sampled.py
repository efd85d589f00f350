"""Sampled verification: outputs follow the model's distribution, whatever was drafted."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding import loop, verify
from ppdbench.decoding.decoder import Proposer, Request
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Prefill, autoregressive
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.verify import Outcome, accept_sampled
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.decoding.matrix import CLOCK
from tests.families import stock_model

Rule = Callable[..., Outcome]  # of a draft, logits, a target, a generator and the text

VOCAB = 5
FITS, MISFITS = 3.5, 5.0  # in standard deviations: once in 4,000 times, once in 3 million


def misfit(counts: Mapping[Any, int], expected: Mapping[Any, float]) -> float:
    """How far counts lie from probabilities: chi-square as a normal deviate.

    By the cube root transformation of Wilson and Hilferty 1931. Cells with fewer than five
    expected are taken together; an impossible outcome is infinitely far off.
    """
    if any(expected.get(outcome, 0) <= 0 for outcome, n in counts.items() if n):
        return math.inf
    total = sum(counts.values())
    cells: list[tuple[float, float]] = []
    rest = [0.0, 0.0]
    for outcome, probability in expected.items():
        seen, due = counts.get(outcome, 0), total * probability
        if due >= 5:
            cells.append((seen, due))
        else:
            rest = [rest[0] + seen, rest[1] + due]
    if rest[1] >= 5:
        cells.append((rest[0], rest[1]))
    freedom = len(cells) - 1
    if freedom < 1:
        return 0.0
    statistic = sum((seen - due) ** 2 / due for seen, due in cells)
    spread = 2 / (9 * freedom)
    return float(((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def test_misfit_is_small_for_what_was_drawn_and_large_for_anything_else() -> None:
    generator = torch.Generator().manual_seed(0)
    even, uneven = torch.full((5,), 0.2), torch.tensor([0.3, 0.2, 0.2, 0.2, 0.1])
    drawn = Counter(torch.multinomial(even, 2000, True, generator=generator).tolist())
    assert misfit(drawn, dict(enumerate(even.tolist()))) < FITS
    assert misfit(drawn, dict(enumerate(uneven.tolist()))) > MISFITS
    assert misfit(drawn, {0: 0.5, 1: 0.5}) == math.inf


def test_misfit_counts_deviations_as_tables_of_chi_square_do() -> None:
    """18.47 is what four degrees exceed once in a thousand times, as 3.09 deviations are."""
    off = round(math.sqrt(18.47 * 100_000 / 2))
    counts = {0: 100_000 + off, 1: 100_000, 2: 100_000, 3: 100_000, 4: 100_000 - off}
    assert misfit(counts, dict.fromkeys(range(5), 0.2)) == pytest.approx(3.09, abs=0.04)


def test_misfit_takes_rare_outcomes_together() -> None:
    rare = dict.fromkeys(range(1, 101), 0.001)
    even = {0: 900, **dict.fromkeys(range(1, 101), 1)}
    crowded = {0: 900, 7: 100}
    assert misfit(even, {0: 0.9, **rare}) == misfit(crowded, {0: 0.9, **rare}) < 0
    assert misfit({0: 800, 7: 200}, {0: 0.9, **rare}) > MISFITS


# The rule by itself, over distributions written down here

ROWS = torch.tensor(
    [
        [0.15, 0.40, 0.05, 0.30, 0.10],
        [0.50, 0.02, 0.20, 0.08, 0.20],
        [0.20, 0.20, 0.20, 0.25, 0.15],
    ]
).log()
WRONG = torch.tensor([[0.30, 0.05, 0.40, 0.15, 0.10], [0.05, 0.60, 0.10, 0.20, 0.05]])
NARROW = torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.9, 0.1]])
TARGETS = {
    "softmax": Target(kind="top-p", top_p=1.0),
    "cold": Target(kind="top-k", top_k=5, temperature=0.5),
    "hot": Target(kind="top-k", top_k=5, temperature=2.0),
    "top-k": Target(kind="top-k", top_k=3),
    "top-p": Target(kind="top-p", top_p=0.8, temperature=1.3),
}
DRAFTS = {"wrong": WRONG, "narrow": NARROW, "certain": None}
ROUNDS = 3000


def outputs(
    rule: Rule, target: Target, source: Tensor | None, seed: str, rounds: int = ROUNDS
) -> list[tuple[int, ...]]:
    """What is committed in each of many rounds with a draft of two tokens."""
    generator = generator_for(0, seed)
    every = []
    for _ in range(rounds):
        tokens = [3, 0]
        if source is not None:
            tokens = torch.multinomial(source, 1, generator=generator)[:, 0].tolist()
        draft = Draft.chain(tokens, probabilities=source)
        outcome = rule(draft, ROWS, target, generator)
        every.append((*(draft.tokens[node] for node in outcome.path), outcome.token))
    return every


def misfits(every: list[tuple[int, ...]], target: Target) -> list[float]:
    """One per place, over the rounds that got so far."""
    wanted = target.distribution(ROWS).double().tolist()
    reached = [[line[place] for line in every if len(line) > place] for place in range(3)]
    return [
        misfit(Counter(seen), dict(enumerate(p))) for seen, p in zip(reached, wanted, strict=True)
    ]


@pytest.mark.parametrize("drafted", sorted(DRAFTS))
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_committed_tokens_follow_the_target_at_every_place(name: str, drafted: str) -> None:
    every = outputs(accept_sampled, TARGETS[name], DRAFTS[drafted], f"{name} {drafted}")
    assert len({len(line) for line in every}) > 1
    assert max(misfits(every, TARGETS[name])) < FITS


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_drafted_token_is_kept_as_often_as_the_distributions_overlap(name: str) -> None:
    wanted = TARGETS[name].distribution(ROWS[:1])[0]
    for drafted, source in DRAFTS.items():
        every = outputs(accept_sampled, TARGETS[name], source, f"kept {name} {drafted}", 2000)
        kept = Counter(len(line) > 1 for line in every)
        overlap = float(wanted[3] if source is None else torch.minimum(wanted, source[0]).sum())
        assert misfit(kept, {True: overlap, False: 1 - overlap}) < FITS, drafted


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_drafts_from_the_target_itself_are_always_kept(name: str) -> None:
    source = TARGETS[name].distribution(ROWS)[:2]
    every = outputs(accept_sampled, TARGETS[name], source, name, 500)
    assert {len(line) for line in every} == {3}


def test_an_impossible_draft_is_never_kept() -> None:
    target = Target(kind="top-k", top_k=2)  # 1 and 3
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        outcome = accept_sampled(Draft.chain([0, 1]), ROWS, target, generator)
        assert outcome.path == ()
        assert outcome.token in (1, 3)


# Rules that are wrong, each in one place


def without_residual(
    draft: Draft, logits: Tensor, target: Target, generator: torch.Generator, *_: object
) -> Outcome:
    """Draws the replacement from the whole distribution."""
    outcome = accept_sampled(draft, logits, target, generator)
    n = len(outcome.path)
    if n == len(draft):
        return outcome
    again = torch.multinomial(target.distribution(logits[n : n + 1])[0], 1, generator=generator)
    return Outcome(outcome.path, int(again))


def keeps_everything(
    draft: Draft, logits: Tensor, target: Target, generator: torch.Generator, *_: object
) -> Outcome:
    last = torch.multinomial(target.distribution(logits)[-1], 1, generator=generator)
    return Outcome(tuple(range(len(draft))), int(last))


def takes_draws_for_certain(
    draft: Draft, logits: Tensor, target: Target, generator: torch.Generator, *_: object
) -> Outcome:
    return accept_sampled(Draft.chain(draft.tokens), logits, target, generator)


def accepts_by_the_likeliest(
    draft: Draft, logits: Tensor, target: Target, generator: torch.Generator, *_: object
) -> Outcome:
    return verify.accept_greedy(draft, logits.argmax(-1).tolist())


SLIPS: list[Rule] = [without_residual, keeps_everything, accepts_by_the_likeliest]


@pytest.mark.parametrize("rule", SLIPS, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("drafted", sorted(DRAFTS))
def test_wrong_rules_are_found_out(rule: Rule, drafted: str) -> None:
    target = TARGETS["softmax"]
    assert max(misfits(outputs(rule, target, DRAFTS[drafted], "slip"), target)) > MISFITS


def test_draws_taken_for_certain_change_how_much_is_kept_but_not_the_first_token() -> None:
    """min(1, p) and the residual of a point: right for whatever token it is given."""
    target = TARGETS["softmax"]
    every = outputs(takes_draws_for_certain, target, WRONG, "certain")
    assert max(misfits(every, target)) < FITS


def test_leaving_out_draws_for_what_was_drawn_is_a_bias_that_shows() -> None:
    """Whether to draft on may depend on a distribution, not on the token drawn from it."""
    target, generator = TARGETS["softmax"], generator_for(0, "shy")
    every = []
    for _ in range(ROUNDS):
        token = int(torch.multinomial(WRONG[0], 1, generator=generator))
        shy = Draft.chain([token], probabilities=WRONG[:1])
        draft = shy if WRONG[0, token] > 0.2 else Draft.empty()
        outcome = accept_sampled(draft, ROWS, target, generator)
        every.append(token if outcome.path else outcome.token)
    first = target.distribution(ROWS[:1])[0].tolist()
    assert misfit(Counter(every), dict(enumerate(first))) > MISFITS


# The whole loop with a real, if tiny, model

PROMPT = [3, 1, 4]
NEW = 4  # room for two drafted tokens in the first step
OUTPUTS = 500
LOOP_TARGETS = {
    "softmax": Target(kind="top-p", top_p=1.0),
    "top-k": Target(kind="top-k", top_k=3, temperature=1.5),
    "top-p": Target(kind="top-p", top_p=0.85, temperature=0.8),
}


def five_tokens(family: str = "llama", seed: int = 1, width: int = VOCAB) -> StagedModel:
    """A model of one layer over five tokens."""
    return StagedModel(stock_model(family, seed, vocab_size=width, num_hidden_layers=1))


def joint(model: StagedModel, target: Target, n: int = 3) -> dict[tuple[int, ...], float]:
    """Exact probabilities of the first `n` tokens, one plain pass per prefix."""
    session = Session(model, 16)
    found = {(): 1.0}
    with torch.inference_mode():
        for _ in range(n):
            longer = {}
            for prefix, before in found.items():
                session.reset([*PROMPT, *prefix])
                row = target.distribution(session.prefill()[:, -1])[0].double().tolist()
                longer |= {(*prefix, t): before * p for t, p in enumerate(row) if p > 0}
            found = longer
    return found


def drawn_outputs(
    model: StagedModel, proposer: Proposer | None, target: Target, seed: str, rounds: int
) -> Counter[Hashable]:
    """The first three tokens of many outputs, plain or drafted."""
    session, chooser = Session(model, 16), Chooser(target, generator_for(1, seed))
    decode = autoregressive if proposer is None else proposer.decode
    counts: Counter[Hashable] = Counter()
    for _ in range(rounds):
        counts[decode(session, Request(PROMPT, Limits(NEW), CLOCK, chooser)).output_ids[:3]] += 1
    return counts


class Misled(Proposer):
    """Drafts two tokens by a rule of its own, which knows nothing of the model.

    Drawn, or the likeliest.
    """

    rows = 3

    def __init__(self, *, draws: bool = True) -> None:
        self.draws = draws
        logits = torch.randn(7, VOCAB, generator=torch.Generator().manual_seed(6))
        self.table = logits.softmax(-1)

    def start(self, session: Session, prefill: Prefill) -> None:
        self.generator = prefill.chooser.generator

    def propose(self, session: Session, room: int) -> Draft:
        tokens: list[int] = []
        rows = []
        for _ in range(2):
            row = self.table[(3 * sum(tokens) + sum(session.tokens)) % 7]
            token = int(row.argmax())
            if self.draws:
                token = int(torch.multinomial(row, 1, generator=self.generator))
            tokens.append(token)
            rows.append(row)
        drawn = torch.stack(rows) if self.draws else None
        return Draft.chain(tokens, probabilities=drawn)


def test_plain_sampling_follows_the_exact_joint_distribution() -> None:
    model, target = five_tokens(), LOOP_TARGETS["softmax"]
    truth = joint(model, target)
    assert len(truth) == VOCAB**3
    assert sum(truth.values()) == pytest.approx(1)
    assert misfit(drawn_outputs(model, None, target, "plain", OUTPUTS), truth) < FITS


@pytest.mark.parametrize(
    ("name", "draws"),
    [("softmax", True), ("softmax", False), ("top-k", True), ("top-p", False)],
)
def test_drafted_outputs_have_the_joint_distribution_of_plain_sampling(
    name: str, draws: bool
) -> None:
    model, target = five_tokens("gpt2" if name == "top-k" else "llama"), LOOP_TARGETS[name]
    counts = drawn_outputs(model, Misled(draws=draws), target, f"{name} {draws}", OUTPUTS)
    assert misfit(counts, joint(model, target)) < FITS


@pytest.mark.parametrize("rule", SLIPS, ids=lambda rule: rule.__name__)
def test_a_wrong_rule_in_the_loop_changes_the_joint_distribution(
    rule: Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, target = five_tokens(), LOOP_TARGETS["softmax"]
    monkeypatch.setattr(loop, "accept_sampled", rule)
    counts = drawn_outputs(model, Misled(), target, "slip", OUTPUTS)
    assert misfit(counts, joint(model, target)) > MISFITS


def test_one_seed_gives_one_output() -> None:
    model, target = five_tokens(), LOOP_TARGETS["top-p"]
    first, again = (drawn_outputs(model, Misled(), target, "seed", 20) for _ in range(2))
    assert first == again
    assert first != drawn_outputs(model, Misled(), target, "another", 20)


def test_the_exact_probabilities_of_prefixes_add_up() -> None:
    model, target = five_tokens(), LOOP_TARGETS["softmax"]
    pairs, triples = joint(model, target, 2), joint(model, target, 3)
    for pair in itertools.product(range(VOCAB), repeat=2):
        total = sum(triples[(*pair, t)] for t in range(VOCAB))
        assert total == pytest.approx(pairs[pair], rel=1e-6)
