"""Identity is token by token, a prefix is not identical, and a tie must be measured."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Request
from ppdbench.decoding.identity import (
    Evidence,
    Judgement,
    as_run,
    as_verified,
    as_watched,
    first_difference,
    judge,
    one_row_logits,
)
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine.logit_watch import LogitWatch
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.engine.truth import StockTruth
from tests.decoding.judging import judged, truth
from tests.decoding.matrix import CAPACITY, CLOCK, Case, Oracle, decode_case, reference
from tests.families import stock_model
from tests.helpers import staged, tokens

CASES: list[tuple[Sequence[int], Sequence[int], int | None]] = [
    ([], [], None),
    ([5], [5], None),
    ([5, 6, 2], [5, 6, 2], None),
    ([4, 6, 2], [5, 6, 2], 0),
    ([5, 7, 2], [5, 6, 2], 1),
    ([5, 6, 3], [5, 6, 2], 2),
    ([5, 7, 9], [5, 6, 8], 1),
    # One is a prefix of the other: the first missing token is the difference.
    ([5, 6], [5, 6, 2], 2),
    ([5, 6, 2], [5, 6], 2),
    ([], [5], 0),
    ([5], [], 0),
    # Other lengths, and a difference before the shorter ends.
    ([5, 7], [5, 6, 2], 1),
    # The same tokens in another order, and one run shifted by one.
    ([6, 5], [5, 6], 0),
    ([5, 5, 6], [5, 6, 6], 1),
]


@pytest.mark.parametrize(("ours", "greedy", "position"), CASES)
def test_the_first_difference_is_found(
    ours: Sequence[int], greedy: Sequence[int], position: int | None
) -> None:
    assert first_difference(ours, greedy) == position
    assert first_difference(greedy, ours) == position


PROMPT = tokens(9, 0)
CASE = Case("plain", PROMPT, Limits(12))


def with_ids(decoded: Decoded, *changes: tuple[int, int]) -> Decoded:
    """The same run with other tokens at some positions."""
    ids = list(decoded.output_ids)
    for position, token in changes:
        ids[position] = token
    return dataclasses.replace(decoded, output_ids=tuple(ids))


def found(ours: Decoded, greedy: Decoded, name: str = "llama") -> Judgement:
    return judged(staged(name), truth(name), PROMPT, ours, greedy)


def test_equal_outputs_are_identical_without_another_pass() -> None:
    model = staged("llama")
    ours, greedy = decode_case(Oracle(model, 3), CASE, model), reference(CASE, model)

    def never(*_: object) -> None:
        raise AssertionError("asked for")

    evidence = Evidence(one_row=never, as_run=never, truth=never)  # type: ignore[arg-type]
    assert judge(ours, greedy, PROMPT, evidence) == Judgement("identical")


def test_a_wrong_token_is_a_mismatch_with_its_position_and_margin() -> None:
    model = staged("llama")
    greedy = reference(CASE, model)
    ours = decode_case(Oracle(model, 3), CASE, model)
    for position in range(1, 12):
        wrong = with_ids(ours, (position, (greedy.output_ids[position] + 1) % 96))
        judgement = found(wrong, greedy)
        assert (judgement.verdict, judgement.position) == ("mismatch", position)
        assert judgement.margin is not None
        assert judgement.discrepancy is not None
        assert judgement.margin > 1e3 * judgement.discrepancy


def test_a_missing_token_or_a_wrong_first_one_is_a_mismatch_whatever_the_logits() -> None:
    greedy = reference(CASE, staged("llama"))
    for ids in (greedy.output_ids[:-1], (*greedy.output_ids, 7), (3, *greedy.output_ids[1:])):
        ours = dataclasses.replace(greedy, output_ids=ids)
        assert found(ours, greedy).verdict == "mismatch"


# Two tokens that are as good as equally likely


class Twins:
    """A model that prefers its fourth output token, a, to another one, b, by a gap alone."""

    def __init__(self, gap: float) -> None:
        stock = stock_model("llama")
        self.a = reference(CASE, staged("llama")).output_ids[3]
        self.b = (self.a + 1) % 96
        head = stock.get_output_embeddings().weight.data
        head[self.b] = head[self.a] * (1 - gap)
        stock.model.embed_tokens.weight.data[self.b] = stock.model.embed_tokens.weight.data[self.a]
        self.truth = StockTruth(copy.deepcopy(stock))
        self.model = StagedModel(stock)
        self.greedy = reference(CASE, self.model)
        ids = self.greedy.output_ids
        self.position = next(i for i, token in enumerate(ids) if i and token in (self.a, self.b))
        self.token = ids[self.position]
        self.other = self.b if self.token == self.a else self.a
        self.ours = with_ids(self.greedy, (self.position, self.other))

    def logits(self, **moved: float) -> Tensor:
        """Those of our pass of one row, with some of the two moved: `token` and `other`."""
        session = Session(self.model, CAPACITY)
        found = one_row_logits(session, PROMPT, self.greedy, self.position)
        assert found is not None
        found = found.clone()
        for name, by in moved.items():
            found[getattr(self, name)] += by
        return found

    def judge(
        self, one_row: Tensor | None, as_run: Tensor | None, rounding: bool = True
    ) -> Judgement:
        """The verdict on these logits of our passes."""
        evidence = Evidence(
            one_row=lambda _: one_row, as_run=lambda _: as_run, truth=lambda: self.truth
        )
        return judge(self.ours, self.greedy, PROMPT, evidence, rounding=rounding)


def test_what_rounding_explains_is_a_tie_and_all_that_it_rests_on_is_kept() -> None:
    twins = Twins(1e-7)
    judgement = twins.judge(twins.logits(), twins.logits(other=2e-6))
    assert (judgement.verdict, judgement.position) == ("tie", twins.position)
    assert judgement.discrepancy == pytest.approx(2e-6, rel=0.5)
    judged = judgement.judged
    assert judged["by"] == "stock float64"
    assert set(judged["margins"]) == {"stock", "one_row", "as_run"}
    assert all(abs(margin) <= judged["bound"] < 1e-3 for margin in judged["margins"].values())
    origin = judged["origin"]
    assert judged["bound"] == pytest.approx(
        origin["slack"] * origin["stock_noise"] + origin["written"]
    )
    assert "why" not in judged


def test_a_gap_that_the_stock_model_sees_is_a_mismatch_however_our_passes_choose() -> None:
    twins = Twins(1e-3)
    # Both of our passes claim that the two are equally likely.
    margin = float(twins.logits()[twins.token] - twins.logits()[twins.other])
    near = twins.logits(token=-margin)
    judgement = twins.judge(near, near)
    assert judgement.verdict == "mismatch"
    assert "prefers one of the two" in judgement.judged["why"]


@pytest.mark.parametrize("wrong", ["one_row", "as_run"])
def test_a_pass_of_ours_that_is_off_by_more_than_rounding_is_a_mismatch(wrong: str) -> None:
    twins = Twins(1e-7)
    sound = {"one_row": twins.logits(), "as_run": twins.logits(other=2e-6)}
    assert twins.judge(**sound).verdict == "tie"
    by = {"token": 0.1} if wrong == "one_row" else {"other": 0.1}
    judgement = twins.judge(**{**sound, wrong: twins.logits(**by)})
    assert judgement.verdict == "mismatch"
    assert "further from the stock model" in judgement.judged["why"]


def test_two_tokens_that_are_close_but_not_the_likeliest_are_no_tie() -> None:
    twins = Twins(1e-7)
    ids = twins.greedy.output_ids
    place = next(i for i, token in enumerate(ids) if i and token not in (twins.a, twins.b))
    ours, greedy = (
        with_ids(twins.greedy, (place, twins.a)),
        with_ids(twins.greedy, (place, twins.b)),
    )
    logits = one_row_logits(Session(twins.model, CAPACITY), PROMPT, twins.greedy, place)
    assert logits is not None
    evidence = Evidence(
        one_row=lambda _: logits, as_run=lambda _: logits, truth=lambda: twins.truth
    )
    judgement = judge(ours, greedy, PROMPT, evidence)
    assert judgement.verdict == "mismatch"
    assert "prefers another token to both" in judgement.judged["why"]


def test_passes_that_choose_otherwise_when_made_again_are_a_mismatch() -> None:
    twins = Twins(1e-7)
    judgement = twins.judge(twins.logits(), None)
    assert judgement.verdict == "mismatch"
    assert "chose otherwise" in judgement.judged["why"]
    assert twins.judge(None, twins.logits()).verdict == "mismatch"


def test_a_run_made_again_vouches_for_a_token_only_behind_the_same_tokens() -> None:
    """The same token behind another text was chosen by other passes."""
    ours = reference(CASE, staged("llama"))
    position, token = 3, ours.output_ids[3]
    chosen = torch.zeros(96)
    chosen[token] = 1

    def again(decoded: Decoded) -> Tensor | None:
        def run(watch: LogitWatch) -> Decoded:
            watch.note(position, chosen, 4)
            return decoded

        return as_watched(run, ours, position)

    for same in (ours, with_ids(ours, (position + 1, 7), (position + 2, 7))):
        found = again(same)
        assert found is not None
        assert torch.equal(found, chosen)
    for place in range(position + 1):
        assert again(with_ids(ours, (place, (ours.output_ids[place] + 1) % 96))) is None
    assert again(dataclasses.replace(ours, output_ids=ours.output_ids[:position])) is None


def test_where_every_pass_had_one_shape_nothing_is_a_tie() -> None:
    twins = Twins(0.0)
    assert twins.judge(twins.logits(), twins.logits()).verdict == "tie"
    assert twins.judge(twins.logits(), twins.logits(), rounding=False).verdict == "mismatch"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_runner_up_planted_anywhere_is_never_a_tie(dtype: torch.dtype) -> None:
    """Rounding flips a token only where the same passes, made again, choose it again."""
    model = StagedModel(stock_model("llama").to(dtype))
    oracle = Oracle(model, 3)
    ours, greedy = decode_case(oracle, CASE, model), reference(CASE, model)
    same = first_difference(ours.output_ids, greedy.output_ids) or len(ours.output_ids)
    assert same > 5
    ids = [*PROMPT, *greedy.output_ids]
    logits = truth("llama", dtype).measure(ids[:-1], len(PROMPT) - 1).logits
    for position in range(1, same):
        best = logits[position].topk(2).indices.tolist()
        second = best[1] if best[0] == greedy.output_ids[position] else best[0]
        planted = with_ids(ours, (position, second))
        judgement = judged(
            model, truth("llama", dtype), PROMPT, planted, greedy, oracle, CASE.limits
        )
        assert (judgement.verdict, judgement.position) == ("mismatch", position)


@pytest.mark.parametrize("wrong_from", [0, 1, 3])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_both_ways_repeat_the_passes_that_chose_the_token(
    name: str, wrong_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = staged(name)
    seen: dict[int, Tensor] = {}
    read, run_and_read = Session.read, Session.run_and_read

    def noted(self: Session, found: Reading) -> Reading:
        out = found.logits
        for row in range(out.shape[1]):
            # Row by row: the prefill decides output 0, a later row what follows its token.
            seen[max(0, self.cached - len(PROMPT) - out.shape[1] + 1 + row)] = out[0, row].clone()
        return found

    def both(self: Session, *given: Any, **named: Any) -> tuple[Tensor, Reading]:
        hidden, found = run_and_read(self, *given, **named)
        return hidden, noted(self, found)

    monkeypatch.setattr(Session, "read", lambda self, hidden: noted(self, read(self, hidden)))
    monkeypatch.setattr(Session, "run_and_read", both)
    oracle = Oracle(model, 3, wrong_from)
    oracle.known = [*PROMPT, *reference(CASE, model).output_ids]
    monkeypatch.setattr(oracle, "start", lambda *_: None)
    seen.clear()
    ours = decode_case(oracle, CASE, model)
    by_several = dict(seen)
    seen.clear()
    autoregressive(Session(model, CAPACITY), Request(list(PROMPT), CASE.limits, CLOCK))
    by_one = dict(seen)
    monkeypatch.setattr(Session, "read", read)
    monkeypatch.setattr(Session, "run_and_read", run_and_read)

    def run(session: Session) -> Decoded:
        return oracle.decode(session, Request(list(PROMPT), CASE.limits, CLOCK))

    for position in range(12):
        session = Session(model, CAPACITY, spare=oracle.rows)
        single = one_row_logits(session, PROMPT, ours, position)
        several = as_verified(session, PROMPT, ours, position)
        again = as_run(lambda session=session: run(session), session, ours, position)  # type: ignore[misc]
        assert single is not None
        assert again is not None
        assert torch.equal(single, by_one[position].float())
        assert torch.equal(several, by_several[position].float())
        assert torch.equal(again, by_several[position].float())
