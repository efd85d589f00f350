"""Colours can be read by those who see little contrast, on both grounds."""

import pytest

from ppdbench.report.pictures import palette

READ, SEEN = 4.5, 3.0  # what WCAG asks of text, and of what is drawn


def test_contrast_is_that_of_wcag() -> None:
    assert palette.contrast("#ffffff", "#000000") == pytest.approx(21)
    assert palette.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("ink", palette.INKS)
def test_every_ink_reads_on_every_ground(ink: str, dark: bool) -> None:
    for ground in palette.GROUNDS:
        found = palette.contrast(palette.COLOURS[ink][dark], palette.COLOURS[ground][dark])
        assert found >= READ, (ink, ground)


@pytest.mark.parametrize("dark", [False, True])
def test_what_is_drawn_stands_out(dark: bool) -> None:
    for name in palette.SERIES:
        panel = palette.COLOURS["panel"][dark]
        assert palette.contrast(palette.COLOURS[name][dark], panel) >= SEEN, name


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_colours_reads(dark: bool) -> None:
    for name in [*palette.SERIES, *(f"heat-{step}" for step in range(palette.RAMP_STEPS))]:
        text, ground = palette.COLOURS[f"on-{name}"][dark], palette.COLOURS[name][dark]
        assert palette.contrast(text, ground) >= READ, name


@pytest.mark.parametrize("dark", [False, True])
def test_accepted_tokens_read_on_their_ground(dark: bool) -> None:
    soft, ink = palette.COLOURS["soft"][dark], palette.COLOURS["ink"][dark]
    assert palette.contrast(ink, soft) >= READ


def test_shares_outside_of_the_ramp_take_its_ends() -> None:
    assert [palette.heat(share) for share in (-1, 0, 0.5, 1, 2)] == [
        *("heat-0", "heat-0", "heat-5", "heat-10", "heat-10")
    ]
