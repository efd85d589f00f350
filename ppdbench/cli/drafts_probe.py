"""`ppdbench probe --what drafts` and `--what similarity`: what methods guess with, and how well."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ppdbench.cli.common import RunCommand, check_pictures, draw, notice, what_is_asked
from ppdbench.errors import ConfigError
from ppdbench.files.paths import check_writable
from ppdbench.trees.guessing import guessers

if TYPE_CHECKING:
    from ppdbench.probe.drafts import DraftsConfig, Measures
    from ppdbench.report.pictures.drawing import Drawing
    from ppdbench.runs.workload import FinishedRun

SIMILARITY = "similarity"


def probe_methods(
    what: str,
    methods: tuple[str, ...],
    plot: str | None,
    form: str,
    calibration: str | None = None,
    **options: Any,
) -> int:
    """Probe methods on tasks; print tables, draw a picture, write what trees are grown from."""
    from ppdbench.probe.drafts import run_drafts
    from ppdbench.report import outputs

    check_pictures(plot)
    if calibration is not None:
        check_writable(calibration)
    if calibration is not None and len(methods) > 1:
        raise ConfigError(f"--calibration is of one method, but there are {len(methods)}")
    command = RunCommand.begin(options)
    if calibration is not None and command.shard.is_job:
        raise ConfigError("--calibration is of all examples, which no shard has; leave one out")
    config = _config(what, methods, options)
    named = "+".join(choice.name for choice in config.methods)
    make = partial(run_drafts, config, kind=what, measures=_measures(what))
    run = command.run(make, what, named, "+".join(config.tasks), config.model.name)
    if run is None:
        return 0
    output_of = outputs.of_similarity if what == SIMILARITY else outputs.of_drafts
    with command.showing(run):
        output_of(run.header, run.samples, str(run.path)).emit(form)
    if plot is not None:
        draw(_curves(run), plot)
    if calibration is not None:
        _calibrate(run, calibration)
    return command.end(run)


def _config(what: str, methods: tuple[str, ...], options: dict[str, Any]) -> DraftsConfig:
    from ppdbench.bench.runner import Choice
    from ppdbench.probe.drafts import DraftsConfig

    if not methods:
        able = guessers("pseudo_states" if what == SIMILARITY else None)
        raise ConfigError(f"--what {what} needs --method: whose guesses, such as {able[0]}")
    return DraftsConfig(
        **what_is_asked(options), methods=tuple(map(Choice.parse, methods)), **options
    )


def _measures(what: str) -> Measures | None:
    """The measures of a method, where they are not the ranks of its guesses."""
    if what != SIMILARITY:
        return None
    from ppdbench.probe.cosines import Cosines

    return Cosines


def _curves(run: FinishedRun) -> Drawing:
    from ppdbench.probe.accuracy import accuracies
    from ppdbench.probe.similarity import similarities
    from ppdbench.report.pictures.drawing import side_by_side
    from ppdbench.report.pictures.probes import accuracy_curves, similarity_curves
    from ppdbench.report.probe_tables import label

    foot = label(run.header)
    if run.header.kind == SIMILARITY:
        return side_by_side(similarity_curves("probe", similarities(run.samples)), foot)
    rows = accuracies(run.samples)
    curves = accuracy_curves("probe", rows, panel="distance", line="method")
    return side_by_side(curves, foot, columns=len({row.distance for row in rows}))


def _calibrate(run: FinishedRun, path: str) -> None:
    """Write what trees are grown from, and say how sure it is."""
    from ppdbench.probe.accuracy import calibration

    (method,) = {sample.method for sample in run.samples}
    found = calibration(run.header, run.samples, method)
    found.save(path)
    if found.doubt():
        notice(f"warning: {found.doubt()}")
    notice(f"calibration: {path}")
