"""Run headers: all that a run folder says about itself, enough to repeat the run."""

from __future__ import annotations

import dataclasses
import sys
from datetime import datetime, timezone
from typing import Any

from ppdbench import __version__
from ppdbench.engine.loading import Loaded
from ppdbench.machine.environment import describe
from ppdbench.runs.workload import RunConfig, Workload


def run_header(kind: str, config: RunConfig, loaded: Loaded, work: Workload) -> dict[str, Any]:
    """The content of `run.json`, without the schema version."""
    staged = loaded.staged
    return {
        "kind": kind,
        "ppdbench": __version__,
        "command": ["ppdbench", *sys.argv[1:]],
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "config": _settings(config),
        "model": {
            "name": loaded.spec.name,
            "revision": loaded.spec.revision,
            "weight_hash": loaded.fingerprint,
            "family": staged.model.config.model_type,
            "n_layers": staged.n_layers,
            "hidden_size": staged.hidden_size,
            "vocab_size": staged.vocab_size,
            "dtype": staged.precision,
            "device": str(staged.device),
            "synthetic": loaded.spec.is_synthetic,
        },
        "layers": staged.layers_by_place(),
        "data": work.sources,
        "environment": describe(),
    }


def _settings(config: RunConfig) -> dict[str, Any]:
    """The configuration, less what has no influence on results."""
    settings = dataclasses.asdict(config)
    del settings["model"]["offline"]
    return settings
