"""`ppdbench probe --what similarity`: how close pseudo states are to true ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from ppdbench.cli.common import RunCommand, check_pictures, draw
from ppdbench.cli.drafts_probe import config_of, names_of


def probe_similarity(methods: tuple[str, ...], plot: str | None, form: str, **options: Any) -> int:
    """Measure how close pseudo states are to true ones, as a table and a picture."""
    from ppdbench.probe.cosines import Cosines
    from ppdbench.probe.drafts import run_drafts
    from ppdbench.report import outputs

    check_pictures(plot)
    command = RunCommand.begin(options)
    config = config_of("similarity", methods, options)
    make = partial(run_drafts, config, kind="similarity", measures=Cosines)
    run = command.run(make, *names_of("similarity", config))
    if run is None:
        return 0
    outputs.of_similarity(run.header, run.samples, str(run.path)).emit(form)
    if plot is not None:
        from ppdbench.probe.similarity import similarities
        from ppdbench.report.pictures.drawing import side_by_side
        from ppdbench.report.pictures.probes import similarity_curves
        from ppdbench.report.probe_tables import label

        curves = similarity_curves("probe", similarities(run.samples))
        draw(side_by_side(curves, label(run.header)), plot)
    return command.end(run)
