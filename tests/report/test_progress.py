"""How far a command has come, with and without a terminal."""

from __future__ import annotations

import time

import pytest
from rich.console import Console

from ppdbench.report import progress as program
from ppdbench.report.progress import Pace, progress, spoken

Capture = pytest.CaptureFixture[str]


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    made = Hands()
    monkeypatch.setattr(program, "time", made)
    return made


def test_the_time_left_counts_steps_of_minutes(hands: Hands) -> None:
    pace = Pace()
    pace.report("warming up", 2, 10)
    assert pace.left_s() is None
    for done in (3, 4, 5):
        hands.now += 200.0
        pace.report("gsm8k", done, 10)
    assert pace.left_s() == pytest.approx(5 * 200.0)
    hands.now += 150.0  # of the step on its way
    assert pace.left_s() == pytest.approx(850.0)
    assert pace.line() == "gsm8k, 5 of 10; 12 min 30 s so far, about 14 min 10 s left"


def test_work_of_another_size_has_a_speed_of_its_own(hands: Hands) -> None:
    pace = Pace()
    pace.report("first", 0, 2)
    hands.now += 100.0
    pace.report("first", 1, 2)
    pace.report("second", 0, 50)
    assert pace.left_s() is None
    hands.now += 2.0
    pace.report("second", 1, 50)
    assert pace.left_s() == pytest.approx(98.0)


def test_the_time_of_preparing_is_no_step(hands: Hands) -> None:
    pace = Pace()
    pace.report("warming up", 0, 4)
    hands.now += 500.0
    pace.report("measuring", 0, 4)
    hands.now += 3.0
    pace.report("measuring", 1, 4)
    assert pace.left_s() == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 s"), (59.0, "59 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")],
)
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert spoken(seconds) == said


def test_without_a_terminal_lines_come_by_the_clock(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "EVERY_S", 0.05)
    with progress() as report:
        report("gsm8k", 1, 8)
        time.sleep(0.3)  # a step that takes longer than the lines are apart
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("ppdbench: gsm8k, 1 of 8; 1 s so far") for line in lines)


def test_what_is_over_at_once_says_nothing(capsys: Capture) -> None:
    with progress() as report:
        report("gsm8k", 1, 8)
    assert capsys.readouterr().err == ""


def test_ranks_that_follow_are_silent(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "EVERY_S", 0.01)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with progress() as report:
        report("gsm8k", 1, 8)
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_bar_on_a_terminal_shows_the_time_left_of_slow_steps(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(Pace, "left_s", lambda self: 640.0)
    with progress() as report:
        report("gsm8k", 1, 8)
    assert "10 min 40 s left" in capsys.readouterr().err


def test_no_color_takes_lines_for_the_bar_which_is_made_of_codes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "EVERY_S", 0.01)
    for name, value in {"FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    with progress() as report:
        report("probing", 1, 2)
        time.sleep(0.1)
    said = capsys.readouterr().err
    assert "probing" in said
    assert "\x1b" not in said
