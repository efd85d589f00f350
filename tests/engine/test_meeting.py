"""Meetings: who waits for whom, which passes are one, and who gets what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ppdbench.engine.adapters import Adapter
from ppdbench.engine.cache import KVCache
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.joined import JoinedCache
from ppdbench.engine.masks import Step
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.reading import Reading
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel, at_meeting
from tests.families import stock_model
from tests.helpers import CAPACITY, assert_near, staged, tokens

Work = Callable[[Session], object]


class Watched:
    """A meeting of sequences of one model; `passes` are the layers and rows of each pass."""

    def __init__(self, patch: pytest.MonkeyPatch, prompt_rows: int | None = None) -> None:
        self.place = MeetingPlace(prompt_rows)
        self.model = at_meeting(staged("llama"), self.place)
        self.passes: list[tuple[int, int, int]] = []
        real, passes = StagedModel.pass_over, self.passes

        def pass_over(
            self: StagedModel, hidden: Tensor, start: int, stop: int, *given: Any
        ) -> Tensor:
            passes.append((start, stop, hidden.shape[1]))
            return real(self, hidden, start, stop, *given)

        patch.setattr(StagedModel, "pass_over", pass_over)

    def hold(self, works: Sequence[Work], *, rounds: bool = False) -> None:
        """Let each work on a session of its own until all have ended."""
        for work in works:
            session = Session(self.model, CAPACITY)
            self.place.invite(lambda work=work, session=session: work(session))  # type: ignore[misc]
        while not self.place.is_over:
            self.place.advance()
            if rounds:
                self.place.end_round()


def prompted(session: Session, n: int) -> Tensor:
    session.reset(tokens(n, n))
    return session.prefill()


def test_rows_that_cannot_run_flat_do_not_draw_others_away_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, eager = MeetingPlace(None), list[int]()
    model = at_meeting(StagedModel(stock_model("llama"), passes=FLAT), place)
    real = StagedModel._eagerly

    def eagerly(self: StagedModel, layer: int, hidden: Tensor, *given: Any) -> Tensor:
        eager.append(hidden.shape[1])
        return real(self, layer, hidden, *given)

    monkeypatch.setattr(StagedModel, "_eagerly", eagerly)

    def masked(session: Session) -> None:
        prompted(session, 6)
        seen = torch.ones(1, 1, 7, dtype=torch.bool)
        step = Step(6, 1, 7, torch.tensor([[6]]), contiguous=False, visible=seen)
        session.run(session.embed(session.ids([5]), step), 0, model.n_layers, step)

    def plain(session: Session) -> None:
        prompted(session, 6)
        session.advance(session.ids([5]))

    for work in (masked, plain, plain):
        session = Session(model, CAPACITY)
        place.invite(lambda work=work, session=session: work(session))  # type: ignore[misc]
    while not place.is_over:
        place.advance()
    assert eager == [1] * model.n_layers


def test_the_cheaper_passes_run_first_so_that_who_is_behind_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)

    def drafting(times: int) -> Work:
        def work(session: Session) -> None:
            prompted(session, 4 + times)
            for _ in range(times):  # a draft by the first layers, then all of them
                step = session.chain(1)
                session.run(session.embed(session.ids([5]), step), 0, 1, step)
            session.cache.truncate(4 + times)
            session.advance(session.ids([6]))

        return work

    watched.hold([drafting(1), drafting(3), drafting(2)])
    prompts = [(0, 4, 5), (0, 4, 7), (0, 4, 6)]
    assert watched.passes == [*prompts, (0, 1, 3), (0, 1, 2), (0, 1, 1), (0, 4, 3)]


def test_of_equally_many_layers_the_lower_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)

    def climbing(first: int) -> Work:
        def work(session: Session) -> None:
            prompted(session, 3 + first)
            step = session.chain(1)
            hidden = session.embed(session.ids([5]), step)
            for layer in range(first, 4):
                hidden = session.run(hidden, layer, layer + 1, step)

        return work

    watched.hold([climbing(0), climbing(2)])
    assert watched.passes[2:] == [(0, 1, 1), (1, 2, 1), (2, 3, 2), (3, 4, 2)]


@pytest.mark.parametrize("rows", [1, 3, 11, 40])
def test_a_prompt_in_pieces_gives_what_it_gives_whole(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: dict[int, Tensor] = {}
    session = Session(staged("llama"), CAPACITY)
    session.reset(tokens(11, 11))
    with torch.inference_mode():
        logits = session.prefill(tap=expected.__setitem__)
    watched, seen = Watched(monkeypatch, rows), dict[int, Tensor]()
    found: list[Tensor] = []

    def work(session: Session) -> None:
        session.reset(tokens(11, 11))
        found.append(session.prefill(tap=seen.__setitem__))

    watched.hold([work])
    assert_near(found[0], logits)
    assert seen.keys() == expected.keys()
    for layer, states in expected.items():
        assert_near(seen[layer], states)
    assert [n for _, _, n in watched.passes] == [min(rows, 11 - i) for i in range(0, 11, rows)]


def test_a_piece_runs_beside_the_steps_of_others_once_in_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, 4)

    def stepping(session: Session) -> None:
        prompted(session, 3)
        for _ in range(4):
            session.advance(session.ids([5]))

    watched.hold([stepping, lambda session: prompted(session, 14)], rounds=False)
    # Nobody says that a round is over: after the first piece only who is alone goes on.
    assert [n for _, _, n in watched.passes] == [3 + 4, 1, 1, 1, 1, 4, 4, 2]


def test_a_piece_that_nobody_joins_has_its_turn_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch, 4)

    def lower_half(session: Session) -> None:
        prompted(session, 3)
        for row in range(3, 9):
            step = session.chain(1, row)
            session.run(session.embed(session.ids([5]), step), 0, 2, step)

    watched.hold([lower_half, lambda session: prompted(session, 12)], rounds=True)
    at = [i for i, (_, stop, n) in enumerate(watched.passes) if stop == 4 and n == 4]
    assert len(at) == 2
    assert at[-1] < len(watched.passes) - 1


def test_whole_passes_run_with_layers_that_others_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = Session(staged("llama"), CAPACITY)
    prompted(truth, 5)
    with torch.inference_mode():
        states, reading = truth.run_and_read([5, 6])
    watched = Watched(monkeypatch)
    found: list[tuple[Tensor, Tensor]] = []

    def whole(session: Session) -> None:
        prompted(session, 5)
        hidden, read = session.run_and_read([5, 6])
        found.append((hidden, read.logits))

    def apart(session: Session) -> None:
        prompted(session, 5)
        hidden = session.forward(session.ids([5, 6]))
        found.append((hidden, session.read(hidden).logits))

    watched.hold([whole, apart, whole])
    assert watched.passes[3:] == [(0, 4, 6)]
    assert len(found) == 3
    for hidden, logits in found:
        assert_near(hidden, states)
        assert_near(logits, reading.logits)


@pytest.mark.parametrize(("by_row", "calls"), [(True, [2]), (False, [1, 1])])
def test_tokens_of_all_are_embedded_together_where_none_rounds_another(
    by_row: bool, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(monkeypatch)
    real, embedded = Adapter.embed, list[int]()

    def embed(self: Adapter, ids: Tensor, step: Step) -> Tensor:
        embedded.append(ids.shape[1])
        return real(self, ids, step)

    monkeypatch.setattr(Adapter, "embed", embed)
    monkeypatch.setattr(Adapter, "embeds_by_row", by_row)

    def work(session: Session) -> None:
        prompted(session, 5)
        session.run_and_read([5])

    watched.hold([work, work])
    assert embedded == [5, 5, *calls]


def test_a_member_that_asks_for_nothing_is_gone() -> None:
    place = MeetingPlace()
    came = list[int]()
    place.invite(lambda: came.append(1))
    place.advance()
    assert place.is_over
    assert came == [1]


def test_caches_stay_joined_while_the_same_sequences_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, made = Watched(monkeypatch), list[int]()
    real = JoinedCache.__init__

    def init(self: JoinedCache, parts: Sequence[KVCache]) -> None:
        made.append(len(parts))
        real(self, parts)

    monkeypatch.setattr(JoinedCache, "__init__", init)

    def stepping(times: int) -> Work:
        def work(session: Session) -> None:
            prompted(session, 5)
            for _ in range(times):
                session.run_and_read([5])

        return work

    watched.hold([stepping(2), stepping(6), stepping(4)])
    assert made == [3, 2]


def test_a_readout_that_fails_is_made_again_for_each_with_its_taps_called_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    real = StagedModel.read_out
    seen: list[list[int]] = [[], []]

    def read_out(self: StagedModel, hidden: Tensor) -> Reading:
        if hidden.shape[1] > 1:
            raise RuntimeError("too many rows")
        return real(self, hidden)

    monkeypatch.setattr(StagedModel, "read_out", read_out)

    def work(mine: list[int]) -> Work:
        def begun(session: Session) -> None:
            prompted(session, 5)
            session.run_and_read([5], tap=lambda layer, _: mine.append(layer))

        return begun

    watched.hold([work(mine) for mine in seen])
    assert seen == [[1, 2, 3, 4]] * 2


def test_what_somebody_asks_wrongly_is_an_error_for_them_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    errors: list[str] = []
    ended: list[Tensor] = []

    def wrong(session: Session) -> None:
        prompted(session, 5)
        step = session.chain(1, 9)  # leaves a gap
        try:
            session.forward(session.ids([5]), step)
        except ValueError as error:
            errors.append(str(error))

    def right(session: Session) -> None:
        prompted(session, 5)
        ended.append(session.advance(session.ids([5])))

    watched.hold([right, wrong, right])
    assert [error for error in errors if "would leave a gap" in error] == errors != []
    assert len(ended) == 2
    assert_near(ended[0], ended[1])
    assert not watched.place.unjoined


def test_other_threads_ask_as_if_there_were_no_meeting() -> None:
    place = MeetingPlace()
    session = Session(at_meeting(staged("llama"), place), CAPACITY)
    assert prompted(session, 5).shape == (1, 1, 96)
    assert place.is_over


def test_dismissed_members_end_where_they_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    left: list[str] = []

    def work(session: Session) -> None:
        try:
            prompted(session, 5)
            left.append("never")
        finally:
            left.append("left")

    watched.place.invite(lambda: work(Session(watched.model, CAPACITY)))
    watched.place.advance()
    watched.place.invite(lambda: left.append("began"))
    watched.place.dismiss()
    assert left == ["left"]
    assert watched.place.is_over
    assert not torch.is_inference_mode_enabled()


def test_a_step_of_another_kind_of_cache_is_asked_for_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(monkeypatch)
    steps: list[Step] = []

    def longer(session: Session) -> None:
        wide = Session(watched.model, CAPACITY + 8)
        prompted(wide, 5)
        steps.append(wide.chain(1))
        wide.advance(wide.ids([5]))

    def usual(session: Session) -> None:
        prompted(session, 5)
        session.advance(session.ids([5]))

    watched.hold([usual, longer, usual])
    assert sorted(n for _, _, n in watched.passes[3:]) == [1, 2]
