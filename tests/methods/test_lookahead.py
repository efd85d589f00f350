"""Lookahead decoding: what the window sees, what the pool keeps, and the same output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import Verified, autoregressive
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods.lookahead import (
    SIZES,
    GuessWindow,
    Lookahead,
    LookaheadProposer,
    NgramPool,
)
from ppdbench.testing import assert_order_is_nothing
from tests.decoding.matrix import (
    CAPACITY,
    CLOCK,
    Case,
    assert_exact,
    cases,
    decode_case,
    free,
    reference,
)
from tests.families import FAMILIES
from tests.helpers import staged, tokens

ODD: list[dict[str, Any]] = [
    {"window": 1, "ngram": 2, "guesses": 1},
    {"window": 1, "ngram": 9, "guesses": 3},
    {"window": 20, "ngram": 2, "guesses": 20},
    {"window": 5, "ngram": 30, "guesses": 2},
]


def setup(model: StagedModel) -> Setup:
    return Setup(Loaded(ModelSpec(name="tiny"), model, None, frozenset(), 0, ""), CAPACITY)


def wide(**options: Any) -> Lookahead:
    """The usual sizes where none are told, which a CPU would choose smaller."""
    return Lookahead(**{**SIZES.usual, **options})


def prepared(model: StagedModel, **options: Any) -> LookaheadProposer:
    return wide(**options).prepare(setup(model))


class Watched(LookaheadProposer):
    """Keeps every draft with the text it was made for and what came of it."""

    def __init__(self, options: Lookahead) -> None:
        super().__init__(options, 0)
        self.seen: list[tuple[list[int], int, Draft]] = []
        self.found: list[tuple[list[int], Verified]] = []

    def propose(self, session: Session, room: int) -> Draft:
        draft = super().propose(session, room)
        self.seen.append((list(session.tokens), room, draft))
        return draft

    def learn(self, session: Session, verified: Verified) -> None:
        if verified.draft.riders:
            self.found.append((self.seen[-1][0], verified))
        super().learn(session, verified)


# The output


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_output_is_greedy_decodings(name: str) -> None:
    model = staged(name)
    decoder = prepared(model)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("options", ODD)
def test_any_shape_of_the_window_is_exact(options: dict[str, Any]) -> None:
    model = staged("llama")
    decoder = prepared(model, **options)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_in_one_fixed_shape_the_output_is_the_same(name: str) -> None:
    model = staged(name)
    decoder = prepared(model, window=4)
    for case in cases(model):
        ours = decode_case(decoder, case, model, fixed_rows=decoder.rows)
        assert ours.output_ids == reference(case, model).output_ids


@pytest.mark.parametrize("name", ["qwen3", "opt"])
def test_a_text_that_repeats_itself_is_accepted(name: str) -> None:
    model = staged(name)
    case = Case("again and again", tokens(6, 0), Limits(40))
    assert len(set(reference(case, model).output_ids[-20:])) == 1
    for prompt_ngrams in (True, False):
        decoder = wide(prompt_ngrams=prompt_ngrams).prepare(setup(model))
        ours = assert_exact(decoder, case, model)
        assert ours.accepted.count(3) >= 3
        assert ours.trees


def test_ngrams_from_guesses_are_accepted_though_the_text_does_not_repeat() -> None:
    model = staged("llama")
    accepted = 0
    for seed in range(8):
        case = Case("plain", tokens(9, seed), Limits(40))
        decoder = wide(prompt_ngrams=False, window=16).prepare(setup(model))
        accepted += sum(assert_exact(decoder, case, model).accepted)
    assert accepted > 0


def test_the_order_of_examples_changes_nothing() -> None:
    model = staged("gpt2")
    decoder = prepared(model)
    accepted = assert_order_is_nothing(decoder, list(cases(model))[:5], model)
    assert any(map(sum, accepted))


def test_a_real_model_accepts_its_own_ngrams(stories: Path) -> None:
    loaded = load(ModelSpec(name=str(stories)))
    prompt = loaded.tokenizer.encode("Once upon a time, there was a little girl named Lily.")
    decoder = wide().prepare(Setup(loaded, 256))
    session = Session(loaded.staged, 256, spare=decoder.rows)
    ours = decoder.decode(session, Request(prompt, Limits(160), CLOCK))
    greedy = autoregressive(Session(loaded.staged, 256), Request(prompt, Limits(160), CLOCK))
    assert ours.output_ids == greedy.output_ids
    assert sum(ours.accepted) / len(ours.accepted) > 0.3


# The draft


@pytest.mark.parametrize("options", [{}, *ODD])
def test_a_draft_fits_the_room_and_the_rows(options: dict[str, Any]) -> None:
    model = staged("llama")
    largest = 0
    for case in cases(model):
        decoder = Watched(wide(**options))
        assert_exact(decoder, case, model)
        for _, room, draft in decoder.seen:
            assert draft.within(room) is draft
            assert 1 + len(draft) <= decoder.rows
            largest = max(largest, draft.riders)
    if options.get("ngram", 0) < 30:  # else the outputs end while the window still fills
        assert largest == GuessWindow.most_nodes(wide(**options))


def test_riders_predict_what_greedy_decoding_says_after_their_ancestors() -> None:
    model = staged("llama")
    decoder = Watched(wide(window=3, ngram=4))
    case = Case("plain", tokens(9, 0), Limits(12))
    decode_case(decoder, case, model)
    checked = 0
    for text, verified in decoder.found:
        draft = verified.draft
        assert draft.parents is not None
        for node in range(draft.proposed, len(draft)):
            line, at = [], node
            while at >= 0:
                line.append(draft.tokens[at])
                at = draft.parents[at]
            (truth,) = free(model, text + line[::-1], 1)
            assert verified.predictions[1 + node] == truth
            checked += 1
    assert checked > 40


def test_a_guess_sees_its_column_and_the_oldest_level_up_to_it() -> None:
    window = GuessWindow([], wide(window=3, ngram=4))
    window.levels = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    nodes, parents = window.nodes(5)
    lines: list[list[int]] = []
    for token, parent in zip(nodes, parents, strict=True):
        lines.append([*([] if parent < 0 else lines[parent - 5]), token])
    assert lines == [
        *([10], [10, 11], [10, 11, 12]),
        *([10, 20], [10, 11, 21], [10, 11, 12, 22]),
        *([10, 20, 30], [10, 11, 21, 31], [10, 11, 12, 22, 32]),
    ]


def test_a_draft_that_was_cut_is_learnt_from_only_as_far_as_it_went() -> None:
    class Greedy(LookaheadProposer):
        def propose(self, session: Session, room: int) -> Draft:
            return super().propose(session, room + 6)

    model = staged("llama")
    decoder = Greedy(wide(window=4), 0)
    for case in cases(model):
        assert_exact(decoder, case, model)


# The window


def test_the_window_fills_level_by_level_then_yields_one_ngram_per_column() -> None:
    window = GuessWindow([1, 2, 3, 4, 5], wide(window=3, ngram=4))
    assert list(window.shift([12, 13, 14, 15, 16], 0)) == []
    assert window.levels == [[2, 3, 4, 5], [13, 14, 15, 16]]
    assert list(window.shift([24, 25, 26, 27], 0)) == []
    assert window.levels == [[3, 4, 5], [14, 15, 16], [25, 26, 27]]
    ngrams = list(window.shift([36, 37, 38], 0))
    assert ngrams == [(3, 14, 25, 36), (4, 15, 26, 37), (5, 16, 27, 38)]
    assert window.levels == [[14, 15, 16], [25, 26, 27], [36, 37, 38]]


def test_accepted_tokens_move_the_window_on() -> None:
    window = GuessWindow([], wide(window=3, ngram=3))
    window.levels = [[1, 2, 3], [11, 12, 13]]
    list(window.shift([21, 22, 23], 2))
    assert window.levels == [[13, 11, 12], [23, 21, 22]]


def test_columns_beyond_the_end_of_the_output_are_dropped() -> None:
    window = GuessWindow([], wide(window=3, ngram=3))
    window.levels = [[1, 2, 3], [11, 12, 13]]
    window.fit(4)
    assert window.levels == [[1, 2, 3], [11, 12, 13]]
    window.fit(3)
    assert window.levels == [[1, 2], [11, 12]]
    window.fit(1)
    assert window.levels == [[], []]
    assert window.nodes(4) == ([], [])


# The pool


def test_the_pool_keeps_the_newest_ngrams_without_repeats() -> None:
    pool = NgramPool(2)
    for ngram in ([1, 5, 5], [1, 6, 6], [2, 9, 9], [1, 5, 5], [1, 7, 7]):
        pool.add(ngram)
    assert pool.after(1) == [(7, 7), (5, 5)]
    assert pool.after(2) == [(9, 9)]
    assert pool.after(3) == []


def test_the_pool_begins_with_the_prompts_ngrams_unless_told_otherwise() -> None:
    model = staged("llama")
    prompt = [5, 6, 7, 8, 9, 10]
    for told, expected in ((True, [(6, 7, 8)]), (False, [])):
        decoder = Watched(wide(prompt_ngrams=told))
        session = Session(model, CAPACITY, spare=decoder.rows)
        decoder.decode(session, Request(prompt, Limits(2), CLOCK))
        assert decoder._pool.after(5) == expected


def test_sizes_that_nobody_told_are_small_where_rows_cost_time() -> None:
    decoder = Lookahead(guesses=7).prepare(setup(staged("llama")))
    assert decoder.used == {"window": "3", "ngram": "3", "guesses": "7"}, "tables show them"
    assert decoder.chosen == {"window": 3, "ngram": 3}
    assert decoder.rows < prepared(staged("llama")).rows
    assert SIZES.on("cuda") == SIZES.usual


# Bad options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": -1}, "lookahead: window=-1; use 0 or more"),
        ({"ngram": 1}, "lookahead: ngram=1; use 2 or more"),
        ({"guesses": -1}, "lookahead: guesses=-1; use 0 or more"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Lookahead(**options)


def test_drawing_from_the_likeliest_token_alone_is_greedy_decoding() -> None:
    model = staged("llama")
    decoder = prepared(model)
    session = Session(model, CAPACITY, spare=decoder.rows)
    chooser = Chooser(Target(kind="top-p", top_p=1e-6), torch.Generator().manual_seed(3))
    drawn = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK, chooser))
    greedy = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK))
    assert drawn.output_ids == greedy.output_ids
