"""When a speedup may be claimed, one definition of noise, and no claim that slips through."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ppdbench.bench.claims import TimedPair, claim, measured, no_difference, noise, over_greedy
from ppdbench.report import outputs
from ppdbench.report.export import to_csv, to_latex, to_markdown
from ppdbench.report.page.document import page
from ppdbench.report.page.runs import Run, read_runs
from ppdbench.stats import paired_ratio
from tests import sweeps
from tests.filled import add_up, overall, summarize, sums_of
from tests.report.page import made

METHODS = made.methods("greedy", "swift")
CLAIMS = re.compile(r"\d\.\d+ ?[x×]")


def timed(n: int, **changes: Any) -> list[TimedPair]:
    return [over_greedy(sums_of(made.decoded("swift", str(i), 2.0, **changes))) for i in range(n)]


@pytest.mark.parametrize(
    ("examples", "withheld"),
    [
        (timed(5), None),
        (timed(4), "too few examples"),
        ([], "not measured"),
        (timed(9, output_ids=[5], step_ms=[], accepted=[], proposed=[]), "not timed"),
        ([*timed(5), *timed(1, verdict="mismatch")], "mismatch"),
    ],
)
def test_a_speedup_is_claimed_of_five_examples_or_withheld_with_the_reason(
    examples: list[TimedPair], withheld: str | None
) -> None:
    found = claim(examples)
    assert found.withheld == withheld
    figures = found.figures("gain")
    assert figures["gain_withheld"] == withheld
    numbers = [figures[name] for name in ("gain", "gain_low", "gain_high")]
    assert numbers == ([pytest.approx(2)] * 3 if withheld is None else [None] * 3)


def test_outputs_that_took_no_step_are_no_examples_of_a_speedup() -> None:
    none = timed(3, output_ids=[5], step_ms=[], accepted=[], proposed=[])
    assert claim([*timed(4), *none]).withheld == "too few examples"


def test_turns_of_one_conversation_are_one_example() -> None:
    turns = [
        over_greedy(sums_of(made.decoded("swift", name, 2.0, turn=turn)))
        for n in range(3)
        for turn, name in ((1, str(n)), (2, f"{n}/2"))
    ]
    assert claim(turns).withheld == "too few examples"


def test_intervals_draw_conversations_and_not_their_turns() -> None:
    speeds = [(1.0, 3.0), (1.2, 2.6), (1.5, 2.5), (1.1, 3.2), (1.3, 2.0), (2.0, 2.1)]
    turns = [
        one
        for n, of in enumerate(speeds)
        for one in (
            made.decoded("swift", str(n), of[0], turn=1),
            made.decoded("swift", f"{n}/2", of[1], turn=2),
        )
    ]
    header = made.header("bench", methods=made.methods("swift"))
    (found,) = summarize(header, [sums_of(turn) for turn in turns], scores=False)
    # Greedy took 12 ms for each turn.
    whole = paired_ratio([24.0] * 6, [12 / first + 12 / second for first, second in speeds])
    assert found["speedup"] == pytest.approx(whole.value)
    assert (found["speedup_low"], found["speedup_high"]) == pytest.approx((whole.low, whole.high))
    again = [t["baseline_again_ms"] for t in turns]
    floor = noise([[(24.0, sum(again[2 * n : 2 * n + 2])) for n in range(6)]])
    assert floor is not None
    assert (found["noise_low"], found["noise_high"]) == pytest.approx((floor.low, floor.high))
    assert [found[f"n_{what}"] for what in ("examples", "questions", "timed")] == [12, 6, 6]


def test_a_method_whose_outputs_end_early_gains_nothing_by_their_shortness() -> None:
    early = timed(
        5,
        verdict="sampled",
        output_ids=[5, 6, 7],
        baseline_ids=[5, 6, 7, 8, 9],
        step_ms=[2.0] * 2,
        accepted=[0, 0],
    )
    # Greedy gave four tokens in 12 ms, the method two in 4 ms: 3 ms a token beside 2 ms.
    assert claim(early).value == pytest.approx(3 / 2)


def test_a_search_goes_by_what_nobody_may_claim_but_never_by_a_mismatch() -> None:
    assert measured(timed(2)) == pytest.approx(2)
    assert measured(timed(2, verdict="mismatch")) is None


def bench(folder: Path, n: int) -> Path:
    samples = [
        made.decoded(name, str(i), speed * (1 + 0.01 * i))
        for i in range(n)
        for name, speed in {"greedy": 1.0, "swift": 2.0}.items()
    ]
    return made.write(folder, made.header("bench", methods=METHODS), samples)


def decode(folder: Path, n: int) -> Path:
    samples = [made.decoded("swift", str(i), 2.0 + 0.01 * i) for i in range(n)]
    return made.write(folder, made.header("decode", methods=made.methods("swift")), samples)


def peers(folder: Path, n: int) -> Path:
    names = ("greedy", "transformers:greedy")
    samples = [
        made.decoded(name, str(i), speed)
        for i in range(n)
        for name, speed in zip(names, (1.0, 0.7), strict=True)
    ]
    return made.write(folder, made.header("bench", methods=made.methods(*names)), samples)


def sweep(folder: Path, n: int) -> Path:
    axes = {"exit_layer": [2, 4]}
    speeds = {sweeps.label(exit_layer=2): 1.5, sweeps.label(exit_layer=4): 0.7}
    return sweeps.write(folder, sweeps.header(axes, n), sweeps.cells(speeds, n))


def pipelined(folder: Path, n: int) -> Path:
    run = made.pipelined(folder)
    lines = (run / "samples.jsonl").read_text("utf-8").splitlines(keepends=True)
    (run / "samples.jsonl").write_text("".join(lines[:n]), "utf-8")
    return run


RUNS = [bench, decode, peers, sweep, pipelined]


def everything_said(folder: Path) -> str:
    """All formats of a run's own command, and the page about it without its raw data."""
    (run,) = read_runs([folder])
    output = outputs.of_run(run)
    told = [f(output.sheets) for f in (to_markdown, to_latex)]
    told += [to_csv([output.long])]
    return "\n".join([*told, page([run]).text.partition('id="data"')[0]])


def predicted(run: Run) -> list[str]:
    """What theory makes of match rates alone, which is no measurement."""
    figures = [figure for s in run.summaries for figure in s.items()]
    return [f"{value:.2f}x" for name, value in figures if name.startswith("predicted")]


@pytest.mark.parametrize("made_run", RUNS)
def test_of_few_examples_nothing_says_how_many_times_faster(
    made_run: Callable[[Path, int], Path], tmp_path: Path
) -> None:
    few, many = made_run(tmp_path / "few", 4), made_run(tmp_path / "many", 6)
    assert CLAIMS.search(everything_said(many))
    said = everything_said(few)
    (run,) = read_runs([few])
    assert set(CLAIMS.findall(said)) <= set(predicted(run))
    assert "too few examples" in said.lower()
    content = json.dumps(outputs.of_run(run).content)
    assert not re.search(r'"(speedup|best_over_second)[a-z_]*": [\d{]', content)
    assert '"too few examples"' in content


def test_the_headline_of_a_page_claims_nothing_of_few_examples(tmp_path: Path) -> None:
    text = page(read_runs([bench(tmp_path / "few", 1)])).text
    tiles = text.partition('class="tiles"')[2].partition("</ul>")[0]
    assert "too few examples" in tiles
    assert "the fastest" not in tiles
    assert "Nothing is faster" not in text


def test_noise_is_the_widest_of_all_and_as_wide_below_1_as_above() -> None:
    calm = [(10.0, 10.1)] * 5
    wild = [(10.0, 8.0)] * 5
    found = noise([calm, wild])
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(0.8), pytest.approx(1.25))


def test_of_few_examples_no_noise_is_known() -> None:
    assert noise([[(10.0, 9.0)] * 4]) is None
    assert noise([]) is None


def noisy(speed: float, again: float) -> list[dict[str, Any]]:
    return [
        made.decoded(name, str(i), s, baseline_again_ms=12.0 + 0.1 * (i % 2))
        for i in range(6)
        for name, s in {"greedy": again, "swift": speed}.items()
    ]


def test_greedy_as_a_method_of_the_run_counts_as_noise() -> None:
    sums = add_up(noisy(1.2, 1.5))
    greedy, swift = summarize(made.header("bench", methods=METHODS), sums, scores=False)
    assert (greedy["noise_low"], greedy["noise_high"]) == (swift["noise_low"], swift["noise_high"])
    assert swift["noise_high"] == pytest.approx(1.51, abs=0.01)
    assert swift["noise_low"] == pytest.approx(1 / swift["noise_high"])
    assert no_difference(swift) and swift["no_difference"]
    calm = overall(made.header("bench", methods=METHODS), add_up(noisy(1.2, 1.0)))
    assert not no_difference(calm[1]) and not calm[1]["no_difference"]


def test_one_table_names_one_noise(tmp_path: Path) -> None:
    samples = noisy(1.2, 1.5)
    run = made.write(tmp_path / "run", made.header("bench", methods=METHODS), samples)
    (sheet, *_) = outputs.of_run(read_runs([run])[0]).sheets
    floors = {row[-1] for row in sheet.rows if row[-2] == "noise floor"}
    (interval,) = floors
    assert [n for n in sheet.notes if "Greedy against itself" in n] == [
        f"Greedy against itself: {interval}, the noise of this machine."
    ]


def test_drawn_outputs_of_other_length_are_compared_by_the_step() -> None:
    longer = made.decoded("swift", baseline_again_ms=24.0, baseline_again_steps=8)
    assert sums_of(longer).again_ms == 12.0


def test_a_table_says_how_many_outputs_were_timed(tmp_path: Path) -> None:
    samples = [made.decoded("swift", str(i)) for i in range(5)]
    short = {"output_ids": [5], "step_ms": [], "draft_ms": [], "accepted": [], "proposed": []}
    short["rows"] = []
    samples += [made.decoded("swift", str(i), **short) for i in range(5, 8)]
    head = made.header("bench", methods=made.methods("swift"))
    run = made.write(tmp_path / "run", head, samples)
    (sheet, *_) = outputs.of_run(read_runs([run])[0]).sheets
    assert "8 examples, 5 timed" in sheet.title


def test_inexact_methods_are_called_so_when_tokens_are_drawn_too(tmp_path: Path) -> None:
    samples = [
        made.decoded(name, str(i), 2.0, verdict="sampled")
        for i in range(6)
        for name in ("early-exit", "layerskip")
    ]
    about = {**made.methods("early-exit", exact=False), **made.methods("layerskip")}
    head = made.header("bench", methods=about, config__target={"kind": "top-p"})
    output = outputs.of_run(read_runs([made.write(tmp_path / "run", head, samples)])[0])
    found = {row[0]: row[3] for row in output.sheets[0].rows}
    assert found == {
        "early-exit": "inexact, sampled (top-p)",
        "layerskip": "sampled (top-p)",
    }
