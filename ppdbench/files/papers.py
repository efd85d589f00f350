"""The papers: what they are called, and the numbers that they print.

The numbers lie in `results/papers/`, one YAML file a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ppdbench.errors import UnknownName
from ppdbench.files.resources import folder

Paper = Mapping[str, Any]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where it is built in


@dataclass(frozen=True, slots=True)
class Publication:
    """A paper, or what stands for one, and where it is to be read."""

    title: str
    link: str

    def __str__(self) -> str:
        return f"{self.title}, {self.link}"


def _arxiv(number: str, title: str) -> Publication:
    return Publication(title, f"https://arxiv.org/abs/{number}")


PPD = _arxiv(
    "2307.05908",
    "Predictive Pipelined Decoding: A Compute-Latency Trade-off for Exact LLM Decoding",
)
LAYERSKIP = _arxiv(
    "2404.16710", "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding"
)
HIDDEN_TRANSFER = _arxiv(
    "2404.12022",
    "Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration",
)
PROMPT_TOKENS = _arxiv(
    "2405.18628",
    "Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference",
)
# Those whose tables `table` lays out, by how the names of the tables begin.
TABLED = {
    "ppd": PPD,
    "layerskip": LAYERSKIP,
    "hidden_transfer": HIDDEN_TRANSFER,
    "prompt_ppd": PROMPT_TOKENS,
}
# What the methods come from.
BEHIND = {
    "ppd": (PPD,),
    "layerskip": (LAYERSKIP,),
    "hidden-transfer": (HIDDEN_TRANSFER,),
    "prompt-tokens": (PROMPT_TOKENS,),
    "draft-verify": (
        _arxiv(
            "2309.08168",
            "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative "
            "Decoding",
        ),
    ),
    "speculative": (
        _arxiv("2211.17192", "Fast Inference from Transformers via Speculative Decoding"),
    ),
    "prompt-lookup": (
        Publication(
            "Prompt Lookup Decoding", "https://github.com/apoorvumang/prompt-lookup-decoding"
        ),
    ),
    "lookahead": (
        _arxiv(
            "2402.02057",
            "Break the Sequential Dependency of LLM Inference Using Lookahead Decoding",
        ),
    ),
    "jacobi": (
        _arxiv(
            "2305.10427", "Accelerating Transformer Inference for Translation via Parallel Decoding"
        ),
    ),
    "rest": (_arxiv("2311.08252", "REST: Retrieval-Based Speculative Decoding"),),
    "medusa": (
        _arxiv(
            "2401.10774",
            "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
        ),
    ),
    "eagle": (
        _arxiv("2401.15077", "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty"),
        _arxiv(
            "2406.16858",
            "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees",
        ),
        _arxiv(
            "2503.01840",
            "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via "
            "Training-Time Test",
        ),
    ),
    "early-exit": (_arxiv("2207.07061", "Confident Adaptive Language Modeling"),),
}


def names() -> list[str]:
    """All tables and figures as PAPER/N, those of a paper in its own order."""
    return sorted(_files(), key=lambda name: (name.split("/")[0], len(name), name))


def paper_of(name: str) -> Publication:
    """The paper that prints a table."""
    return TABLED[name.partition("/")[0]]


def read(name: str) -> Paper:
    """The printed numbers of one table, and their setting."""
    files = _files()
    if name not in files:
        raise UnknownName("table", name, files)
    content: Paper = yaml.load(files[name].read_text("utf-8"), Loader=LOADER)
    return content


def _files() -> dict[str, Path]:
    """`ppd_table2.yaml` is ppd/2, `ppd_figures.yaml` is ppd/figures."""
    found = {}
    for path in folder("papers").glob("*.yaml"):
        paper, _, number = path.stem.rpartition("_")
        found[f"{paper}/{number.removeprefix('table')}"] = path
    return found
