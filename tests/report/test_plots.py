"""Pictures: what they show, that they are the same each time, and that odd text is safe."""

from pathlib import Path
from typing import Any

import matplotlib
import pytest

from ppdbench import theory
from ppdbench.errors import ConfigError, DataError
from ppdbench.report import plots
from ppdbench.report.grid import CLASS_NAMES, TokenGrid
from ppdbench.report.theory_tables import paper_points

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
SQUAD = plots.PALETTE[0]  # the colour of the first task
ODD = "漢字 ⟨x⟩ 🙂 \x1b[0m \u200b $x_1$ \ud800 \u0301 \\frac"


def rate_rows(**changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "task": "squad",
            "layer": layer,
            "k": k,
            "head": head,
            "target": "greedy",
            "bucket": bucket,
            "match_rate": layer / 4,
            "low": layer / 4 - 0.1,
            "high": min(1.0, layer / 4 + 0.1),
            "n": 10,
            **changes,
        }
        for layer in (1, 2, 3, 4)
        for k in (1, 3)
        for head in "NY"
        for bucket in ("1-2", "3-4", "total")
    ]


def token_grid(text: str = " the", n_tokens: int = 20, n_layers: int = 3) -> TokenGrid:
    return TokenGrid(
        title=f"squad {text}",
        layers=tuple(range(1, n_layers + 1)),
        tokens=(text,) * n_tokens,
        predictions=((text,) * n_tokens,) * n_layers,
        ranks=(tuple(range(n_tokens)),) * n_layers,
    )


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_same_numbers_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in (first, second):
        plots.save(plots.tradeoff({"paper": paper_points()}), path)
    assert first.read_bytes().startswith(SIGNATURES[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_suffixes_may_be_upper_case(tmp_path: Path) -> None:
    plots.save(plots.match_rates(rate_rows()), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"use \.png, \.svg, \.pdf"):
        plots.save(plots.match_rates(rate_rows()), tmp_path / name)


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    figure = plots.match_rates(rate_rows())
    with pytest.raises(ConfigError, match="not a writable folder"):
        plots.save(figure, Path("/dev/null/a.png"))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*directory"):
        plots.save(figure, tmp_path / "folder.png")


def test_missing_folders_are_made(tmp_path: Path) -> None:
    plots.save(plots.match_rates(rate_rows()), tmp_path / "new" / "deep" / "a.png")
    assert (tmp_path / "new" / "deep" / "a.png").is_file()


def test_drawing_leaves_the_settings_of_others_alone() -> None:
    names = [*plots.STYLE, "backend"]
    before = [matplotlib.rcParams[name] for name in names]
    plots.match_rates(rate_rows())
    assert [matplotlib.rcParams[name] for name in names] == before


def test_tradeoff_shows_one_figure_or_both() -> None:
    points = {"paper": paper_points()}
    assert [len(plots.tradeoff(points, figure=n).axes) for n in (3, 4, None)] == [1, 1, 2]
    assert "per time unit" in plots.tradeoff(points, figure=3).axes[0].get_xlabel()
    assert "per token" in plots.tradeoff(points, figure=4).axes[0].get_xlabel()


def test_tradeoff_places_points_where_theory_does() -> None:
    (point,) = theory.figure_points([theory.MatchRate("squad", 3, True, 0.6837)])
    for figure, place in ((3, point.figure_3), (4, point.figure_4)):
        axes = plots.tradeoff({"paper": [point]}, figure=figure).axes[0]  # type: ignore[arg-type]
        x, y = axes.lines[-1].get_data()
        assert (x[0], y[0]) == place


def test_tradeoff_tells_the_paper_from_a_measurement() -> None:
    measured = theory.figure_points([theory.MatchRate("squad", 3, False, 0.5)])
    figure = plots.tradeoff({"paper": paper_points(), "measured": measured}, figure=3)
    assert legend(figure)[-2:] == ["paper", "measured"]
    fills = {
        line.get_markerfacecolor() for line in figure.axes[0].lines if line.get_marker() == "s"
    }
    assert fills == {"white", SQUAD}


def test_tradeoff_legend_names_tasks_heads_and_ks() -> None:
    assert legend(plots.tradeoff({"paper": paper_points()})) == [
        "squad",
        "wmt_en_fr",
        "cnn_dailymail",
        "model's own head",
        "trained head",
        "k = 1",
        "k = 3",
        "k = 5",
        "paper",
    ]


def test_match_rates_use_the_pooled_rows_and_dash_trained_heads() -> None:
    figure = plots.match_rates(rate_rows())
    (axes,) = figure.axes
    assert [line.get_linestyle() for line in axes.lines] == ["-", "--", "-", "--"]
    assert list(axes.lines[0].get_xdata()) == [1, 2, 3, 4]
    assert len(axes.collections) == 4  # a band for each line
    assert legend(figure) == ["k = 1", "k = 3", "trained head", "95% interval"]


def test_match_rates_without_intervals_have_no_band() -> None:
    figure = plots.match_rates(rate_rows(low=None, high=None))
    assert not figure.axes[0].collections
    assert "95% interval" not in legend(figure)


def test_match_rates_have_a_panel_for_each_task_and_target() -> None:
    tasks = [*rate_rows(), *rate_rows(task="xsum")]
    assert [a.get_title("left") for a in plots.match_rates(tasks).axes] == ["squad", "xsum"]
    targets = [*rate_rows(), *rate_rows(target="top-k")]
    titles = [a.get_title("left") for a in plots.match_rates(targets).axes]
    assert titles == ["squad, greedy", "squad, top-k"]


def test_heat_map_has_a_cell_for_each_layer_and_bucket() -> None:
    rows = [row for row in rate_rows() if row["head"] == "N"]
    axes = plots.bucket_heatmap(rows, k=3).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1-2", "3-4"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "2", "3", "4"]
    assert [text.get_text() for text in axes.texts] == [
        "25",
        "25",
        "50",
        "50",
        "75",
        "75",
        "100",
        "100",
    ]
    low, high = axes.get_ylim()
    assert low > high  # the deepest layer is at the bottom


def test_heat_maps_of_both_heads_stand_beside_each_other() -> None:
    axes = plots.bucket_heatmap(rate_rows(), k=1).axes
    titles = [a.get_title("left") for a in axes[:2]]
    assert titles == ["squad, own head", "squad, trained head"]


def test_nothing_to_draw_is_an_error() -> None:
    for draw in (
        lambda: plots.match_rates([]),
        lambda: plots.match_rates(rate_rows(bucket="1-2")),
        lambda: plots.bucket_heatmap(rate_rows(), k=7),
        lambda: plots.tradeoff({"paper": []}),
    ):
        with pytest.raises(DataError):
            draw()


def test_token_grid_breaks_into_blocks_with_all_tokens() -> None:
    figure = plots.token_grid(token_grid(n_tokens=40))
    assert [len(axes.get_xticklabels()) for axes in figure.axes] == [16, 16, 8]
    assert sum(len(axes.patches) for axes in figure.axes) == 40 * 3
    assert CLASS_NAMES[0] in legend(figure)


def test_token_grid_cells_are_short_and_visible() -> None:
    figure = plots.token_grid(token_grid("\n antidisestablishment"))
    assert figure.axes[0].texts[0].get_text() == "↵␣antidi…"


def test_plain_replaces_only_what_cannot_be_drawn() -> None:
    assert plots.plain("é → ⟨x⟩ $1") == "é → ⟨x⟩ $1"
    assert plots.plain("漢\x1b\n\ud800🙂\u200b") == "▯" * 4 + plots.plain("🙂") + "▯"


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_odd_text_is_drawn_without_a_warning(tmp_path: Path, suffix: str) -> None:
    rates = rate_rows(task=ODD)
    point = theory.figure_points([theory.MatchRate(ODD, 3, True, 0.6837)])
    for index, figure in enumerate(
        (
            plots.token_grid(token_grid(ODD, n_tokens=3)),
            plots.match_rates(rates),
            plots.bucket_heatmap(rates, k=1),
            plots.tradeoff({ODD: point, "b": point}),
        )
    ):
        plots.save(figure, tmp_path / f"{index}{suffix}")


def test_long_titles_stay_inside_the_picture() -> None:
    name = "a rather long name of a task " * 9
    grids = plots.token_grid(token_grid(name, n_tokens=2))
    rates = plots.match_rates(rate_rows(task=name))
    for figure in (grids, rates):
        width = figure.get_size_inches()[0] * figure.dpi
        (title,) = [
            t
            for t in figure.findobj(matplotlib.text.Text)
            if "…" in t.get_text() and t.get_fontsize() == 10
        ]
        assert title.get_window_extent().x1 <= width


def test_pictures_beyond_what_can_be_drawn_are_drawn_coarser(tmp_path: Path) -> None:
    figure = plots.token_grid(token_grid(n_tokens=1, n_layers=1))
    figure.set_size_inches(500, 1)
    plots.save(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size
