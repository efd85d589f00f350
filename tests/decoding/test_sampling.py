"""Sampling over five tokens, against probabilities computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from ppdbench.decoding import sampling
from ppdbench.decoding.sampling import Chooser, Target, drawn, generator_for, most_likely
from ppdbench.errors import ConfigError

PROBABILITIES = [0.15, 0.4, 0.05, 0.3, 0.1]
LOGITS = torch.tensor([[math.log(p) + 2.5 for p in PROBABILITIES]])
DRAWS = 4000

# By degrees of freedom, what chi-square exceeds once in a thousand times.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}

CASES = [
    (Target(kind="top-k", top_k=5), PROBABILITIES),
    (Target(kind="top-k", top_k=9), PROBABILITIES),
    (Target(kind="top-k", top_k=3), [0.15 / 0.85, 0.4 / 0.85, 0, 0.3 / 0.85, 0]),
    (Target(kind="top-k", top_k=1), [0, 1, 0, 0, 0]),
    (Target(kind="top-p", top_p=1.0), PROBABILITIES),
    (Target(kind="top-p", top_p=0.9), [0.15 / 0.95, 0.4 / 0.95, 0, 0.3 / 0.95, 0.1 / 0.95]),
    (Target(kind="top-p", top_p=0.8), [0.15 / 0.85, 0.4 / 0.85, 0, 0.3 / 0.85, 0]),
    (Target(kind="top-p", top_p=0.5), [0, 4 / 7, 0, 3 / 7, 0]),
    (Target(kind="top-p", top_p=0.3), [0, 1, 0, 0, 0]),
    (Target(kind="top-p", top_p=1e-9), [0, 1, 0, 0, 0]),
    # Squares: 0.0225, 0.16, 0.0025, 0.09, 0.01, together 0.285
    (
        Target(kind="top-k", top_k=5, temperature=0.5),
        [0.0225 / 0.285, 0.16 / 0.285, 0.0025 / 0.285, 0.09 / 0.285, 0.01 / 0.285],
    ),
    # The two likeliest have 0.25 of 0.285, more than 0.8 of it only after the temperature.
    (Target(kind="top-p", top_p=0.8, temperature=0.5), [0, 0.64, 0, 0.36, 0]),
]


@pytest.mark.parametrize(("target", "expected"), CASES, ids=lambda case: repr(case)[:60])
def test_the_distribution_is_the_one_computed_by_hand(
    target: Target, expected: list[float]
) -> None:
    ours = target.distribution(LOGITS)
    torch.testing.assert_close(ours, torch.tensor([expected]).float(), atol=1e-6, rtol=1e-5)
    assert [p == 0 for p in ours[0].tolist()] == [p == 0 for p in expected]


@pytest.mark.parametrize(("target", "expected"), CASES, ids=lambda case: repr(case)[:60])
def test_draws_follow_the_distribution(target: Target, expected: list[float]) -> None:
    generator = generator_for(3, "chi-square")
    drawn = target.choose(LOGITS.expand(DRAWS, 5), [generator] * DRAWS)
    assert drawn.shape == (DRAWS, 1)
    counts = torch.bincount(drawn[:, 0], minlength=5).tolist()
    possible = [i for i, p in enumerate(expected) if p > 0]
    assert sum(counts[i] for i in possible) == DRAWS
    if len(possible) > 1:
        statistic = sum(
            (counts[i] - DRAWS * expected[i]) ** 2 / (DRAWS * expected[i]) for i in possible
        )
        assert statistic < CHI_SQUARE[len(possible) - 1]


def test_top_p_of_one_is_plain_softmax_to_the_last_token() -> None:
    logits = torch.tensor([[30.0, 0.0, -5.0, 10.0, 2.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    ours = Target(kind="top-p", top_p=1.0).distribution(logits)
    assert bool((ours > 0).all())
    torch.testing.assert_close(ours, torch.softmax(logits, -1))


def test_the_first_token_always_stays_however_small_p_is() -> None:
    logits = torch.tensor([[0.0, 0.1, 0.0, 0.0, 0.0], [9.0, 0.0, 0.0, 0.0, 0.0]])
    ours = Target(kind="top-p", top_p=1e-6).distribution(logits)
    assert ours.tolist() == [[0, 1, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_greedy_takes_the_likeliest_and_draws_nothing() -> None:
    generator = generator_for(0, "a")
    before = generator.get_state()
    assert Target().greedy
    assert Target().choose(LOGITS.expand(3, 5), [generator] * 3).tolist() == [[1]] * 3
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("kind", ["top-k", "top-p"])
def test_half_precision_logits_give_probabilities_in_full_precision(kind: str) -> None:
    target = Target(kind=kind, top_k=5, top_p=1.0)
    ours = target.distribution(LOGITS.bfloat16())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, target.distribution(LOGITS), atol=0.01, rtol=0.02)


@pytest.mark.parametrize("target", [case[0] for case in CASES[:8]], ids=repr)
def test_rows_of_a_batch_do_not_mix(target: Target) -> None:
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    together = target.distribution(logits)
    for row in range(4):
        torch.testing.assert_close(together[row : row + 1], target.distribution(logits[row, None]))


# Generators


def sequence(generator: torch.Generator, n: int = 20) -> list[int]:
    target = Target(kind="top-k", top_k=5)
    return [int(target.choose(LOGITS, [generator])) for _ in range(n)]


def test_an_example_draws_the_same_tokens_each_time() -> None:
    assert sequence(generator_for(1, "squad", "7")) == sequence(generator_for(1, "squad", "7"))


def test_examples_seeds_and_tasks_draw_tokens_of_their_own() -> None:
    names = [(1, "squad", "7"), (2, "squad", "7"), (1, "squad", "8"), (1, "xsum", "7")]
    # Names are kept apart, not strung together.
    names += [(1, "squad7", ""), (1, "squa", "d7"), (11, "squad", "7")]
    assert len({tuple(sequence(generator_for(*name))) for name in names}) == len(names)


def test_the_order_of_examples_does_not_change_what_they_draw() -> None:
    target, ids = Target(kind="top-p", top_p=0.9), ["a", "b", "c"]

    def draw(order: list[str]) -> dict[str, list[int]]:
        generators = [generator_for(5, name) for name in order]
        steps = [target.choose(LOGITS.expand(len(order), 5), generators) for _ in range(12)]
        return {name: [int(step[i]) for step in steps] for i, name in enumerate(order)}

    together = draw(ids)
    assert draw(["c", "a", "b"]) == together
    for name in ids:
        assert draw([name]) == {name: together[name]}


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(4)
    expected: Tensor = torch.rand(1)
    torch.manual_seed(4)
    sequence(generator_for(0, "x"))
    assert torch.equal(torch.rand(1), expected)


def test_one_generator_is_needed_for_each_row() -> None:
    with pytest.raises(ValueError, match="zip"):
        Target(kind="top-k").choose(LOGITS.expand(2, 5), [generator_for(0)])


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "nucleus"}, "target 'nucleus' is not known; use greedy, top-k, top-p, min-p"),
        ({"kind": "top-k", "top_k": 0}, "top-k sampling from 0 tokens; use 1 or more"),
        ({"kind": "top-p", "top_p": 0.0}, r"p=0\.0; use a value above 0, up to 1"),
        ({"kind": "top-p", "top_p": 1.1}, r"p=1\.1; use a value above 0, up to 1"),
        ({"kind": "top-p", "top_p": math.nan}, "p=nan; use a value above 0, up to 1"),
        ({"kind": "min-p", "min_p": -0.1}, r"min-p sampling with p=-0\.1; use 0 to 1"),
        ({"repetition_penalty": -1.0}, r"repetition_penalty=-1\.0; use a value above 0"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty=0\.0; use a value above 0"),
        ({"logit_bias": ((-1, 2.0),)}, r"logit bias -1=2\.0; use a token id, 0 or more"),
        ({"logit_bias": ((1, math.inf),)}, "logit bias 1=inf; use a token id"),
        ({"logit_bias": ((1, 2.0), (1, 1.0))}, "a token has two logit biases"),
        ({"temperature": 0.0}, r"temperature=0\.0; use a value above 0"),
        ({"temperature": -1.0}, r"temperature=-1\.0; use a value above 0"),
        ({"temperature": math.nan}, "temperature=nan; use a value above 0"),
        ({"temperature": math.inf}, "temperature=inf; use a value above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Target(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_token_is_the_first_of_equals_and_a_nan_where_there_is_one(
    dtype: torch.dtype,
) -> None:
    nan = float("nan")
    rows = torch.tensor([[1, 5, 5, 0], [9, nan, 3, nan], [-1, -2, -1, -3]], dtype=dtype)
    assert most_likely(rows).tolist() == [1, 1, 0] == rows.argmax(-1).tolist()


# As generate() defines them

PROCESSED = [
    Target(kind="top-p", top_p=0.8, temperature=0.7),
    Target(kind="top-k", top_k=6, temperature=1.4),
    Target(kind="min-p", min_p=0.1, temperature=1.2),
    Target(kind="min-p", min_p=0.3, repetition_penalty=1.3),
    Target(kind="top-p", top_p=0.9, repetition_penalty=0.6, temperature=0.5),
    Target(kind="top-k", top_k=9, logit_bias=((3, 2.5), (7, -1.0)), repetition_penalty=1.8),
]


@pytest.mark.parametrize("target", PROCESSED, ids=str)
def test_probabilities_are_those_of_the_processors_of_transformers(target: Target) -> None:
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )
    cut = {"top_k": 0, "top_p": 1.0, target.kind.replace("-", "_"): None}
    cut = {name: getattr(target, name) if value is None else value for name, value in cut.items()}
    config = GenerationConfig(
        do_sample=True,
        temperature=target.temperature,
        repetition_penalty=target.repetition_penalty,
        sequence_bias=[[[token], bias] for token, bias in target.logit_bias] or None,
        pad_token_id=0,
        eos_token_id=39,
        **cut,
    )
    texts = [[1, 5, 5, 3], [9, 8, 2, 7]]
    theirs = model._get_logits_processor(config, input_ids_seq_length=4, device="cpu")
    for seed in range(20):
        logits = 3 * torch.randn(2, 40, generator=torch.Generator().manual_seed(seed))
        wanted = theirs(torch.tensor(texts), logits.clone()).softmax(-1)
        torch.testing.assert_close(target.distribution(logits, texts), wanted)


def test_a_penalty_is_not_worked_out_without_the_text() -> None:
    with pytest.raises(ValueError, match="needs the text"):
        Target(kind="top-k", repetition_penalty=1.2).distribution(LOGITS)


def test_drafts_are_drawn_without_penalty_and_bias() -> None:
    target = Target(kind="top-k", top_k=2, repetition_penalty=1.2, logit_bias=((70, 3.0),))
    assert target.for_drafts == Target(kind="top-k", top_k=2)


def test_a_bias_of_a_token_that_a_model_lacks_is_refused() -> None:
    target = Target(kind="top-k", logit_bias=((40, 1.5),))
    target.check(41)
    with pytest.raises(ConfigError, match=r"logit bias 40=1\.5: the model has tokens 0\.\.39"):
        target.check(40)


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999, 1.0])
def test_a_nucleus_is_what_sorting_the_whole_vocabulary_keeps(top_p: float) -> None:
    """Whatever was left unsorted: peaked and flat rows, and logits of which many are the same."""
    numbers = torch.Generator().manual_seed(3)
    rows = torch.randn(6, 5000, generator=numbers)
    rows = torch.cat([rows * 6, rows, (rows * 4).round()])
    found = Target(kind="top-p", top_p=top_p).distribution(rows)
    for row, kept in zip(torch.softmax(rows, -1), found, strict=True):
        order = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))
        sums = row[order].cumsum(-1)
        n = len(row) if top_p == 1 else int((sums - row[order] < top_p).sum())
        assert sorted(order[:n]) == kept.nonzero()[:, 0].tolist()
        assert torch.allclose(kept[order[:n]], row[order[:n]] / row[order[:n]].sum())


@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.999])
def test_a_nucleus_is_found_where_no_token_is_likely(top_p: float) -> None:
    n = 20_000
    logits = torch.arange(n) * (3.0 / n)
    likely = logits.double().softmax(-1)
    assert float(likely.max()) < 1e-3
    found = Target(kind="top-p", top_p=top_p).distribution(logits[None])[0]
    kept = found.nonzero()[:, 0].tolist()
    assert kept == list(range(n - len(kept), n))  # the likeliest come last
    assert float(likely[kept[1:]].sum()) < top_p + 1e-5
    assert float(likely[kept].sum()) > top_p - 1e-5


EVERY_KIND = [
    Target(),
    Target(kind="top-k", top_k=7),
    Target(kind="top-p", top_p=0.7, temperature=0.8),
    Target(kind="top-p", top_p=1.0),
    Target(kind="min-p", min_p=0.2),
    Target(kind="min-p", min_p=0.0, repetition_penalty=1.5, logit_bias=((5, 2.0),)),
]


@pytest.mark.parametrize("target", EVERY_KIND, ids=str)
def test_possible_tokens_are_those_of_the_distribution(target: Target) -> None:
    logits = 3 * torch.randn(4, 500, generator=torch.Generator().manual_seed(1))
    logits[:, 100:300] = logits[:, 300:]  # equals
    logits[0, 9] = float("-inf")
    texts = [[1, 5, row] for row in range(4)]
    for row, text, wanted in zip(logits, texts, target.distribution(logits, texts), strict=True):
        tokens, likely = target.possible(row, text)
        assert tokens.tolist() == sorted(tokens.tolist())
        found = torch.zeros(500, dtype=torch.float64).index_copy(0, tokens, likely)
        torch.testing.assert_close(found.float(), wanted)
        assert float(likely.sum()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("target", EVERY_KIND, ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_gone_wrong_end_in_a_token_for_whoever_refuses_them(
    target: Target, bad: float
) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(1))
    logits[0, 33] = bad
    chooser = Chooser(target, generator_for(0, "bad"))
    assert 0 <= int(chooser.choose(logits, [1])) < 50
    assert 0 <= int(chooser.draw(logits)[0]) < 50


# Draws


def test_a_draw_takes_one_number_however_many_tokens_there_are() -> None:
    """So that a token more or less, which rounding decides, leaves later draws as they are."""
    states = []
    for n in (1, 5, 4000):
        generator = generator_for(0, "one")
        drawn(torch.ones(n), generator)
        states.append(generator.get_state())
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_no_number_draws_what_is_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    likely = torch.tensor([0.0, 0.5, 0.0, 1.0, 0.0])
    for number, place in ((0.0, 1), (0.333, 1), (0.334, 3), (1 - 2**-53, 3)):
        monkeypatch.setattr(sampling, "uniform", lambda _, number=number: number)
        assert drawn(likely, generator_for(0, "x")) == place


def test_draws_come_as_often_as_they_are_likely() -> None:
    generator, likely = generator_for(4, "often"), torch.tensor([1.0, 0.0, 4.0, 3.0, 2.0])
    counts = torch.bincount(torch.tensor([drawn(likely, generator) for _ in range(DRAWS)]))
    due = DRAWS * likely / likely.sum()
    statistic = sum(
        (c - d) ** 2 / d for c, d in zip(counts.tolist(), due.tolist(), strict=True) if d
    )
    assert counts[1] == 0
    assert statistic < CHI_SQUARE[3]
