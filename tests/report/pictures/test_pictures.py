"""Pictures: what they show, that they are the same each time, and that odd text is safe."""

from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.text import Text

from ppdbench import theory
from ppdbench.errors import ConfigError, DataError
from ppdbench.probe.summary import Rate
from ppdbench.report.grid import CLASS_NAMES, TokenGrid
from ppdbench.report.pictures import raster
from ppdbench.report.pictures.drawing import Area, Box, Drawing, Label, side_by_side
from ppdbench.report.pictures.files import save_picture
from ppdbench.report.pictures.probes import match_curves, match_maps
from ppdbench.report.pictures.theory import tradeoff_picture
from ppdbench.report.pictures.token_grid import token_grid as drawn_grid
from ppdbench.report.theory_tables import paper_points
from tests.report.pictures.seen import boxes, curves, marks, texts

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
ODD = "漢字 ⟨x⟩ 🙂 \x1b[0m \u200b $x_1$ \ud800 \u0301 \\frac"


def rates(**changes: Any) -> list[Rate]:
    return [
        Rate(
            **{
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
        )
        for layer in (1, 2, 3, 4)
        for k in (1, 3)
        for head in "NY"
        for bucket in ("1-2", "3-4", "total")
    ]


def match_rates(given: list[Rate]) -> Drawing:
    return side_by_side(match_curves("run", given))


def bucket_heatmap(given: list[Rate], k: int) -> Drawing:
    return side_by_side(match_maps("run", [rate for rate in given if rate.k == k]))


def token_grid(text: str = " the", n_tokens: int = 20, n_layers: int = 3) -> Drawing:
    return drawn_grid(
        TokenGrid(
            title=f"squad {text}",
            layers=tuple(range(1, n_layers + 1)),
            tokens=(text,) * n_tokens,
            predictions=((text,) * n_tokens,) * n_layers,
            ranks=(tuple(range(n_tokens)),) * n_layers,
        )
    )


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_same_numbers_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    for path in (first, second):
        save_picture(tradeoff_picture({"paper": paper_points()}), path)
    assert first.read_bytes().startswith(SIGNATURES[suffix])
    assert first.read_bytes() == second.read_bytes()


def test_suffixes_may_be_upper_case(tmp_path: Path) -> None:
    save_picture(match_rates(rates()), tmp_path / "a.PNG")
    assert (tmp_path / "a.PNG").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["a.jpg", "a", "a.png.txt"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"use \.png, \.svg, \.pdf"):
        save_picture(match_rates(rates()), tmp_path / name)


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    drawing = match_rates(rates())
    with pytest.raises(ConfigError, match="not a writable folder"):
        save_picture(drawing, Path("/dev/null/a.png"))
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write .*directory"):
        save_picture(drawing, tmp_path / "folder.png")


def test_missing_folders_are_made(tmp_path: Path) -> None:
    save_picture(match_rates(rates()), tmp_path / "new" / "deep" / "a.png")
    assert (tmp_path / "new" / "deep" / "a.png").is_file()


def test_drawing_leaves_the_settings_of_others_alone(tmp_path: Path) -> None:
    names = [*raster.STYLE, "backend"]
    before = [matplotlib.rcParams[name] for name in names]
    save_picture(match_rates(rates()), tmp_path / "a.png")
    assert [matplotlib.rcParams[name] for name in names] == before


def test_tradeoff_shows_one_figure_or_both() -> None:
    points = {"paper": paper_points()}
    time, token = (f"compute per {unit} (" for unit in ("time unit", "token"))
    for figure, expected in ((3, [time]), (4, [token]), (None, [time, token])):
        found = texts(tradeoff_picture(points, figure=figure))  # type: ignore[arg-type]
        assert [x.partition("(")[0] + "(" for x in found if x.startswith("compute")] == expected


@pytest.mark.parametrize("figure", [3, 4])
def test_tradeoff_places_points_where_theory_does(figure: Any) -> None:
    given = [theory.MatchRate("squad", k, True, p) for k, p in ((1, 0.5), (3, 0.6837), (5, 0.9))]
    points = theory.figure_points(given)
    places = [point.figure_3 if figure == 3 else point.figure_4 for point in points]
    drawn = marks(tradeoff_picture({"paper": points}, figure=figure))
    assert [mark.hint.partition("head: ")[2] for mark in drawn] == [
        f"{x:.3f}, {y:.3f}" for x, y in places
    ]
    for at, of in (("x", 0), ("y", 1)):
        first, middle, last = (getattr(mark, at) for mark in drawn)
        values = [place[of] for place in places]
        expected = (values[1] - values[0]) / (values[2] - values[0])
        assert (middle - first) / (last - first) == pytest.approx(expected)


def test_tradeoff_tells_the_paper_from_a_measurement() -> None:
    measured = theory.figure_points([theory.MatchRate("squad", 3, False, 0.5)])
    drawing = tradeoff_picture({"paper": paper_points(), "measured": measured}, figure=3)
    assert legend(drawing)[-2:] == ["paper", "measured"]
    squad = {mark.hollow for mark in marks(drawing) if mark.paint == "series-1"}
    assert squad == {True, False}


def legend(drawing: Drawing) -> list[str]:
    """The entries, which are the only unmarked words in full ink."""
    return [
        s.text for s in drawing.shapes if isinstance(s, Label) and s.paint == "ink" and not s.bold
    ]


def test_tradeoff_legend_names_tasks_heads_and_ks() -> None:
    assert legend(tradeoff_picture({"paper": paper_points()}, figure=3)) == [
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
    drawing = match_rates(rates())
    assert [line.dash for line in curves(drawing)] == [0, 0, 1, 1]
    first = [mark.hint.partition(" [")[0] for mark in marks(drawing)[:4]]
    assert first == [f"k = 1 at {layer}: {25 * layer:.1f}%" for layer in (1, 2, 3, 4)]
    assert len([s for s in drawing.shapes if isinstance(s, Area)]) == 4  # a band for each line
    assert legend(drawing) == [
        *("k = 1", "k = 3", "k = 1, trained head", "k = 3, trained head", "95% interval"),
    ]


def test_match_rates_without_intervals_have_no_band() -> None:
    drawing = match_rates(rates(low=None, high=None))
    assert not [s for s in drawing.shapes if isinstance(s, Area)]
    assert "95% interval" not in legend(drawing)


def titles(drawing: Drawing) -> list[str]:
    return [s.text for s in drawing.shapes if isinstance(s, Label) and s.bold]


def test_match_rates_have_a_panel_for_each_task_and_target() -> None:
    tasks = [*rates(), *rates(task="xsum")]
    assert titles(match_rates(tasks)) == ["squad: match rate by layer", "xsum: match rate by layer"]
    targets = [*rates(), *rates(target="top-k")]
    assert [d.title for d in match_curves("run", targets)] == [
        "squad: match rate by layer",
        "squad, top-k target: match rate by layer",
    ]


def test_heat_map_has_a_cell_for_each_layer_and_bucket() -> None:
    drawing = bucket_heatmap([row for row in rates() if row.head == "N"], k=3)
    hints = [box.hint for box in boxes(drawing)]
    assert hints == [
        f"layer {layer}, positions {bucket}: {25 * layer:.1f}%"
        for layer in (1, 2, 3, 4)
        for bucket in ("1-2", "3-4")
    ]
    cells = [s for s in drawing.shapes if isinstance(s, Label) and s.paint.startswith("on-")]
    assert [cell.text for cell in cells] == ["25", "25", "50", "50", "75", "75", "100", "100"]
    assert [cell.y for cell in cells] == sorted(cell.y for cell in cells)  # the deepest below
    rows = [s.text for s in drawing.shapes if isinstance(s, Label) and s.anchor == "end"]
    assert rows == ["1", "2", "3", "4"]
    assert {"2", "4"} <= set(texts(drawing))  # where buckets end


def test_heat_maps_of_both_heads_stand_beside_each_other() -> None:
    assert titles(bucket_heatmap(rates(), k=1)) == [
        "squad, own head, k = 1",
        "squad, trained head, k = 1",
    ]


def test_nothing_to_draw_is_an_error() -> None:
    for draw in (
        lambda: match_rates([]),
        lambda: match_rates(rates(bucket="1-2")),
        lambda: bucket_heatmap(rates(), k=7),
        lambda: tradeoff_picture({"paper": []}),
    ):
        with pytest.raises(DataError):
            draw()


def test_token_grid_breaks_into_blocks_with_all_tokens() -> None:
    drawing = token_grid(n_tokens=40)
    heads = [s for s in drawing.shapes if isinstance(s, Label) and s.bold and s.text == "␣the"]
    lines = [head.y for head in heads]
    assert [lines.count(y) for y in sorted(set(lines))] == [16, 16, 8]
    assert len(boxes(drawing)) == 40 * 3
    assert CLASS_NAMES[0] in legend(drawing)


def test_token_grid_cells_are_short_and_visible() -> None:
    assert "↵␣antidi…" in texts(token_grid("\n antidisestablishment"))


def test_plain_replaces_only_what_cannot_be_drawn() -> None:
    assert raster.drawable("é → ⟨x⟩ $1") == "é → ⟨x⟩ $1"
    assert raster.drawable("漢\x1b\n\ud800🙂\u200b") == "▯" * 4 + raster.drawable("🙂") + "▯"


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_odd_text_is_drawn_without_a_warning(tmp_path: Path, suffix: str) -> None:
    odd = rates(task=ODD)
    point = theory.figure_points([theory.MatchRate(ODD, 3, True, 0.6837)])
    for index, drawing in enumerate(
        (
            token_grid(ODD, n_tokens=3),
            match_rates(odd),
            bucket_heatmap(odd, k=1),
            tradeoff_picture({ODD: point, "b": point}),
        )
    ):
        save_picture(drawing, tmp_path / f"{index}{suffix}")


def test_long_titles_stay_inside_the_picture() -> None:
    name = "a rather long name of a task " * 9
    for drawing in (token_grid(name, n_tokens=2), match_rates(rates(task=name))):
        figure = raster.matplotlib_figure(drawing)
        width = figure.get_size_inches()[0] * figure.dpi
        (title,) = [t for t in figure.findobj(Text) if t.get_text().endswith(" …")]
        assert title.get_window_extent().x1 <= width


def test_pictures_beyond_what_can_be_drawn_are_drawn_coarser(tmp_path: Path) -> None:
    save_picture(
        Drawing("a", "t", "d", 72.0, (Box(0, 0, 9, 9, "ink"),), 500 * 72.0), tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").stat().st_size
