"""`ppdbench probe --what drafts`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppdbench.cli.common import (
    check_pictures,
    closing_notes,
    left_over,
    model_spec,
    notice,
    our_shard,
    told_elsewhere,
)
from ppdbench.report.progress import progress

if TYPE_CHECKING:
    from pathlib import Path

    from ppdbench.probe.drafts import DraftsConfig
    from ppdbench.runs.shards import Shard
    from ppdbench.runs.workload import FinishedRun


def config_of(
    what: str,
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    options: dict[str, Any],
    shard: Shard,
) -> DraftsConfig:
    """Build the options of a probe of methods, and set the machine up for it."""
    from ppdbench.bench.runner import Choice
    from ppdbench.engine.quiet import quiet
    from ppdbench.errors import ConfigError
    from ppdbench.machine.environment import set_threads
    from ppdbench.probe.drafts import DraftsConfig
    from ppdbench.runs.workload import usual_data

    if not methods:
        usual = "hidden-transfer" if what == "similarity" else "medusa"
        raise ConfigError(f"--what {what} needs --method: whose guesses, such as {usual}")
    quiet()
    set_threads(options["threads"], shard.on_machine)
    data = usual_data(options.pop("data"), options["model"])
    return DraftsConfig(
        model=model_spec(options),
        tasks=tasks or ("gsm8k",),
        data=data,
        methods=tuple(Choice.parse(text) for text in methods),
        **options,
    )


def folder_of(what: str, config: DraftsConfig, out: str | None, resume: bool) -> Path:
    """Return the folder of such a run."""
    from ppdbench.runs.running import run_folder

    names = "+".join(choice.name for choice in config.methods)
    return run_folder(out, resume, what, names, "+".join(config.tasks), config.model.name)


def probe_drafts(
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    calibration: str | None,
    plot: str | None,
    form: str,
    **options: Any,
) -> int:
    """Draft accuracy of methods on tasks, as tables and a picture; what trees are grown from."""
    from ppdbench.errors import ConfigError
    from ppdbench.probe.drafts import run_drafts
    from ppdbench.report import outputs
    from ppdbench.runs.running import Destination

    check_pictures(plot)
    if calibration is not None and len(methods) > 1:
        raise ConfigError(f"--calibration is of one method, but there are {len(methods)}")
    out, resume, asked = options.pop("out"), options.pop("resume"), options["model"]
    shard = our_shard(options, out, resume)
    config = config_of("drafts", tasks, methods, options, shard)
    folder = folder_of("drafts", config, out, resume)
    with progress() as report:
        to = Destination(out=folder, resume=resume, shard=shard, report=report)
        run = run_drafts(config, to)
    if told_elsewhere(run):
        return 0
    outputs.of_drafts(run.header, run.samples, str(folder)).emit(form)
    if plot is not None:
        from ppdbench.probe.accuracy import accuracies
        from ppdbench.report.pictures import probes
        from ppdbench.report.pictures.drawing import joined
        from ppdbench.report.pictures.files import save
        from ppdbench.report.probe_tables import label

        rows = accuracies(run.samples)
        drawn = probes.accuracies("probe", rows, panel="distance", line="method")
        save(joined(drawn, label(run.header), columns=len({row.distance for row in rows})), plot)
        notice(f"picture: {plot}")
    if calibration is not None:
        _calibrate(run, calibration)
    closing_notes(run, asked)
    return left_over(run)


def _calibrate(run: FinishedRun, path: str) -> None:
    """Write what trees are grown from, and say how sure it is."""
    from ppdbench.probe.accuracy import calibration

    (method,) = {sample["method"] for sample in run.samples}
    found = calibration(run.samples, method)
    found.save(path)
    if found.doubt():
        notice(f"warning: {found.doubt()}")
    notice(f"calibration: {path}")
