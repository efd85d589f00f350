"""`ppdbench theory`: what Predictive Pipelined Decoding would cost, before running it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from ppdbench.cli.common import check_pictures, draw, parse_numbers, reading_notes
from ppdbench.cli.help import Command
from ppdbench.cli.options import format_option, salvaging
from ppdbench.errors import ConfigError

if TYPE_CHECKING:
    from ppdbench import theory
    from ppdbench.report.sheet import Sheet

DEFAULT_TOKENS = 128
NUMBERS = ("layers", "exit_after", "k", "p")  # what the formulas cannot do without
ONLY_WITH_RUN = ("head", "task", "target")
NOT_WITH_RUN = {
    "p": "the run has measured it",
    "layers": "the run's model has its own",
    "tokens": "the run's outputs have their own lengths",
    "simulate": "the run's recorded matches are counted instead",
}


@dataclass(slots=True)
class TheoryOutput:
    """The tables to print and the pictures to draw."""

    sheets: list[Sheet] = field(default_factory=list)
    json: dict[str, Any] = field(default_factory=dict)
    series: dict[str, list[theory.FigurePoint]] = field(default_factory=dict)
    measured: str = "measured"  # which of the run's points are in the figures


@click.command(
    "theory",
    cls=Command,
    first=("layers", "exit_after", "k", "p", "tokens", "run", "figures", "plot", "form"),
)
@click.option("--layers", type=int, help="Layers of the model.")
@click.option("--exit-after", type=int, help="Layers that run before the candidates are read.")
@click.option("-k", "--k", "k", help="Candidates; with --run also several: 1,3,5.")
@click.option("--p", type=float, help="Match rate, 0..1.")
@click.option("--tokens", type=int, help=f"Tokens to generate ({DEFAULT_TOKENS}).")
@click.option("--run", metavar="DIR", help="Take match rates from this probe run.")
@click.option("--head", type=click.Choice(["N", "Y"]), help="The model's head (N), trained (Y).")
@click.option("--task", help="Only this task of the run.")
@click.option("--target", help="Only this target of the run: greedy, top-k, top-p or min-p.")
@click.option("--figures", is_flag=True, help="Figures 3 and 4; with --run, measured beside them.")
@click.option("--plot", metavar="FILE", help="Draw Figures 3 and 4 as .png, .svg or .pdf.")
@click.option("--simulate", type=int, metavar="RUNS", help="Also play this many generations.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulation.")
@salvaging("run")
@format_option
def command(figures: bool, plot: str | None, form: str, **options: Any) -> None:
    """Latency and compute that match rates promise.

    From numbers, by the formulas of Predictive Pipelined Decoding (equations 3, 5 and 6,
    Theorem 4.1), or from a probe run, where the recorded matches are counted as well.

    \b
    ppdbench theory --layers 40 --exit-after 20 --k 3 --p 0.6837
    ppdbench theory --layers 40 --exit-after 30 --k 3 --p 0.8 --simulate 1000
    ppdbench theory --run results/my-probe --plot tradeoff.png
    ppdbench theory --run results/my-probe --figures --format csv
    """
    from ppdbench.report.export import emit

    _check_combination(options, figures)
    if options["k"] is not None:
        options["k"] = parse_numbers("-k", options["k"])
    check_pictures(plot)
    answer = TheoryOutput()
    if options["run"]:
        _from_run(answer, options, form, drawn=bool(figures or plot))
    elif options["p"] is not None:
        _from_numbers(answer, options)
    if figures:
        _add_figures(answer, form)
    if plot is not None:
        _draw(answer, plot)
    emit(answer.sheets, answer.json, form)


def _check_combination(options: dict[str, Any], figures: bool) -> None:
    given = {name for name, value in options.items() if value is not None}
    if "run" in given:
        for name, reason in NOT_WITH_RUN.items():
            if name in given:
                raise ConfigError(f"--{name} and --run exclude each other: {reason}")
        return
    for name in ONLY_WITH_RUN:
        if name in given:
            raise ConfigError(f"--{name} chooses among the rows of a run; add --run DIR")
    missing = [f"--{name.replace('_', '-')}" for name in NUMBERS if name not in given]
    asked = given - {"seed"}
    if missing and (asked or not figures):
        raise ConfigError(
            f"missing {', '.join(missing)}; give all of --layers, --exit-after, --k and --p, "
            "or --run DIR, or --figures for the paper's own"
        )


def _from_numbers(answer: TheoryOutput, options: dict[str, Any]) -> None:
    from ppdbench import theory
    from ppdbench.report import theory_tables

    layers, exit_after, ks, p = (options[name] for name in NUMBERS)
    if len(ks) > 1:
        raise ConfigError("--k: one value with --p, since every k has a match rate of its own")
    (k,) = ks
    tokens = DEFAULT_TOKENS if options["tokens"] is None else options["tokens"]
    tradeoff = theory.tradeoff(layers, exit_after, k, p, tokens)
    runs, seed = options["simulate"], options["seed"]
    simulation = None
    if runs is not None:
        simulation = theory.simulate(layers, exit_after, k, p, tokens, runs, seed)
    title = f"{layers} layers, exit after {exit_after}, k={k}, p={p}, {tokens} tokens"
    answer.sheets.append(theory_tables.given_sheet(title, tokens, tradeoff, simulation))
    answer.json.update(theory_tables.given_json(tradeoff, simulation, seed))
    rate = theory.MatchRate("given numbers", k, trained=False, match_rate=p)
    answer.series["given"] = theory.figure_points([rate], n_layers=layers, exit_after=exit_after)


def _from_run(answer: TheoryOutput, options: dict[str, Any], form: str, drawn: bool) -> None:
    from ppdbench.report import theory_tables
    from ppdbench.runs.store import read_whole

    run = read_whole(options["run"])
    reading_notes([run])
    chosen = {name: options[name] for name in ("exit_after", *ONLY_WITH_RUN)}
    measured = theory_tables.measured_rows(run, theory_tables.RowFilter(ks=options["k"], **chosen))
    table = theory_tables.run_sheets(measured)
    answer.sheets += table if form == "table" else [theory_tables.run_sheet(measured)]
    answer.json.update(measured.to_json())
    if drawn:
        answer.series["measured"], answer.measured = theory_tables.measured_points(measured)


def _add_figures(answer: TheoryOutput, form: str) -> None:
    from ppdbench.report import theory_tables

    series = {"paper": theory_tables.paper_points(), **answer.series}
    answer.series = series
    # A number typed in has no task and no head to be listed under; it is drawn all the same.
    listed = {name: points for name, points in series.items() if name != "given"}
    notes = [answer.measured] if "measured" in listed else []
    sheet = theory_tables.figure_sheet(listed, notes, terminal=form == "table")
    answer.sheets.append(sheet)
    answer.json["figures"] = theory_tables.figure_json(listed)


def _draw(answer: TheoryOutput, path: str) -> None:
    from ppdbench.report import theory_tables
    from ppdbench.report.pictures.theory import tradeoff_picture

    names = {"measured": answer.measured}
    series = {names.get(name, name): points for name, points in answer.series.items()}
    if set(series) == {"given"}:
        # One point alone says nothing; the paper's show where it lies.
        series = {"paper": theory_tables.paper_points(), **series}
    draw(tradeoff_picture(series), path)
