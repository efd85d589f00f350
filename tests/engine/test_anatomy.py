"""Models read from their modules: which layers remember, which attend, what turns them."""

from __future__ import annotations

import pytest

from benchmarks.families import tiny
from ppdbench.engine.anatomy import read


@pytest.mark.parametrize(
    ("name", "memories", "attending", "rotary"),
    [
        ("llama", (None,) * 4, {0, 1, 2, 3}, "rotary_emb"),
        ("lfm2_moe", ("conv", None) * 2, {1, 3}, "pos_emb"),
        ("falcon_h1", ("mamba",) * 4, {0, 1, 2, 3}, "rotary_emb"),
        ("nemotron_h", ("mixer", None, None, None), {2}, None),
        ("mamba2", ("mixer",) * 4, set(), None),
    ],
)
def test_layers_that_remember_and_those_that_attend_are_told_apart(
    name: str, memories: tuple[str | None, ...], attending: set[int], rotary: str | None
) -> None:
    family, anatomy = read(tiny(name))
    assert anatomy.memories == memories
    assert (anatomy.attending, anatomy.remembers) == (attending, any(memories))
    assert family.rotary == rotary
    assert family.blocks is not None
    assert family.blocks.mixers == tuple(sorted({path for path in memories if path}))
