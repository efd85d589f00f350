"""Layers with a memory of their own: what they remember is what a pass from the start gives."""

from __future__ import annotations

import copy
from functools import partial, update_wrapper
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ppdbench.engine import memory
from ppdbench.engine.loading import ModelSpec, take_over
from ppdbench.engine.meeting import MeetingPlace
from ppdbench.engine.memory import LayerMemory, RememberingCache
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, at_meeting
from ppdbench.errors import UnsupportedModel
from tests.engine.tiny_models import staged, stock, whole_pass
from tests.families import greedy_truth
from tests.helpers import assert_near, tokens

pytestmark = pytest.mark.usefixtures("inferring")

# Short convolutions, gated delta nets, Mamba 2 beside attention, and Mamba 1, whose mixers forget.
BY_ROWS = "jamba"  # its mixers run row by row
FAMILIES = ("lfm2", "qwen3_5_text", "falcon_h1", BY_ROWS)
PROMPT = tokens(19)
CLOSE = 1e-4  # of the largest logit: another order of sums, over many rows
CAPACITY = 120


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def session(family: str) -> Session:
    session = Session(staged(family), CAPACITY)
    session.reset(PROMPT)
    session.prefill()
    return session


def forward(session: Session, rows: list[int], start: int | None = None) -> Tensor:
    """Logits of a pass over these tokens [1, row, vocab]."""
    step = session.chain(len(rows), start)
    return session.logits(session.forward(session.ids(rows), step))


def truth(family: str, text: list[int], n: int) -> Tensor:
    """The stock model's logits of the last `n` tokens of a text, in one pass from the start."""
    return whole_pass(stock(family), text, n)


def layers_of(model: Any, family: str) -> nn.ModuleList:
    found = staged(family).adapter.family
    layers: nn.ModuleList = model.get_submodule(f"{found.body}.{found.layers}")
    return layers


def test_a_mixer_that_forgets_reads_each_pass_as_the_first_of_a_text(family: str) -> None:
    model = staged(family)
    layer = next(i for i, path in enumerate(model.adapter.anatomy.memories) if path)
    mixer = model.adapter.layers[layer].get_submodule(str(model.adapter.anatomy.memories[layer]))
    rows, cache = torch.randn(1, 4, model.hidden_size), model.new_cache(8)[0]
    forgetful = memory.Forgetful(mixer)
    found = [forgetful(rows, cache_params=cache, past_key_values=cache) for _ in range(2)]
    assert torch.equal(*found)
    assert_near(found[0], type(mixer).forward(mixer, rows))
    assert cache.states(layer).nbytes == 0


def test_tokens_are_those_of_generate_and_states_those_of_the_stock_model(
    family: str, session: Session
) -> None:
    states: list[Tensor] = []
    seen: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(
            lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out)
        )
        for layer in layers_of(stock(family), family)
    ]
    truth(family, PROMPT, 1)
    for hook in hooks:
        hook.remove()
    session.reset(PROMPT)
    logits = session.prefill(tap=lambda _, hidden: seen.append(hidden))
    for mine, true in zip(seen, states, strict=True):
        assert_near(mine, true)
    ours = []
    for _ in range(64):
        ours.append(int(logits[0, -1].argmax()))
        logits = session.advance(session.ids(ours[-1:]))
    assert ours == greedy_truth(stock(family), PROMPT, 64)
    assert len(set(ours)) > 8


def test_rows_behind_what_was_kept_are_those_of_a_pass_over_what_was_kept(
    family: str, session: Session
) -> None:
    text = list(PROMPT)
    plan = [([31, 77, 40, 3], 2), ([8], 1), ([15, 60, 2, 9], 1), ([5, 6], 0), ([44, 71], 2)]
    for rows, kept in plan * 3:
        assert_near(forward(session, rows), truth(family, [*text, *rows], len(rows)), CLOSE)
        session.cache.keep(len(text), range(kept))
        text += rows[:kept]
    session.cache.truncate(len(PROMPT) - 5)  # into the prompt, further back than any state is kept
    assert_near(forward(session, [50, 51]), truth(family, [*PROMPT[:-5], 50, 51], 2))


def test_layers_that_draft_alone_are_behind_the_same_rows_as_the_others_afterwards(
    family: str, session: Session
) -> None:
    """The first layers run ahead, the others check what those gave, and a part of it is kept."""
    start, rows = session.cached, [31, 77, 40, 3]
    ahead = []
    for row, token in enumerate(rows):
        step = session.chain(1, start + row)
        ahead.append(session.run(session.embed(session.ids([token]), step), 0, 2, step))
    step = session.chain(4, start)
    checked = session.run(torch.cat(ahead, dim=1), 2, 4, step)
    assert_near(session.logits(checked), truth(family, [*PROMPT, *rows], 4))
    session.cache.keep(start, [0, 1])
    assert_near(forward(session, [9]), truth(family, [*PROMPT, 31, 77, 9], 1))


def test_a_prompt_that_is_taken_up_again_is_read_from_its_end(
    family: str, session: Session
) -> None:
    n = len(PROMPT)
    for follow in ([31, 77, 40], [8, 15]):
        assert_near(forward(session, follow), truth(family, [*PROMPT, *follow], len(follow)))
        for token in tokens(40):
            session.advance(session.ids([token]))
        session.cache.truncate(0)
        session.cache.hold(n, 0, 4)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text", "falcon_h1", "mamba"])
def test_in_one_fixed_shape_rows_are_the_very_numbers_that_single_rows_are(family: str) -> None:
    session = Session(staged(family), CAPACITY, fixed_rows=5)

    def prompt() -> None:
        session.reset(PROMPT)
        session.prefill()

    prompt()
    one_by_one = [forward(session, [token]) for token in (31, 77, 40, 3, 8, 15)]
    prompt()
    first = forward(session, [31, 77, 2, 2])
    session.cache.keep(len(PROMPT), [0, 1])
    second = forward(session, [40, 3, 8, 15])
    assert torch.equal(torch.cat([first[:, :2], second], dim=1), torch.cat(one_by_one, dim=1))


def test_sequences_that_meet_remember_each_its_own(family: str) -> None:
    place = MeetingPlace()
    model, found = at_meeting(staged(family), place), {}

    def work(seed: int) -> None:
        session, text = Session(model, CAPACITY), tokens(9 + seed, seed)
        session.reset(text)
        session.prefill()
        forward(session, [31, 77, 40])
        session.cache.keep(len(text), range(1 + seed))
        rows = [8, 15, 60][seed:]
        kept = [*text, *[31, 77, 40][: 1 + seed], *rows]
        found[seed] = forward(session, rows), kept

    for seed in (0, 1):
        place.invite(partial(work, seed))
    while not place.is_over:
        place.advance()
    assert not place.unjoined
    for mine, text in found.values():
        assert_near(mine, truth(family, text, mine.shape[1]), CLOSE)


def test_branches_are_refused_in_one_line(session: Session) -> None:
    step = session.tree([-1, -1, 0])
    with pytest.raises(
        UnsupportedModel, match=r"read one row after another.*drafts chains"
    ) as told:
        session.forward(session.ids([3, 4, 5]), step)
    assert "\n" not in str(told.value)


def test_a_skipped_mixer_adds_nothing_and_remembers_what_it_did(
    family: str, session: Session
) -> None:
    model = SkippedModel(session.model, {0}, {1})
    view, start = model.over(session), session.cached
    for row, token in enumerate((31, 77), start):
        view.forward(view.ids([token]), view.chain(1, row))
    session.cache.truncate(start)
    assert_near(forward(session, [31, 9]), truth(family, [*PROMPT, 31, 9], 2))
    emptied = copy.deepcopy(stock(family))
    first, second, *_ = layers_of(emptied, family)
    blocks = model.adapter.blocks
    for layer, names in ((first, (blocks.attention, *blocks.mixers)), (second, blocks.mlp)):
        for part in (getattr(layer, name) for name in names if hasattr(layer, name)):
            for parameter in part.parameters():
                parameter.zero_()
    alone = Session(model, CAPACITY)
    alone.reset(PROMPT)
    assert_near(alone.prefill(), whole_pass(emptied, PROMPT, 1))


def not_taken_back(_: Any, self: LayerMemory, length: int) -> None:
    """A state that is not taken back."""
    self.length = length


def one_row_less(right: Any, self: LayerMemory, length: int) -> Tensor | None:
    """Rows to read again, without the last of them."""
    again = right(self, length)
    return None if again is None else again[:, :-1]


def old_tail(
    right: Any, self: RememberingCache, conv_states: Tensor, layer_idx: int, **how: Any
) -> Tensor:
    """The end of what a convolution saw, one row too early."""
    seen: Tensor = right(self, conv_states, layer_idx, **how)
    tails = self._memories[layer_idx].now.tails
    tails[0] = nn.functional.pad(seen, (1, 0))[..., -tails[0].shape[-1] - 1 : -1].clone()
    return seen


def first_states(right: Any, self: LayerMemory) -> None:
    """States that are kept behind a row, of an earlier one."""
    right(self)
    self._marks[-1] = self._marks[-1][0], self._marks[0][1]


BUGS = [
    (LayerMemory, "back_to", not_taken_back),
    (LayerMemory, "back_to", one_row_less),
    (LayerMemory, "mark_row", first_states),
    (RememberingCache, "update_conv_state", old_tail),
]
# Rows are read again, or states are kept behind each.
ELSEWHERE = {first_states: [BY_ROWS], one_row_less: [f for f in FAMILIES if f != BY_ROWS]}
PLANTED = [(name, *bug) for bug in BUGS for name in ELSEWHERE.get(bug[2], FAMILIES)]


@pytest.mark.parametrize(
    ("family", "owner", "name", "bug"), PLANTED, ids=[f"{f}-{b.__name__}" for f, *_, b in PLANTED]
)
def test_a_wrong_memory_is_found_when_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, family: str, owner: type, name: str, bug: Any
) -> None:
    check(family)
    right = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **named: bug(right, *given, **named))
    with pytest.raises(UnsupportedModel, match="behind rows that were taken back"):
        check(family)


def check(family: str) -> None:
    take_over(ModelSpec(name=family, device="cpu"), copy.deepcopy(stock(family)), None)


def test_a_mixer_that_forgets_its_state_in_passes_of_several_rows_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixers = {name: staged(name).adapter.anatomy.memories for name in ("jamba", "lfm2", "mamba2")}
    kinds = {
        name: type(staged(name).adapter.layers[0].get_submodule(str(paths[0])))
        for name, paths in mixers.items()
    }
    assert [name for name, kind in kinds.items() if memory.forgets(kind.forward)] == ["jamba"]
    monkeypatch.setattr(memory, "forgets", lambda forward: False)
    with pytest.raises(UnsupportedModel, match="behind rows that were taken back, after layer 1"):
        check("jamba")


def test_states_are_kept_behind_the_prompt_and_behind_the_latest_rows() -> None:
    layer = LayerMemory(64)
    for start, n in [(0, 5), (5, 1), (6, 1), (7, 4), (11, 4), (15, 4)]:
        assert layer.back_to(start) is None
        layer.note(start, torch.full((1, n, 2), float(start)))
        layer.mark(n)
        layer.now.recurrent[0] = torch.tensor(float(start + n))
        layer.length = start + n
    again = layer.back_to(13)
    assert again is not None and again[0, :, 0].tolist() == [11.0, 11.0]
    assert float(layer.now.recurrent[0]) == 11
    again = layer.back_to(9)
    assert again is not None and again[0, :, 0].tolist() == [5.0, 6.0, 7.0, 7.0]
    assert float(layer.now.recurrent[0]) == 5
    again = layer.back_to(3)
    assert again is not None and again.shape[1] == 3 and not layer.now.recurrent


def test_states_are_kept_behind_each_of_the_latest_rows() -> None:
    layer = LayerMemory(64)
    for row in range(40):
        assert layer.back_to(row) is None
        layer.note(row, torch.full((1, 1, 2), float(row)))
        layer.mark_row()
        layer.now.recurrent[0] = torch.tensor(float(row + 1))
        layer.length = row + 1
    for length in (39, 33, 24):
        assert layer.back_to(length) is None
        assert float(layer.now.recurrent[0]) == length
    again = layer.back_to(20)
    assert again is not None and again[0, :, 0].tolist() == [float(row) for row in range(1, 20)]


def test_what_a_mixer_that_runs_row_by_row_has_read_it_never_reads_again() -> None:
    model = staged(BY_ROWS)
    session = Session(model, CAPACITY)
    session.reset(PROMPT)
    session.prefill()
    assert isinstance(session.cache, RememberingCache)
    layer = min(model.cache_shape.remembering)
    path = model.adapter.anatomy.memories[layer]
    mixer = model.adapter.layers[layer].get_submodule(str(path))
    counted: list[int] = []
    right = type(mixer).forward

    def counting(self: nn.Module, hidden_states: Tensor, *given: Any, **named: Any) -> Any:
        counted.append(hidden_states.shape[1])
        return right(self, hidden_states, *given, **named)

    update_wrapper(counting, right)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(mixer), "forward", counting)
        start = len(PROMPT)
        for kept in (2, 5, 1, 3):
            counted.clear()
            session.forward(torch.tensor([tokens(5)]), session.chain(5, start))
            session.cache.keep(start, range(kept))
            assert counted == [1] * 5 * len(model.cache_shape.remembering)
            start += kept


def test_a_cache_counts_states_and_inputs_and_holds_no_rows_where_nothing_attends() -> None:
    model = staged("lfm2")
    shape = model.cache_shape
    assert (shape.rowless, shape.remembering) == ({0, 2}, {0, 2})
    cache, steps = model.new_cache(20)
    rows = 2 * 2 * shape.n_heads * 20 * shape.head_dim * 4
    assert cache.nbytes == rows
    model.forward(torch.tensor([PROMPT]), steps.prefill(19), cache)
    inputs, tails = 2 * 20 * 32 * 4, 2 * 32 * 3 * 4
    assert cache.nbytes == rows + inputs + tails
    assert shape.bytes(20) == rows + inputs
    cache.wipe()
    assert cache.nbytes == rows


def test_passes_of_such_models_run_eagerly_and_say_why() -> None:
    model = StagedModel(copy.deepcopy(stock("lfm2")), passes="flat")
    assert model.flat is None and "memory of their own" in str(model.path)
    assert "memory of their own" in str(model.graphs.why_not())
