"""The lists of a decoding sample added up, once for all figures that are made of them.

Lists are nearly all of a sample. Who keeps the sums alone goes through a large run in the memory
of a small one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ppdbench.bench.degenerate import Degeneration, degenerate

Sample = Mapping[str, Any]

# A list for each token, each step or each piece of work: what the sums stand for.
LISTS = frozenset(
    {
        "prompt_ids",
        "output_ids",
        "baseline_ids",
        "accepted",
        "proposed",
        "rows",
        "step_ms",
        "draft_ms",
        "baseline_step_ms",
        "matches",
        "exits",
        "events",
    }
)


@dataclass(frozen=True, slots=True)
class SampleSums:
    """One sample in numbers; those of an example that failed are 0."""

    about: dict[str, Any]
    """The sample's other facts."""
    task: str
    method: str
    verdict: str
    tokens: int
    """Of the output, the first one included, which the prefill gives."""
    steps: int
    step_ms: float
    draft_ms: float
    proposed: int
    accepted: int
    accepted_each: tuple[int, ...]
    """Step by step."""
    baseline_tokens: int
    """Of greedy's output."""
    baseline_steps: int
    baseline_step_ms: float
    again_ms: float
    """Of as many steps of greedy decoding, done once more."""
    degenerate: Degeneration | None
    """The fault of the output, where it is empty or loops."""
    matches: bytes
    """Of `ppd`: for each token 1 if it was among its candidates, else 0."""

    @property
    def failed(self) -> bool:
        """True if there is no output."""
        return self.verdict == "failed"

    @property
    def question(self) -> tuple[str, str]:
        """The example's question: all turns of a conversation are one question."""
        name, turn = self.about["example_id"], self.about.get("turn", 1)
        return self.task, name if turn == 1 else name.removesuffix(f"/{turn}")

    @property
    def same_length(self) -> float:
        """The factor that makes a method's time that of as many tokens as greedy gave."""
        return self.as_long_as(self.baseline_steps)

    def as_long_as(self, steps: int) -> float:
        """The same for so many tokens after the first."""
        n = self.tokens - 1
        return steps / n if n > 0 else 0.0


def add_up(samples: Iterable[Sample]) -> list[SampleSums]:
    """The sums of each of these samples, none of which is kept."""
    return [sums_of(sample) for sample in samples]


def sums_of(sample: Sample) -> SampleSums:
    """The sums of one sample."""
    step_ms, baseline_step_ms = sample.get("step_ms", ()), sample.get("baseline_step_ms", ())
    return SampleSums(
        about={name: value for name, value in sample.items() if name not in LISTS},
        task=sample["task"],
        method=sample["method"],
        verdict=sample["verdict"],
        tokens=len(sample["output_ids"]),
        steps=len(step_ms),
        step_ms=sum(step_ms),
        draft_ms=sum(sample.get("draft_ms", ())),
        proposed=sum(sample.get("proposed", ())),
        accepted=sum(sample.get("accepted", ())),
        accepted_each=tuple(sample.get("accepted", ())),
        # Stored where it differs from the method's.
        baseline_tokens=len(sample.get("baseline_ids", sample["output_ids"])),
        baseline_steps=len(baseline_step_ms),
        baseline_step_ms=sum(baseline_step_ms),
        again_ms=_as_often(sample, len(baseline_step_ms)),
        degenerate=_degenerate(sample),
        matches=bytes(sample.get("matches", ())),
    )


def _as_often(sample: Sample, steps: int) -> float:
    """Greedy decoding once more, for so many steps: drawn outputs differ in length."""
    ms: float = sample.get("baseline_again_ms", 0.0)
    took: int = sample.get("baseline_again_steps", steps)
    return ms * steps / took if took else 0.0


def _degenerate(sample: Sample) -> Degeneration | None:
    """Name what is wrong with an output; one that failed has nothing wrong."""
    if sample["verdict"] == "failed":
        return None
    return degenerate(sample["output_ids"], sample.get("text"))
