"""Drawings: what they show, as SVG and as PNG."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ppdbench.report.pictures.curves import Curve, Value, curves
from ppdbench.report.pictures.drawing import (
    WIDTH,
    Area,
    Box,
    Drawing,
    Label,
    Line,
    PointMark,
    slug,
    svg,
    svg_file,
)
from ppdbench.report.pictures.files import save_all
from ppdbench.report.pictures.frame import Scale, round_ticks
from ppdbench.report.pictures.heatmap import HeatmapCell, heatmap
from ppdbench.report.pictures.histogram import LAST, histogram
from ppdbench.report.pictures.palette import heat
from ppdbench.report.pictures.speedups import speedups
from ppdbench.report.pictures.stacked import stacked
from ppdbench.report.pictures.theory import MeasuredGain, Promise, promises
from tests.report.pictures.seen import boxes, texts
from tests.report.pictures.test_speedups import ratio

HOSTILE = '</text><script>alert("&")</script>'


def every_chart() -> list[Drawing]:
    values = [Value(layer, layer / 4, layer / 4 - 0.1, min(1, layer / 4 + 0.1)) for layer in (1, 4)]
    return [
        curves("curves", HOSTILE, "d", "layer", [Curve("k = 1", 0, values, dash=1)]),
        heatmap(
            "heat",
            "t",
            "d",
            {
                ("1", "2"): HeatmapCell("heat-0", "0", ""),
                ("1", "4"): HeatmapCell("heat-10", "1", ""),
            },
            "position",
        ),
        speedups("speed", "t", "d", [ratio(2.0), ratio(0.5), ratio(1.01, claimed=False)]),
        histogram("hist", "t", "d", {0: 3, 2: 1, 40: 1}, "n", {0: 0.5, 1: 0.5}),
        stacked("parts", "t", "d", ["a", "b"], {HOSTILE: [1.0, 2.0], "y": [0.0, 0.5]}, "ms"),
        promises(
            "promise", "t", "d", [Promise(2, 1, 1.5, 1.4)], [MeasuredGain(2, 1, 1.2, 1.1, 1.3)]
        ),
    ]


@pytest.mark.parametrize("drawing", every_chart(), ids=lambda d: d.name)
def test_every_drawing_is_sound_svg_with_a_title_and_words(drawing: Drawing) -> None:
    root = ET.fromstring(str(svg(drawing)))
    space = {"s": "http://www.w3.org/2000/svg"}
    assert root.attrib["role"] == "img"
    assert root.find("s:title", space).text == drawing.title  # type: ignore[union-attr]
    assert root.find("s:desc", space).text == drawing.description  # type: ignore[union-attr]
    labels = {root.attrib["aria-labelledby"], root.attrib["aria-describedby"]}
    assert labels <= {node.attrib.get("id", "") for node in root}
    assert not root.findall(".//s:script", space)


@pytest.mark.parametrize("drawing", every_chart(), ids=lambda d: d.name)
def test_every_drawing_keeps_inside_its_frame(drawing: Drawing) -> None:
    for shape in drawing.shapes:
        if isinstance(shape, Box):
            assert shape.x >= 0
            assert shape.x + shape.width <= WIDTH + 0.5, shape
        if isinstance(shape, Label | PointMark):
            assert 0 <= shape.x <= WIDTH, shape
            assert 0 <= shape.y <= drawing.height, shape


def test_a_long_tail_shares_the_last_bar() -> None:
    drawing = histogram("h", "t", "d", {0: 1, LAST: 1, LAST + 24: 2}, "n")
    assert f"{LAST}+" in texts(drawing)
    assert boxes(drawing, "accent")[LAST].hint == f"{LAST}+: 75.0%"


def test_heat_map_cells_say_their_number() -> None:
    drawing = heatmap(
        "h", "t", "d", {("2", "8"): HeatmapCell(heat(0.25), "25", "layer 2")}, "position"
    )
    assert boxes(drawing, "heat-2")[0].hint == "layer 2"
    assert "25" in texts(drawing)


def test_words_that_do_not_fit_their_cell_are_left_to_the_pointer() -> None:
    cells = {("1", str(n)): HeatmapCell(heat(0.5), "▼0.65x", "words") for n in range(20)}
    drawing = heatmap("h", "t", "d", cells, "option")
    assert "▼0.65x" not in texts(drawing)
    assert len(boxes(drawing, "heat-5")) == 20


def test_where_every_cell_has_its_words_the_drawing_grows() -> None:
    cells = {("1", str(n)): HeatmapCell(heat(0.5), "▼0.65x", "words") for n in range(20)}
    drawing = heatmap("h", "t", "d", cells, "option", whole=True)
    assert texts(drawing).count("▼0.65x") == 20
    assert max(box.x + box.width for box in boxes(drawing)) <= drawing.width > WIDTH


def test_one_layer_alone_can_be_drawn() -> None:
    drawing = curves("c", "t", "d", "layer", [Curve("k", 0, [Value(3, 0.5, 0.4, 0.6)])])
    assert "3" in texts(drawing)
    (mark,) = [s for s in drawing.shapes if isinstance(s, PointMark) and s.hint]
    assert 0 < mark.x < WIDTH


@pytest.mark.parametrize("points", [16, 17, 30, 80])
def test_every_line_bears_the_mark_that_its_legend_shows(points: int) -> None:
    given = [
        Curve(f"{family} {hollow}", family, [Value(x, 0.2) for x in range(points)], hollow=hollow)
        for family in range(3)
        for hollow in (False, True)
    ]
    marks = [s for s in curves("c", "t", "d", "layer", given).shapes if isinstance(s, PointMark)]
    for curve in given:
        own = [m.x for m in marks if m.hint.startswith(curve.label)]
        assert len(own) == points if points <= 16 else 5 <= len(own) <= 8
    if points > 16:
        solid = [m.x for m in marks if "False" in m.hint]
        assert len(set(solid)) == len(solid)  # marks of lines that lie on each other are all seen


def test_what_has_no_interval_has_no_band_and_none_in_its_words() -> None:
    drawing = curves("c", "t", "d", "layer", [Curve("k", 0, [Value(1, 0.5), Value(2, 0.6)])])
    assert not [shape for shape in drawing.shapes if isinstance(shape, Area)]
    first = next(s for s in drawing.shapes if isinstance(s, PointMark) and s.hint)
    assert first.hint == "k at 1: 50.0%"


def test_scales_of_ratios_put_inverses_at_equal_distance() -> None:
    scale = Scale(0.25, 4, log=True)
    assert scale.share(1) == pytest.approx(0.5)
    assert scale.share(2) - 0.5 == pytest.approx(0.5 - scale.share(0.5))


def test_ticks_are_round_and_few() -> None:
    assert round_ticks(0, 0.62, 6) == pytest.approx([0, 0.2, 0.4, 0.6])
    assert round_ticks(1, 8, 9) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(round_ticks(0, 31_234, 5)) <= 6


def test_names_are_fit_for_files_and_stay_apart() -> None:
    assert slug("a", "k=3,x") == "a-k=3,x"
    names = {slug("a b"), slug("a_b"), slug("a/b"), slug("../a")}
    assert len(names) == 4
    assert not any(set(name) & set(' /\\"<>:') for name in names)


def test_files_hold_every_drawing_as_svg_and_png(tmp_path: Path) -> None:
    drawings = every_chart()
    save_all(drawings, tmp_path / "new" / "plots")
    for drawing in drawings:
        path = tmp_path / "new" / "plots" / drawing.name
        root = ET.fromstring(path.with_suffix(".svg").read_text("utf-8"))
        assert root.find("{http://www.w3.org/2000/svg}style") is not None
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_svg_files_bring_light_and_dark(tmp_path: Path) -> None:
    line = Line([(0, 0), (9, 9)], "accent")
    text = svg_file(Drawing("n", "t", "d", 10, (line,)))
    assert "prefers-color-scheme:dark" in text
    assert "var(--accent)" in text
