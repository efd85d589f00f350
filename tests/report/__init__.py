"""Reports tested on small made-up runs."""

from pathlib import Path
from typing import Any

from tests import records

N_LAYERS = 4
EARLY = {
    # Layer 2 with k=1: a miss in the middle of `a`, a miss on the last token of `b`.
    "a": {"1": [9, 9, 9, 9], "2": [0, 3, 0, 0], "3": [0, 0, 0, 0], "4": [0, 0, 0, 0]},
    "b": {"1": [0, 9, 9], "2": [0, 0, 1], "3": [0, 0, 1], "4": [0, 0, 0]},
}


def probe_sample(example_id: str = "a", **changes: Any) -> dict[str, Any]:
    """One line of a probe run's samples."""
    ranks = EARLY[example_id]
    return {
        "example_id": example_id,
        "task": "squad",
        "method": "probe",
        "target": "greedy",
        "prompt_ids": [1],
        "output_ids": list(range(len(ranks["1"]))),
        "verdict": "identical",
        "ranks": ranks,
        **changes,
    }


def write_run(folder: Path, samples: list[dict[str, Any]], **header: Any) -> Path:
    """A run folder with these samples."""
    base = {"config": {"ks": [1, 4]}, "model": {"name": "tiny", "n_layers": N_LAYERS}}
    kind = header.pop("kind", "probe")
    return records.write_run(folder, kind, samples, **{**base, **header})
