"""The page in a real browser: no complaint, no fetch, both schemes, phones, keyboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppdbench.report.page.document import page
from ppdbench.report.page.runs import read_runs
from ppdbench.report.pictures import palette
from tests.report.page import made
from tests.report.page.browser import Tab, browser, find_browser

PROGRAM = find_browser()
PHONE, DESK = 375, 1280
LONG = "a_name_that_nobody_would_give_a_task_" * 3

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium or Chrome to test with")


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    assert PROGRAM is not None
    with browser(PROGRAM) as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All kinds of runs, a difference, a failure, and words too long for a phone."""
    folder = tmp_path_factory.mktemp("report")
    hostile = "</script><img src=x onerror=document.title='broken'>"
    odd = [
        made.decoded("swift", "1", 2.0),
        made.decoded(
            *("swift", "2", 2.0),
            verdict="tie",
            first_difference=3,
            margin=1e-6,
            discrepancy=2e-6,
            baseline_ids=[5, 6, 7, 1, 2],
        ),
        made.decoded("swift", hostile, verdict="failed", output_ids=[], error=hostile + LONG),
        made.decoded("swift", "4", task=LONG, baseline_again_ms=12.0),
    ]
    data = {name: {"metrics": [], "sha256": "a"} for name in ("gsm8k", LONG)}
    head = made.header(
        "bench", methods=made.methods("swift"), data=data, command=["ppdbench", LONG * 3]
    )
    runs = [
        made.bench(folder / "bench"),
        made.probe(folder / "probe"),
        made.pipelined(folder / "pipelined"),
        made.similarity(folder / "similarity"),
        made.write(folder / "odd", head, odd),
    ]
    path = folder / "page.html"
    path.write_text(page(read_runs(runs)).text, "utf-8")
    return path


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_it_opens_without_a_complaint_or_a_fetch(
    tab: Tab, report: Path, width: int, dark: bool
) -> None:
    tab.open(report, width=width, dark=dark)
    assert tab.complaints() == []
    assert tab.requests() == [report.resolve().as_uri()]
    assert "broken" not in tab.run("document.title")


@pytest.mark.parametrize("width", [320, PHONE, DESK])
def test_it_never_scrolls_sideways(tab: Tab, report: Path, width: int) -> None:
    tab.open(report, width=width, dark=False)
    tab.run("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    for number in range(4):
        choose(tab, "run", str(number))
        assert tab.run("document.documentElement.scrollWidth") <= width


def ground(tab: Tab) -> str:
    """The page's background as it stands in the palette."""
    parts = re.findall(r"\d+", tab.run("getComputedStyle(document.body).backgroundColor"))
    return "#" + "".join(f"{int(part):02x}" for part in parts[:3])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_follows_the_scheme_that_its_reader_prefers(tab: Tab, report: Path, dark: bool) -> None:
    tab.open(report, width=DESK, dark=dark)
    assert ground(tab) == palette.GROUNDS["ground"][dark]


def test_the_button_turns_to_the_other_scheme_and_back(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    light, dark = palette.GROUNDS["ground"]
    try:
        for expected in (dark, light):
            tab.run("document.getElementById('theme').click()")
            assert ground(tab) == expected
    finally:
        tab.run("localStorage.clear()")


def test_the_first_stop_of_the_keyboard_leads_past_the_contents(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    tab.press("Tab", 9)
    assert tab.run("document.activeElement.textContent") == "Skip to the results"
    assert tab.run("document.activeElement.getBoundingClientRect().left >= 0")


def choose(tab: Tab, box: str, value: str) -> None:
    tab.run(
        f"(() => {{ const box = document.getElementById('pick-{box}'); box.value = '{value}'; "
        "box.dispatchEvent(new Event('change')) })()"
    )


def view(tab: Tab) -> str:
    found: str = tab.run("document.getElementById('view').innerText")
    return found


def test_an_accepted_draft_is_marked_in_the_output(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    choose(tab, "run", "0")
    choose(tab, "method", "1")
    kept = "[...document.querySelectorAll('#view .text .kept')].map((t) => t.textContent)"
    assert tab.run(kept) == ["6"]  # the second token: the prefill made the first
    assert "step 1: 1 of 2 drafts accepted" in tab.run(
        "document.querySelector('#view .text .kept').title"
    )


def test_the_first_difference_is_shown_with_its_reason(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    choose(tab, "run", "3")
    choose(tab, "kind", "tie")
    text = view(tab)
    assert "At token 4 of 5: a tie" in text
    assert "1.00e-6" in text
    apart = "[...document.querySelectorAll('#view .apart')].map((t) => t.textContent)"
    assert tab.run(apart) == ["1", "8"]


def test_a_failure_comes_first_and_its_error_is_text(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    choose(tab, "run", "3")
    assert "Failed: </script><img" in view(tab)
    assert tab.run("document.images.length") == 0


def test_the_token_grid_has_a_row_for_each_layer(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    choose(tab, "run", "1")
    rows = "[...document.querySelectorAll('.grid tbody th')].map((t) => t.textContent)"
    assert tab.run(rows) == ["1", "2", "3", "4"]
    titles = "[...document.querySelectorAll('.grid tbody tr:nth-child(1) td')].map((t) => t.title)"
    assert tab.run(titles)[1] == "layer 1, token 2: rank 35 or more"


def test_buttons_walk_through_the_examples(tab: Tab, report: Path) -> None:
    tab.open(report, width=DESK, dark=False)
    assert tab.run("document.getElementById('previous').disabled")
    first = view(tab).splitlines()[0]
    tab.run("document.getElementById('next').click()")
    assert view(tab).splitlines()[0] != first
    tab.run("document.getElementById('previous').click()")
    assert view(tab).splitlines()[0] == first


def test_no_text_is_smaller_than_a_phone_can_show(tab: Tab, report: Path) -> None:
    tab.open(report, width=PHONE, dark=False)
    sizes = tab.run(
        "[...document.querySelectorAll('figure svg')].map((s) => "
        "11 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    assert min(sizes) > 9.5
