"""The per-token view: what is shown, and that it fits."""

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ppdbench.errors import ConfigError, DataError
from ppdbench.report import grid
from ppdbench.report.grid import TokenGrid, print_grid, visible
from tests.filled import grid_of

WORDS = [" the", "ing", "\n", " 漢字", "\x1b[31m", " antidisestablishment", "", "[/bold]"]


def sample(n_tokens: int = 3, n_layers: int = 2) -> dict[str, Any]:
    ids = list(range(n_tokens))
    return {
        "example_id": "q1",
        "task": "squad",
        "output_ids": ids,
        "ranks": {str(n + 1): [5 * (n_layers - 1 - n)] * n_tokens for n in range(n_layers)},
        "predictions": {str(n + 1): [i + n_layers - 1 - n for i in ids] for n in range(n_layers)},
    }


def decode(token: int) -> str:
    return WORDS[token % len(WORDS)]


def text_of(view: TokenGrid, width: int = 80) -> str:
    out = io.StringIO()
    print_grid(view, Console(file=out, width=width))
    return out.getvalue()


def test_grid_of_reads_the_asked_layers() -> None:
    view = grid_of(sample(), [2, 1], decode)
    assert view == TokenGrid(
        title="squad q1",
        layers=(2, 1),
        tokens=(" the", "ing", "\n"),
        predictions=((" the", "ing", "\n"), ("ing", "\n", " 漢字")),
        ranks=((0, 0, 0), (5, 5, 5)),
    )


def test_each_id_is_decoded_once() -> None:
    seen: list[int] = []
    grid_of(sample(), [1, 2], lambda i: str(seen.append(i) or i))
    assert sorted(seen) == [0, 1, 2, 3]


def test_layers_without_predictions_are_refused() -> None:
    with pytest.raises(ConfigError, match="no predictions of layer 3; it has 1, 2"):
        grid_of(sample(), [3], decode)
    with pytest.raises(ConfigError, match="no predictions of layer 1; it has none"):
        grid_of({**sample(), "predictions": None}, [1], decode)


def test_examples_that_cannot_be_shown_are_refused() -> None:
    with pytest.raises(DataError, match="no output tokens"):
        grid_of({**sample(), "output_ids": []}, [1], decode)
    with pytest.raises(DataError, match="3 predictions of layer 1 for 2 output tokens"):
        grid_of({**sample(), "output_ids": [0, 1]}, [1], decode)


def test_rows_of_a_grid_have_the_same_length() -> None:
    with pytest.raises(ValueError, match="ranks: want 1 rows of 2"):
        TokenGrid("t", (1,), ("a", "b"), (("a", "b"),), ((0,),))


@pytest.mark.parametrize(
    ("rank", "kind"), [(0, 0), (1, 1), (2, 1), (3, 2), (9, 2), (10, 3), (31999, 3)]
)
def test_ranks_fall_into_four_classes(rank: int, kind: int) -> None:
    assert grid.rank_class(rank) == kind


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        (" the\n", "␣the↵"),
        ("\t\r\x00", "⇥␍␀"),
        ("\x7f\u200b\ud800\u00a0", "▯▯▯▯"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("漢字 🙂", "漢字␣🙂"),
        ("", ""),
    ],
)
def test_everything_in_a_token_is_visible(token: str, shown: str) -> None:
    assert visible(token) == shown


def test_fitted_text_has_exactly_the_width_asked_for() -> None:
    for text in ("", "abc", "abcdefgh", "漢字漢字", "a漢字漢", "e\u0301" * 9):
        for width in range(1, 8):
            assert cell_len(grid.exact_columns(text, width)) == width
    assert grid.exact_columns("abcdef", 4) == "abc…"


@pytest.mark.parametrize("width", [30, 80, 200])
def test_lines_keep_to_the_width_of_the_terminal(width: int) -> None:
    view = grid_of(sample(n_tokens=48, n_layers=12), range(1, 13), decode)
    lines = text_of(view, width).splitlines()
    assert max(cell_len(line) for line in lines) <= width


def test_deepest_layer_is_at_the_bottom_and_every_block_has_all_layers() -> None:
    view = grid_of(sample(n_tokens=48, n_layers=12), range(1, 13), decode)
    lines = text_of(view).splitlines()
    numbers = [int(line[:5]) for line in lines if line[:5].strip().isdigit()]
    blocks = sum(line.startswith("token") for line in lines)
    assert blocks > 1
    assert numbers == list(range(1, 13)) * blocks


def test_all_tokens_are_shown_once() -> None:
    view = grid_of(sample(n_tokens=48, n_layers=2), [1, 2], lambda i: f"t{i}.")
    heads = [line for line in text_of(view).splitlines() if line.startswith("token")]
    assert " ".join(heads).replace("token", "").split() == [f"t{i}." for i in range(48)]


def test_matches_are_marked_without_colour() -> None:
    text = text_of(grid_of(sample(), [1, 2], decode))
    assert "\x1b" not in text
    first, second = [line for line in text.splitlines() if line.strip()[:1] in ("1", "2")]
    assert first.split() == ["1", "·ing", "·↵", "·␣漢字"]
    assert second.split() == ["2", "●␣the", "●ing", "●↵"]
    assert "●rank 0 (match)" in text
    assert "deepest at the bottom" in text


def test_tokens_that_look_like_markup_are_text() -> None:
    view = grid_of(sample(n_tokens=8), [1, 2], decode)
    assert "[/bold]" in text_of(view)
    assert "␛[31m" in text_of(view)


def test_titles_cannot_move_the_cursor() -> None:
    view = grid_of({**sample(), "example_id": "a b\x1b[2J[red]"}, [1], decode)
    assert text_of(view).startswith("squad a b␛[2J[red]\n")


def test_colours_follow_the_rank() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="truecolor")
    print_grid(grid_of(sample(), [1, 2], decode), console)
    assert "48;2;11;83;148m●␣the" in out.getvalue()
