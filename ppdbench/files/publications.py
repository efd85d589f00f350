"""Papers: their names and where they are to be read; those that tables are laid out for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Publication:
    """A paper, or what stands for one, and where it is to be read."""

    title: str
    link: str

    def __str__(self) -> str:
        return f"{self.title}, {self.link}"


def arxiv(number: str, title: str) -> Publication:
    """A paper that lies at arXiv under this number."""
    return Publication(title, f"https://arxiv.org/abs/{number}")


PPD = arxiv(
    "2307.05908",
    "Predictive Pipelined Decoding: A Compute-Latency Trade-off for Exact LLM Decoding",
)
LAYERSKIP = arxiv(
    "2404.16710", "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding"
)
HIDDEN_TRANSFER = arxiv(
    "2404.12022",
    "Parallel Decoding via Hidden Transfer for Lossless Large Language Model Acceleration",
)
PROMPT_TOKENS = arxiv(
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
