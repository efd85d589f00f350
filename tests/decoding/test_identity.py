"""Identity is token by token, a prefix is not identical, and a tie must be measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ppdbench.decoding import identity
from ppdbench.decoding.identity import Judgement, first_difference, judge
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Decoded
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from tests.decoding.matrix import CAPACITY, Case, Oracle, decode, reference
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


def judged(model: StagedModel, ours: Decoded, greedy: Decoded, rounding: bool = True) -> Judgement:
    return judge(ours, greedy, PROMPT, Session(model, CAPACITY), rounding=rounding)


def test_equal_outputs_are_identical_without_another_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = staged("llama")
    ours, greedy = decode(Oracle(model, 3), CASE, model), reference(CASE, model)
    monkeypatch.setattr(identity, "_one_by_one", None)
    monkeypatch.setattr(identity, "as_verified", None)
    assert judged(model, ours, greedy) == Judgement("identical")


def test_a_wrong_token_is_a_mismatch_with_its_position_and_margin() -> None:
    model = staged("llama")
    greedy = reference(CASE, model)
    ours = decode(Oracle(model, 3), CASE, model)
    for position in range(1, 12):
        wrong = with_ids(ours, (position, (greedy.output_ids[position] + 1) % 96))
        found = judged(model, wrong, greedy)
        assert (found.verdict, found.position) == ("mismatch", position)
        assert found.margin is not None
        assert found.discrepancy is not None
        assert found.margin > 1e3 * found.discrepancy


def test_a_missing_token_or_a_wrong_first_one_is_a_mismatch_whatever_the_logits() -> None:
    model = staged("llama")
    greedy = reference(CASE, model)
    for ids in (greedy.output_ids[:-1], (*greedy.output_ids, 7), (3, *greedy.output_ids[1:])):
        ours = dataclasses.replace(greedy, output_ids=ids)
        assert judged(model, ours, greedy).verdict == "mismatch"


def twins(gap: float) -> tuple[StagedModel, int, int]:
    """A model whose fourth output token, a, is preferred to another, b, by `gap` alone."""
    stock = stock_model("llama")
    a = reference(CASE, staged("llama")).output_ids[3]
    b = (a + 1) % 96
    head = stock.get_output_embeddings().weight.data
    head[b] = head[a] * (1 - gap)
    stock.model.embed_tokens.weight.data[b] = stock.model.embed_tokens.weight.data[a]
    return StagedModel(stock), a, b


def swapped(gap: float) -> tuple[StagedModel, Decoded, Decoded, int]:
    """Greedy's output, and one that takes the other twin where greedy took the first."""
    model, a, b = twins(gap)
    greedy = reference(CASE, model)
    position = next(i for i, t in enumerate(greedy.output_ids) if i and t in (a, b))
    other = b if greedy.output_ids[position] == a else a
    ours = with_ids(decode(Oracle(model, 3), CASE, model), (position, other))
    return model, ours, greedy, position


def test_a_choice_closer_than_rounding_is_a_tie_and_its_figures_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ours, greedy, position = swapped(1e-7)
    found = judged(model, ours, greedy)
    assert found.position == position
    assert found.margin is not None
    assert found.discrepancy is not None
    assert found.verdict == ("tie" if abs(found.margin) <= found.discrepancy else "mismatch")
    # What the two kinds of pass differ by decides, and nothing else.
    for moved, verdict in ((2.0 * found.margin, "tie"), (0.5 * found.margin, "mismatch")):

        def several(
            session: Session, prompt: list[int], ours: Decoded, at: int, moved: float = moved
        ) -> Tensor:
            logits = identity._one_by_one(session, prompt, ours.output_ids[:at]).clone()
            logits[0] += moved
            return logits

        monkeypatch.setattr(identity, "as_verified", several)
        assert judged(model, ours, greedy).verdict == (verdict if found.margin else "tie")


def test_a_first_token_that_a_prompt_in_parts_moved_is_judged_by_that() -> None:
    model = staged("llama")
    greedy = reference(CASE, model)
    parts = (4, len(PROMPT) - 4)
    first = (greedy.output_ids[0] + 1) % 96
    ours = dataclasses.replace(greedy, output_ids=(first, *greedy.output_ids[1:]), parts=parts)
    found = judged(model, ours, greedy)
    session = Session(model, CAPACITY)
    with torch.inference_mode():
        session.reset(PROMPT)
        whole = session.prefill()[0, 0]
        session.reset(PROMPT)
        session.forward(session.ids(PROMPT[:4]))
        moved = session.logits(session.forward(session.ids(PROMPT[4:])))[0, -1] - whole
    assert found.discrepancy == float(moved.max() - moved.min())
    assert found.margin == float(whole[greedy.output_ids[0]] - whole[first])
    assert found.verdict == "mismatch"


def test_where_every_pass_had_one_shape_nothing_is_a_tie() -> None:
    model, ours, greedy, _ = swapped(0.0)
    assert judged(model, ours, greedy).verdict == "tie"
    assert judged(model, ours, greedy, rounding=False).verdict == "mismatch"


def test_a_clear_preference_is_no_tie() -> None:
    model, ours, greedy, _ = swapped(1e-3)
    assert judged(model, ours, greedy).verdict == "mismatch"


@pytest.mark.parametrize("wrong_from", [0, 1, 3])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_both_ways_repeat_the_passes_that_chose_the_token(
    name: str, wrong_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = staged(name)
    seen: dict[int, Tensor] = {}
    real = Session.read

    def read(self: Session, hidden: Tensor) -> Reading:
        found = real(self, hidden)
        out = found.logits
        for row in range(out.shape[1]):
            # Row by row: the prefill decides output 0, a later row what follows its token.
            seen[max(0, self.cached - len(PROMPT) - out.shape[1] + 1 + row)] = out[0, row].clone()
        return found

    monkeypatch.setattr(Session, "read", read)
    oracle = Oracle(model, 3, wrong_from)
    oracle.known = [*PROMPT, *reference(CASE, model).output_ids]
    monkeypatch.setattr(oracle, "start", lambda *_: None)
    seen.clear()
    ours = decode(oracle, CASE, model)
    as_verified = dict(seen)
    seen.clear()
    reference(CASE, model)
    one_by_one = dict(seen)
    monkeypatch.setattr(Session, "read", real)
    for position in range(12):
        session = Session(model, CAPACITY)
        single = identity._one_by_one(session, PROMPT, ours.output_ids[:position])
        several = identity.as_verified(session, PROMPT, ours, position)
        assert torch.equal(single, one_by_one[position].float())
        assert torch.equal(several, as_verified[position].float())
