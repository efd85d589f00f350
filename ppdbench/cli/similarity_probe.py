"""`ppdbench probe --what similarity`."""

from __future__ import annotations

from typing import Any

from ppdbench.cli.common import (
    check_pictures,
    closing_notes,
    left_over,
    notice,
    our_shard,
    told_elsewhere,
)
from ppdbench.cli.drafts_probe import config_of, folder_of
from ppdbench.report.progress import progress


def probe_similarity(
    tasks: tuple[str, ...],
    methods: tuple[str, ...],
    plot: str | None,
    form: str,
    **options: Any,
) -> int:
    """Measure how close pseudo states are to true ones, as a table and a picture."""
    from ppdbench.probe.drafts import run_drafts
    from ppdbench.probe.similarity import Cosines
    from ppdbench.report import outputs
    from ppdbench.runs.running import Destination

    check_pictures(plot)
    out, resume, asked = options.pop("out"), options.pop("resume"), options["model"]
    shard = our_shard(options, out, resume)
    config = config_of("similarity", tasks, methods, options, shard)
    folder = folder_of("similarity", config, out, resume)
    with progress() as report:
        to = Destination(out=folder, resume=resume, shard=shard, report=report)
        run = run_drafts(config, to, kind="similarity", measures=Cosines)
    if told_elsewhere(run):
        return 0
    outputs.of_similarity(run.header, run.samples, str(folder)).emit(form)
    if plot is not None:
        from ppdbench.probe.closeness import similarities as measured
        from ppdbench.report.pictures.drawing import joined
        from ppdbench.report.pictures.files import save
        from ppdbench.report.pictures.probes import similarities
        from ppdbench.report.probe_tables import label

        drawn = similarities("probe", measured(run.samples))
        save(joined(drawn, label(run.header)), plot)
        notice(f"picture: {plot}")
    closing_notes(run, asked)
    return left_over(run)
