"""Sampled verification of trees, by exact enumeration: no draw, no statistics, no luck."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from benchmarks.faithful import SLIPS, slipped
from ppdbench.decoding import verify
from ppdbench.decoding.draft import Draft, offspring
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.verify import Outcome, accept_greedy, accept_sampled
from tests.decoding.enumerated import Choices, distribution

VOCAB = 4
UNUSED = torch.Generator()

Tokens = tuple[int, ...]
Model = Callable[[Tokens], Tensor]  # logits [vocab] after some tokens


def model_of(seed: int) -> Model:
    """Logits after each text, some of them minus infinity."""
    table: dict[Tokens, Tensor] = {}

    def after(text: Tokens) -> Tensor:
        if text not in table:
            number = seed * 1000 + sum((t + 1) * 7**i for i, t in enumerate(text))
            logits = 2 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(number))
            table[text] = logits.masked_fill(torch.arange(VOCAB) == number % 5, float("-inf"))
        return table[text]

    return after


PLAIN = Target(kind="top-p", top_p=1.0)
TARGETS = {
    "softmax": PLAIN,
    "cold": Target(kind="top-p", top_p=1.0, temperature=0.4),
    "top-k": Target(kind="top-k", top_k=2),
    "top-p": Target(kind="top-p", top_p=0.7),
    "min-p": Target(kind="min-p", min_p=0.3),
    "penalty": Target(kind="top-k", top_k=3, repetition_penalty=1.7, logit_bias=((2, 1.5),)),
}
SHAPES = {
    "nothing": (),
    "chain": (-1, 0),
    "siblings": (-1, -1, -1),
    "all tokens": (-1,) * VOCAB,
    "two levels": (-1, -1, 0, 0),
    "uneven": (-1, 0, -1),
}


@dataclass
class Drafted:
    """How drafts are made: of which rows of q, drawn or not."""

    q: Model
    parents: Tokens
    drawn: bool

    def make(self, choices: Choices) -> Draft:
        tokens: list[int] = []
        texts: list[Tokens] = []
        sources = {}
        for node, parent in enumerate(self.parents):
            text = () if parent < 0 else texts[parent]
            q = self.q(text).double().softmax(-1)
            if parent not in sources:
                sources[parent] = q
            elder = [tokens[n] for n in range(node) if self.parents[n] == parent]
            left = q.index_fill(0, torch.tensor(elder, dtype=torch.long), 0)
            if self.drawn and float(left.sum()) > 0:
                token = choices.among((left / left.sum()).tolist())
            else:
                token = next(t for t in q.argsort(descending=True).tolist() if t not in elder)
            tokens.append(token)
            texts.append((*text, token))
        rows = torch.stack([sources[p] for p in sorted(sources)]) if sources else None
        return Draft.tree(tokens, self.parents, probabilities=rows if self.drawn else None)


def texts_of(draft: Draft) -> list[Tokens]:
    """The text after the newest token, then after each node."""
    texts: list[Tokens] = [()]
    for token, parent in zip(draft.tokens, draft.lineage, strict=True):
        texts.append((*texts[1 + parent], token))
    return texts


PROMPT = (1, 3)
DEPTH = 2


def outputs(
    patch: pytest.MonkeyPatch, model: Model, drafted: Drafted, target: Target, rule: object = None
) -> dict[Tokens, float]:
    """Exact probabilities of the next `DEPTH` tokens: a draft, then plain draws."""
    accept = accept_sampled if rule is None else rule
    found: dict[Tokens, float] = defaultdict(float)

    def run(choices: Choices) -> Tokens:
        draft = drafted.make(choices)
        draft.check(VOCAB)
        logits = torch.stack([model(text) for text in texts_of(draft)])
        outcome: Outcome = accept(draft, logits, target, UNUSED, PROMPT)  # type: ignore[operator]
        return (*(draft.tokens[node] for node in outcome.path), outcome.token)

    for committed, probability in distribution(patch, run).items():
        for text, after in wanted(model, target, committed).items():
            found[text] += probability * after
    return found


def wanted(model: Model, target: Target, start: Tokens = ()) -> dict[Tokens, float]:
    """What plain sampling gives from some tokens on."""
    found = {start[:DEPTH]: 1.0}
    while any(len(text) < DEPTH for text in found):
        longer: dict[Tokens, float] = {}
        for text, before in found.items():
            p = target.distribution(model(text)[None], [(*PROMPT, *text)])[0].double()
            p = p / p.sum()
            longer |= {(*text, t): before * float(p[t]) for t in range(VOCAB) if p[t] > 0}
        found = longer
    return found


def variation(a: dict[Tokens, float], b: dict[Tokens, float]) -> float:
    return sum(abs(a.get(t, 0) - b.get(t, 0)) for t in a.keys() | b.keys()) / 2


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "chosen"])
@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_every_output_has_exactly_the_probability_that_plain_sampling_gives_it(
    name: str, shape: str, drawn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, q = model_of(1), model_of(2)
    found = outputs(monkeypatch, p, Drafted(q, SHAPES[shape], drawn), TARGETS[name])
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert variation(found, wanted(p, TARGETS[name])) < 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_it_holds_for_whatever_the_drafts_are_drawn_from(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    shape = tuple(draw.randrange(-1, n) for n in range(3))
    p, q = model_of(10 + seed), model_of(20 + seed)
    found = outputs(monkeypatch, p, Drafted(q, shape, True), PLAIN)
    assert variation(found, wanted(p, PLAIN)) < 1e-12


def test_a_q_that_cannot_give_its_token_counts_as_a_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafters that take the likeliest token but hand in what they did not draw from."""
    p = model_of(3)
    impossible = torch.zeros(1, VOCAB)
    impossible[0, 3] = 1.0
    draft = Draft.tree([0, 3, 2], [-1, -1, -1], probabilities=impossible)
    logits = torch.stack([p(text) for text in texts_of(draft)])
    # 3 is certain by its q, so that exactly this draft is the only one: 0 and 2 are choices.
    found: dict[Tokens, float] = defaultdict(float)
    for outcome, probability in distribution(
        monkeypatch, lambda _: accept_sampled(draft, logits, PLAIN, UNUSED)
    ).items():
        token = draft.tokens[outcome.path[0]] if outcome.path else outcome.token
        found[(token,)] += probability
    first = PLAIN.distribution(p(())[None])[0].double()
    assert variation(found, {(t,): float(first[t] / first.sum()) for t in range(VOCAB)}) < 1e-12


def test_drafts_from_the_target_itself_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p = model_of(5)

    def kept(choices: Choices) -> int:
        draft = Drafted(p, (-1, 0), True).make(choices)
        logits = torch.stack([p(text) for text in texts_of(draft)])
        return len(accept_sampled(draft, logits, PLAIN, UNUSED).path)

    found = distribution(monkeypatch, kept)
    assert found[2] == pytest.approx(1, abs=1e-6)  # q is softmaxed in another precision


def test_every_token_among_the_siblings_leaves_nothing_to_draw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = model_of(6)
    draft = Draft.tree(range(VOCAB), (-1,) * VOCAB)
    logits = torch.stack([p(text) for text in texts_of(draft)])
    found = distribution(monkeypatch, lambda _: accept_sampled(draft, logits, PLAIN, UNUSED))
    assert all(outcome.path for outcome in found)


def test_riders_are_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    p = model_of(7)
    draft = Draft.tree([3, 1, 2], [-1, -1, 0], riders=2)
    logits = torch.stack([p(text) for text in texts_of(draft)])
    found = distribution(monkeypatch, lambda _: accept_sampled(draft, logits, PLAIN, UNUSED))
    assert {outcome.path for outcome in found} == {(), (0,)}


def test_greedy_is_the_same_rule_over_certain_distributions() -> None:
    draw = random.Random(4)
    generator = torch.Generator().manual_seed(0)
    kept = set()
    for _ in range(300):
        n = draw.randrange(5)
        parents = tuple(draw.randrange(-1, node) for node in range(n))
        family = {parent: draw.sample(range(VOCAB), VOCAB) for parent in set(parents)}
        tokens = [family[parent].pop() for parent in parents]
        logits = torch.randn(1 + n, VOCAB, generator=generator)
        draft = Draft.tree(tokens, parents)
        wanted = accept_greedy(draft, logits.argmax(-1).tolist())
        assert accept_sampled(draft, logits, Target(), generator) == wanted
        kept.add(len(wanted.path))
    assert kept >= {0, 1, 2}


# Slips of the kind that others have made, each found without a draw


@pytest.mark.parametrize("change", sorted(SLIPS))
def test_a_rule_with_one_line_changed_is_off_by_more_than_rounding(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = slipped(change)
    p, q = model_of(1), model_of(5)

    def rule(*given: object) -> object:
        for name in ("uniform", "drawn"):
            names[name] = getattr(verify, name)  # type: ignore[index]
        return names["accept_sampled"](*given)  # type: ignore[index]

    drafted = Drafted(q, (-1, -1, 0, 0), True)
    found = outputs(monkeypatch, p, drafted, PLAIN, rule)
    assert variation(found, wanted(p, PLAIN)) > 1e-3


# Siblings that are drawn


def test_drawn_siblings_come_in_the_order_of_draws_without_replacement() -> None:
    logits = torch.tensor([[0.5, 1.5, 0.0, -1.0], [2.0, 0.0, 0.0, -3.0]])
    chooser = Chooser(PLAIN, generator_for(1, "siblings"))
    rounds = 4000
    tokens, q = chooser.draw_siblings(logits.repeat(rounds, 1), 2)
    p = q[:2].double()
    for row in range(2):
        pairs = [tuple(pair) for pair in tokens[row::2].tolist()]
        for first, second in itertools.permutations(range(VOCAB), 2):
            due = float(p[row, first] * p[row, second] / (1 - p[row, first]))
            seen = pairs.count((first, second)) / rounds
            assert abs(seen - due) < 4 * (due * (1 - due) / rounds) ** 0.5 + 1e-9


def test_siblings_beyond_what_can_be_drawn_are_the_likeliest_others() -> None:
    logits = torch.tensor([[0.5, 1.5, 0.0, -1.0]])
    chooser = Chooser(Target(kind="top-k", top_k=2), generator_for(1, "few"))
    for _ in range(20):
        tokens, q = chooser.draw_siblings(logits, 4)
        assert set(tokens[0, :2].tolist()) == {0, 1}
        assert tokens[0, 2:].tolist() == [2, 3]
        assert q[0].nonzero()[:, 0].tolist() == [0, 1]


def test_a_cut_tree_keeps_what_its_families_are_drawn_from() -> None:
    rows = torch.eye(3, VOCAB)
    tree = Draft.tree([0, 1, 2, 3], [-1, -1, 0, 2], probabilities=rows)
    assert tree.families == (-1, 0, 2)
    assert offspring(tree.lineage)[0] == (0, 1)
    cut = tree.within(2)
    cut.check(VOCAB)
    assert cut.probabilities is not None
    assert cut.probabilities.tolist() == rows[:2].tolist()
