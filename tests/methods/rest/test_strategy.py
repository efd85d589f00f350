"""REST: the tree of what followed in the datastore, and the same output whatever that is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.decoding.sampling import Chooser, Target
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import ConfigError
from ppdbench.methods.rest import datastore
from ppdbench.methods.rest.strategy import SIZES, Rest, RestProposer
from ppdbench.training.text import TextSpec
from tests.decoding.matrix import CAPACITY, CLOCK, assert_exact, cases, decode_case, free, reference
from tests.families import FAMILIES
from tests.helpers import VOCAB, staged, tokens
from tests.methods.rest.test_datastore import EOS, Numbers, built, drawn


def setup(model: StagedModel, vocab_size: int = VOCAB) -> Setup:
    words = Numbers(vocab_size)
    return Setup(Loaded(ModelSpec(name="tiny"), model, words, frozenset(), 0, ""), CAPACITY)


def own_outputs(model: StagedModel) -> list[list[int]]:
    """What the model writes after some prompts: the best datastore there could be."""
    return [[*prompt, *free(model, prompt, 30)] for prompt in (tokens(9, 0), tokens(10, 1))]


def prepared(model: StagedModel, folder: Path, **options: int) -> RestProposer:
    """As many nodes as usual where no number is told, which a CPU would choose smaller."""
    told = {**SIZES.usual, **options}
    return Rest(datastore=str(folder / "store"), **told).prepare(setup(model))


def proposed(decoder: RestProposer, text: list[int], room: int = 99) -> Draft:
    session = Session(staged("llama"), CAPACITY)
    session.tokens = text
    draft = decoder.propose(session, room)
    draft.check(VOCAB)
    return draft


def lines(draft: Draft) -> list[list[int]]:
    """The tokens from the root to each node."""
    found: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents or (), strict=True):
        found.append([*([] if parent < 0 else found[parent]), token])
    return found


# The output


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_the_output_is_greedy_decodings(name: str, tmp_path: Path) -> None:
    model = staged(name)
    built(tmp_path, [*own_outputs(model), drawn(300, VOCAB - 3, 5)])
    decoder = prepared(model, tmp_path)
    accepted = [sum(assert_exact(decoder, case, model).accepted) for case in cases(model)]
    assert sum(accepted) > 20


def test_what_the_model_wrote_before_is_accepted_in_whole_branches(tmp_path: Path) -> None:
    model = staged("llama")
    built(tmp_path, own_outputs(model))
    ours = assert_exact(prepared(model, tmp_path, max_depth=5), next(cases(model)), model)
    assert ours.accepted == (5, 5, 5, 4)


def test_a_datastore_of_other_text_changes_nothing_but_the_speed(tmp_path: Path) -> None:
    model = staged("gpt2")
    built(tmp_path, [drawn(2000, VOCAB - 3, 5)])
    decoder = prepared(model, tmp_path, max_nodes=12)
    for case in cases(model):
        assert_exact(decoder, case, model)


@pytest.mark.parametrize("name", ["llama", "mistral-window"])
def test_in_one_fixed_shape_the_output_is_the_same(name: str, tmp_path: Path) -> None:
    model = staged(name)
    built(tmp_path, [*own_outputs(model), drawn(300, VOCAB - 3, 5)])
    decoder = prepared(model, tmp_path, max_nodes=9)
    for case in cases(model):
        ours = decode_case(decoder, case, model, fixed_rows=decoder.rows)
        assert ours.output_ids == reference(case, model).output_ids


def test_a_real_model_accepts_what_real_text_suggests(
    stories: Path, real_rows: Path, tmp_path: Path
) -> None:
    loaded = load(ModelSpec(name=str(stories)))
    text = TextSpec(sources=(str(real_rows / "corpus" / "stories_tinystories.txt"),))
    size = loaded.staged.vocab_size
    datastore.build_datastore(text, loaded.tokenizer, size, tmp_path / "store")
    decoder = Rest(datastore=str(tmp_path / "store")).prepare(Setup(loaded, 256))
    session = Session(loaded.staged, 256, spare=decoder.rows)
    prompt = loaded.tokenizer.encode("Once upon a time, there was a little girl named Lily.")
    ours = decoder.decode(session, Request(prompt, Limits(120), CLOCK))
    greedy = autoregressive(Session(loaded.staged, 256), Request(prompt, Limits(120), CLOCK))
    assert ours.output_ids == greedy.output_ids
    assert sum(ours.accepted) / len(ours.accepted) > 0.5


# The tree


def test_continuations_become_a_tree_the_frequent_and_short_ones_first(tmp_path: Path) -> None:
    rows = [[5, 6, *after] for after in ([20, 30], [20, 30], [20, 31], [21, 32], [22, 33])]
    built(tmp_path, rows)
    draft = proposed(prepared(staged("llama"), tmp_path, max_nodes=5), [9, 5, 6])
    assert lines(draft) == [[20], [20, 30], [20, 30, EOS], [21], [22]]


def test_the_nodes_are_the_most_frequent_beginnings_there_are(tmp_path: Path) -> None:
    rows = [drawn(400, 3, seed) for seed in range(4)]
    built(tmp_path, rows)
    text = [token for row in rows for token in [*row, EOS]]
    decoder = prepared(staged("llama"), tmp_path, max_nodes=25, max_depth=6, longest_suffix=4)
    for seed in range(20):
        asked = drawn(12, 3, 100 + seed)
        known, _ = decoder.store.longest(asked, 4)
        starts = [
            i + known
            for i in range(len(text))
            if text[i : i + known] == asked[len(asked) - known :]
        ]
        counts: Counter[tuple[int, ...]] = Counter()
        for start in starts:
            after = text[start : start + 6]
            ends = after.index(EOS) + 1 if EOS in after else len(after)
            counts.update(tuple(after[:n]) for n in range(1, ends + 1))
        ours = [counts[tuple(line)] for line in lines(proposed(decoder, asked))]
        assert ours == [count for _, count in counts.most_common(25)]
        assert len(ours) == 25


def test_only_the_longest_suffix_that_is_known_counts(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6, 20], [7, 6, 21], [7, 6, 21]])
    decoder = prepared(staged("llama"), tmp_path, max_depth=1)
    assert proposed(decoder, [5, 6]).tokens == (20,)
    assert proposed(decoder, [8, 6]).tokens == (21, 20)
    assert len(proposed(decoder, [6, 9])) == 0
    short = prepared(staged("llama"), tmp_path, max_depth=1, longest_suffix=1)
    assert proposed(short, [5, 6]).tokens == (21, 20)


def test_no_branch_goes_on_after_the_end_of_a_document(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6], [7, 8, 9], [5, 6]])
    decoder = prepared(staged("llama"), tmp_path)
    assert lines(proposed(decoder, [5])) == [[6], [6, EOS]]
    assert len(proposed(decoder, [5, 6, EOS])) == 0


def test_no_branch_is_longer_than_the_room_or_than_asked(tmp_path: Path) -> None:
    built(tmp_path, [list(range(3, 40))])
    decoder = prepared(staged("llama"), tmp_path, max_depth=7)
    for room, deepest in ((1, 1), (4, 4), (20, 7)):
        draft = proposed(decoder, [3, 4], room)
        assert draft.tokens == tuple(range(5, 5 + deepest))
        assert draft.depths == tuple(range(1, 1 + deepest))


def test_looking_at_few_of_many_occurrences_keeps_the_common_branches(tmp_path: Path) -> None:
    built(tmp_path, [[5, 20 + i % 2] for i in range(600)] + [[5, 30]])
    decoder = prepared(staged("llama"), tmp_path, max_matches=10, max_depth=1)
    assert set(proposed(decoder, [5]).tokens) >= {20, 21}


def test_the_order_of_examples_changes_nothing(tmp_path: Path) -> None:
    model = staged("llama")
    built(tmp_path, own_outputs(model))
    decoder = prepared(model, tmp_path)
    some = list(cases(model))[:5]
    forth = [decode_case(decoder, case, model).accepted for case in some]
    back = [decode_case(decoder, case, model).accepted for case in reversed(some)]
    assert forth == back[::-1]


# Bad options


def test_without_a_datastore_the_error_says_how_to_build_one() -> None:
    with pytest.raises(ConfigError, match="ppdbench datastore --text FILE --out DIR"):
        Rest()


@pytest.mark.parametrize("name", ["longest_suffix", "max_depth", "max_matches"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"rest: {name}=0; use 1 or more"):
        Rest(datastore="store", **{name: 0})
    with pytest.raises(ConfigError, match="rest: max_nodes=-1; use 0 or more"):
        Rest(datastore="store", max_nodes=-1)


def test_a_tree_of_no_told_size_is_small_where_rows_cost_time(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6]])
    decoder = Rest(datastore=str(tmp_path / "store")).prepare(setup(staged("llama")))
    assert (decoder.options.max_nodes, decoder.chosen) == (4, {"max_nodes": 4})
    assert SIZES.on("cuda") == {"max_nodes": 32}


def test_a_suffix_longer_than_the_datastore_is_sorted_by_is_refused(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6]], depth=4)
    with pytest.raises(
        ConfigError, match=r"longest_suffix=16, but .* sorted by 4 tokens; use 1..4"
    ):
        prepared(staged("llama"), tmp_path)
    prepared(staged("llama"), tmp_path, longest_suffix=4)


def test_another_models_datastore_is_refused(tmp_path: Path) -> None:
    built(tmp_path, [[5, 6]])
    options = Rest(datastore=str(tmp_path / "store"))
    with pytest.raises(ConfigError, match="was built with another tokenizer"):
        options.prepare(setup(staged("llama"), 95))


def test_a_folder_without_a_datastore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no datastore"):
        prepared(staged("llama"), tmp_path)


def test_drawing_from_the_likeliest_token_alone_is_greedy_decoding(tmp_path: Path) -> None:
    model = staged("llama")
    built(tmp_path, own_outputs(model))
    decoder = prepared(model, tmp_path)
    session = Session(model, CAPACITY, spare=decoder.rows)
    chooser = Chooser(Target(kind="top-p", top_p=1e-6), torch.Generator().manual_seed(3))
    drawn = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK, chooser))
    greedy = decoder.decode(session, Request(tokens(9), Limits(24), CLOCK))
    assert drawn.output_ids == greedy.output_ids
