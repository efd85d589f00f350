"""Trees as data: what holds for one, what a file may say, how one is filled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.errors import ConfigError
from ppdbench.trees.tree import Tree

SMALL = Tree(((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 1)))


def write(path: Path, **changes: Any) -> Path:
    content = {"format": "ppdbench-tree", "version": 1, "paths": [[0], [0, 1]], **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


def test_a_tree_knows_parents_ranks_and_depths() -> None:
    assert SMALL.parents == (-1, -1, 0, 0, 1, 2)
    assert SMALL.ranks == (0, 1, 0, 2, 0, 1)
    assert SMALL.depths == (1, 1, 2, 2, 2, 3)
    assert (len(SMALL), SMALL.depth, SMALL.top) == (6, 3, 3)


def test_no_nodes_are_a_tree_too() -> None:
    empty = Tree(())
    assert (len(empty), empty.depth, empty.top, empty.parents) == (0, 0, 0, ())


def test_within_keeps_what_is_shallow_and_first_what_came_first() -> None:
    assert SMALL.within(1).paths == ((0,), (1,))
    assert SMALL.within(3) == SMALL
    assert SMALL.first(3).paths == SMALL.paths[:3]
    assert SMALL.first(9) is SMALL


def test_filling_puts_the_ranked_guess_of_its_distance_into_every_node() -> None:
    guesses = torch.tensor([[10, 11, 12], [20, 21, 22], [30, 31, 32]])
    assert SMALL.fill(guesses) == [10, 11, 20, 22, 20, 31]
    # More guesses than it takes, and other ones, with the same object.
    more = torch.arange(20).view(4, 5)
    assert SMALL.fill(more) == [0, 1, 5, 7, 5, 11]
    assert SMALL.fill(guesses + 1) == [11, 12, 21, 23, 21, 32]


def test_filled_tokens_are_the_guess_at_depth_and_rank_for_any_tree() -> None:
    from ppdbench.trees.static import grow_random
    from tests.trees.made import drawn

    guesses = torch.randperm(60)[:24].view(4, 6)
    for seed in range(5):
        tree = grow_random(drawn(seed, distances=4), 25, seed=seed)
        wanted = [int(guesses[len(path) - 1, path[-1]]) for path in tree.paths]
        assert tree.fill(guesses) == wanted


def test_filled_nodes_make_a_draft_that_can_be_verified() -> None:
    from ppdbench.decoding.draft import Draft

    guesses = torch.tensor([[10, 11, 12], [20, 21, 22], [30, 31, 32]])
    draft = Draft.tree(SMALL.fill(guesses), SMALL.parents)
    draft.check(40)
    assert draft.depths == SMALL.depths


@pytest.mark.parametrize("shape", [(2, 3), (3, 2)])
def test_too_few_guesses_are_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="3 guesses at 3 distances"):
        SMALL.fill(torch.zeros(shape, dtype=torch.long))


def test_a_saved_tree_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tree.json"
    SMALL.save(path)
    assert Tree.load(path) == SMALL
    content = json.loads(path.read_text())
    assert content == {
        "format": "ppdbench-tree",
        "version": 1,
        "paths": [[0], [1], [0, 0], [0, 2], [1, 0], [0, 0, 1]],
    }


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "twice": ({"paths": [[0], [0, 1], [0, 1]]}, r"node \[0, 1\] stands there twice"),
    "orphan": ({"paths": [[0], [1, 0]]}, r"node \[1, 0\] has no parent \[1\]"),
    "child first": ({"paths": [[1, 0], [1]]}, r"node \[1, 0\] stands before its parent \[1\]"),
    "root": ({"paths": [[], [0]]}, "empty path; the newest token is not listed"),
    "negative": ({"paths": [[-1]]}, "whole numbers from 0"),
    "fraction": ({"paths": [[0.0]]}, "whole numbers from 0"),
    "true": ({"paths": [[True]]}, "whole numbers from 0"),
    "text": ({"paths": [["a"]]}, "whole numbers from 0"),
    "list in a list": ({"paths": [[[0]]]}, "whole numbers from 0"),
    "numbers": ({"paths": [0, 1]}, "a node is a list of ranks"),
    "no list": ({"paths": "all"}, "paths must be a list, not the text 'all'"),
    "empty": ({"paths": []}, "no nodes; list at least"),
    "missing": ({"paths": None}, "the key paths is missing"),
    "unknown": ({"parents": [-1, 0]}, "unknown key parents"),
    "version": ({"version": 2}, "version 2, but this ppdbench reads 1"),
    "format": ({"format": "ppdbench-addon"}, "is no tree file"),
    "dynamic": ({"paths": None, "states": []}, "a dynamic tree, which only prompt-tokens"),
    "deep": ({"paths": [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]}, "4 deep, but guesses reach 3"),
    "large": ({"paths": [[n] for n in range(9)]}, "9 nodes, but the cache has room for 8"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_told_with_their_name(tmp_path: Path, name: str) -> None:
    changes, says = BAD[name]
    path = write(tmp_path / "tree.json", **changes)
    with pytest.raises(ConfigError, match=says) as raised:
        Tree.load(path, max_depth=3, max_size=8)
    assert "tree.json" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tree.json"
    path.write_text('{"format": "ppdbench-tree", "version": 1, "paths": [[0]], "paths": [[1]]}')
    with pytest.raises(ConfigError, match="'paths' stands there twice"):
        Tree.load(path)


def test_a_file_that_is_not_there_is_told_with_what_makes_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist; `ppdbench tree build` makes one"):
        Tree.load(tmp_path / "none.json")
