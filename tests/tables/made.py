"""Stored runs of known content, as a probe would have left them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import records

MODEL = {
    "name": "m",
    "revision": None,
    "weight_hash": "abc",
    "n_layers": 8,
    "dtype": "float32",
    "device": "cpu",
    "synthetic": False,
}


def write_run(folder: Path, kind: str, samples: Sequence[Mapping[str, Any]], **model: Any) -> Path:
    """A run folder with these samples."""
    cpu = {"model": "a processor"}
    return records.write_run(
        folder, kind, samples, model={**MODEL, **model}, environment={"cpu": cpu}
    )


def probed(
    task: str,
    number: int,
    ranks: Mapping[int, Sequence[int]],
    *,
    trained: Mapping[int, Sequence[int]] | None = None,
    target: str = "greedy",
) -> dict[str, Any]:
    """One sample of a probe: the ranks of the final tokens by layer."""
    n = len(next(iter(ranks.values())))
    sample: dict[str, Any] = {
        "example_id": str(number),
        "task": task,
        "method": "probe",
        "target": target,
        "verdict": "identical" if target == "greedy" else None,
        "prompt_ids": [1, 2],
        "output_ids": [3] * n,
        "ranks": {str(layer): list(found) for layer, found in ranks.items()},
    }
    if trained:
        sample["head_ranks"] = {str(layer): list(found) for layer, found in trained.items()}
    return sample


# Of 8 layers these lie where 10, 20, 30 and 35 of 40 do; 5 lies between.
EARLY = {2: 9, 4: 2, 5: 2, 6: 0, 7: 0}


def squad(folder: str, **model: Any) -> str:
    """Two examples of 16 tokens; after half of the layers 8 of 32 tokens are first choice."""
    samples = []
    for number in range(2):
        ranks = {layer: [rank] * 16 for layer, rank in EARLY.items()}
        ranks[4] = [0] * 8 + [2] * 8 if number else [2] * 16
        trained = {4: [0] * 16}
        samples.append(probed("squad", number, ranks, trained=trained))
    return str(write_run(Path(folder), "probe", samples, **model))
