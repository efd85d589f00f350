"""`ppdbench probe --what drafts`: how often guesses of trained methods are right."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ppdbench.cli.common import RunCommand, check_pictures, draw, notice, what_is_asked
from ppdbench.errors import ConfigError
from ppdbench.trees.guessing import guessers

if TYPE_CHECKING:
    from ppdbench.probe.drafts import DraftsConfig
    from ppdbench.runs.workload import FinishedRun


def config_of(what: str, methods: tuple[str, ...], options: dict[str, Any]) -> DraftsConfig:
    """Build the options of a probe of methods."""
    from ppdbench.bench.runner import Choice
    from ppdbench.probe.drafts import DraftsConfig

    if not methods:
        able = guessers("pseudo_states" if what == "similarity" else None)
        raise ConfigError(f"--what {what} needs --method: whose guesses, such as {able[0]}")
    return DraftsConfig(
        **what_is_asked(options), methods=tuple(map(Choice.parse, methods)), **options
    )


def names_of(what: str, config: DraftsConfig) -> tuple[str, ...]:
    """List what names the folder of such a run."""
    methods = "+".join(choice.name for choice in config.methods)
    return what, methods, "+".join(config.tasks), config.model.name


def probe_drafts(
    methods: tuple[str, ...],
    calibration: str | None,
    plot: str | None,
    form: str,
    **options: Any,
) -> int:
    """Draft accuracy of methods on tasks, as tables and a picture; what trees are grown from."""
    from ppdbench.probe.drafts import run_drafts
    from ppdbench.report import outputs

    check_pictures(plot)
    if calibration is not None and len(methods) > 1:
        raise ConfigError(f"--calibration is of one method, but there are {len(methods)}")
    command = RunCommand.begin(options)
    config = config_of("drafts", methods, options)
    run = command.run(partial(run_drafts, config), *names_of("drafts", config))
    if run is None:
        return 0
    outputs.of_drafts(run.header, run.samples, str(run.path)).emit(form)
    if plot is not None:
        from ppdbench.probe.accuracy import accuracies
        from ppdbench.report.pictures.drawing import side_by_side
        from ppdbench.report.pictures.probes import accuracy_curves
        from ppdbench.report.probe_tables import label

        rows = accuracies(run.samples)
        curves = accuracy_curves("probe", rows, panel="distance", line="method")
        distances = len({row.distance for row in rows})
        draw(side_by_side(curves, label(run.header), columns=distances), plot)
    if calibration is not None:
        _calibrate(run, calibration)
    return command.end(run)


def _calibrate(run: FinishedRun, path: str) -> None:
    """Write what trees are grown from, and say how sure it is."""
    from ppdbench.probe.accuracy import calibration

    (method,) = {sample.method for sample in run.samples}
    found = calibration(run.samples, method)
    found.save(path)
    if found.doubt():
        notice(f"warning: {found.doubt()}")
    notice(f"calibration: {path}")
