"""`ppdbench probe`: how often each layer already holds the final token."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ppdbench.cli.common import (
    RunCommand,
    check_pictures,
    chosen_targets,
    draw,
    notice,
    parse_numbers,
    show_examples,
    what_is_asked,
)
from ppdbench.cli.help import Command
from ppdbench.cli.options import (
    compile_option,
    drawing_options,
    format_option,
    methods_option,
    model_options,
    run_options,
    show_option,
    task_options,
    tasks_option,
)
from ppdbench.errors import ConfigError
from ppdbench.machine.garbage import import_for_good

if TYPE_CHECKING:
    from ppdbench.probe.runner import ProbeConfig
    from ppdbench.probe.summary import Rate
    from ppdbench.runs.workload import FinishedRun


WHATS = ("matches", "drafts", "similarity")
# What not every kind of probe understands.
ONLY = {
    "matches": (
        *("layers", "ks", "targets", "top_k", "top_p", "min_p", "temperature", "bucket", "head"),
        *("stop_at_eos", "batch_size", "show_example", "show", "heatmap", "compile"),
    ),
    "drafts": ("methods", "calibration"),
    "similarity": ("methods",),
}


@click.command(
    "probe",
    cls=Command,
    first=(
        *("tasks", "model", "data", "limit", "max_new_tokens"),
        *("layers", "ks", "show", "plot", "out"),
    ),
)
@click.option(
    "--what",
    type=click.Choice(WHATS),
    default="matches",
    show_default=True,
    help="matches of layers with the final token; drafts: guesses of trained methods; similarity: "
    "of hidden-transfer's pseudo states with true ones.",
)
@methods_option("With --what drafts or similarity: whose guesses; may be repeated.")
@click.option(
    "--calibration", metavar="FILE", help="With --what drafts: what `tree build` grows trees from."
)
@tasks_option
@show_option
@click.option("--layers", help="Layers run: all (default), 4,8,12 or 2-6.")
@click.option("-k", "--k", "ks", default="1,3,5", show_default=True, help="Candidates, as 1,3,5.")
@click.option(
    "--target",
    "targets",
    multiple=True,
    help="How the final token is picked: greedy (default), top-k, top-p, min-p; repeatable.",
)
@drawing_options
@click.option("--bucket", type=int, help="Positions per bucket (the task's, or an eighth).")
@click.option(
    "--head", metavar="DIR", help="Trained heads (or `reference`, `smollm2`) beside its own."
)
@click.option(
    "--stop-at-eos/--full-length",
    default=None,
    help="End at EOS, or go on to full length, as papers do (end where a chat template is used).",
)
@click.option(
    "--batch-size",
    default=1,
    show_default=True,
    help="Examples decoded in step: faster, and in float32 with the same ranks.",
)
@click.option(
    "--show-example", type=int, metavar="N", help="Draw layers x tokens of example N, from 0."
)
@click.option("--plot", metavar="FILE", help="Write the curves as .png, .svg or .pdf.")
@click.option("--heatmap", metavar="FILE", help="Write layers x positions, for the smallest k.")
@compile_option
@task_options
@model_options
@run_options
@format_option
@click.pass_context
def command(ctx: click.Context, /, what: str, **options: Any) -> int:
    """Measure how often each layer's top k already holds the final token.

    With --what drafts: how often the guesses of methods trained to guess ahead hold the token
    that the model comes to by itself, by distance. With --what similarity: how close the pseudo
    states of hidden-transfer are to those that the true tokens have, layer by layer.

    \b
    ppdbench probe --task gsm8k --limit 8
    ppdbench probe --task squad --task wmt_en_fr --layers 4,8 -k 1,5
    ppdbench probe --model ./my-model --task xsum --data ./xsum.jsonl
    ppdbench probe --task gsm8k --limit 2 --show-example 0
    ppdbench probe --task squad --target greedy --target top-p --format csv
    ppdbench probe --what drafts --method medusa --task gsm8k --calibration ./medusa.json
    ppdbench probe --what similarity --method hidden-transfer --task gsm8k --plot ./similar.png
    """
    _check_asked(ctx, what)
    for name in {name for names in ONLY.values() for name in names}.difference(ONLY[what]):
        options.pop(name)
    if what == "matches":
        return _probe_matches(**options)
    from ppdbench.cli.drafts_probe import probe_methods

    return probe_methods(what, **options)


def _check_asked(ctx: click.Context, what: str) -> None:
    """Refuse options of other kinds of probe."""
    for parameter in ctx.command.params:
        name = str(parameter.name)
        given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        kinds = [kind for kind in WHATS if name in ONLY[kind]]
        if given and kinds and what not in kinds:
            named = " or ".join(kinds)
            raise ConfigError(f"{parameter.opts[-1]} goes with --what {named}, not {what}")


def _probe_matches(form: str, plot: str | None, heatmap: str | None, **options: Any) -> int:
    import_for_good("torch")
    from ppdbench.probe import summary
    from ppdbench.probe.buckets import stored_buckets
    from ppdbench.probe.ranks import StoredRanks
    from ppdbench.probe.runner import run_probe
    from ppdbench.report import outputs, probe_tables

    check_pictures(plot, heatmap)
    command = RunCommand.begin(options)
    layers, show = options.pop("layers"), options.pop("show")
    config = _config(options)
    make = partial(run_probe, config, layers)
    run = command.run(make, "probe", "+".join(config.tasks), config.model.name)
    if run is None:
        return 0
    ranks = StoredRanks(run.samples)
    rates = summary.match_rates(ranks, config.ks, stored_buckets(run.header, run.samples))
    _draw(plot, heatmap, rates, probe_tables.label(run.header))
    with command.showing(run):
        outputs.of_matches(run.header, run.samples, ranks, rates, str(run.path)).emit(form)
        _show(run, config, form)
        show_examples(run, show, form)
    _end_note(run, config)
    return command.end(run)


def _end_note(run: FinishedRun, config: ProbeConfig) -> None:
    """Say that outputs end with the text where nobody asked for that."""
    from ppdbench.runs.records import probing

    if probing(run.header).config.stop_at_eos and config.stop_at_eos is None:
        notice(
            "note: outputs end with the text, as chat templates let a model end; --full-length "
            "goes on, as papers do"
        )


def _config(options: dict[str, Any]) -> ProbeConfig:
    from ppdbench.probe.runner import ProbeConfig

    kinds = options.pop("targets") or ("greedy",)
    return ProbeConfig(
        **what_is_asked(options),
        targets=chosen_targets(kinds, options),
        ks=parse_numbers("-k", options.pop("ks")),
        **options,
    )


def _show(run: FinishedRun, config: ProbeConfig, form: str) -> None:
    """The per-token view of one example: on the terminal, and as a picture in the run folder."""
    if config.show_example is None:
        return
    from ppdbench.report.grid import grid_of, print_grid
    from ppdbench.report.pictures.token_grid import token_grid
    from ppdbench.report.probe_tables import label
    from ppdbench.report.terminal import people
    from ppdbench.runs.records import ProbedSample, probing

    probed = (sample for sample in run.samples if isinstance(sample, ProbedSample))
    sample = next((sample for sample in probed if sample.predictions is not None), None)
    if sample is None:
        notice(f"note: example {config.show_example} is not there yet; another shard has it")
        return
    grid = grid_of(sample, probing(run.header).config.layers, lambda token: run.spell([token]))
    print_grid(grid, people(stderr=form != "table"))
    picture = run.path / f"example-{config.show_example}.png"
    draw(token_grid(grid, label(run.header)), picture)


def _draw(
    plot: str | None,
    heatmap: str | None,
    rates: list[Rate],
    signature: str,
) -> None:
    """Pictures of the rates, where asked for."""
    if plot is None and heatmap is None:
        return
    from ppdbench.report.pictures.drawing import side_by_side
    from ppdbench.report.pictures.probes import match_curves, match_maps

    if plot is not None:
        draw(side_by_side(match_curves("probe", rates), signature), plot)
    if heatmap is not None:
        draw(side_by_side(match_maps("probe", rates, whole=True), signature), heatmap)
