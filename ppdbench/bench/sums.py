"""The lists of a decoding sample added up, once for all figures that are made of them.

Lists are nearly all of a sample. Who keeps the sums alone goes through a large run in the memory
of a small one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from ppdbench.bench.degenerate import Degeneration, degenerate
from ppdbench.runs.records import DecodedSample, Decoding, FailedSample, FullBatch, Sample

# A list for each token, each step or each piece of work: what the sums stand for.
LISTS = (
    *("prompt_ids", "output_ids", "accepted", "proposed", "rows", "step_ms", "draft_ms"),
    *("baseline_step_ms", "baseline_ids", "matches", "exits", "events"),
)


@dataclass(frozen=True, slots=True)
class SampleSums:
    """One sample in numbers; those of an example that failed are 0."""

    about: Decoding
    """The rest of what the sample says, without its lists."""
    task: str
    method: str
    verdict: str | None
    tokens: int
    """Of the output, the first one included, which the prefill gives."""
    steps: int = 0
    step_ms: float = 0
    """Of the steps that count: in a batch those while it was full, else all."""
    timed_steps: int = 0
    """The number of these steps."""
    timed_tokens: int = 0
    """The tokens that they gave."""
    every_ms: float = 0
    """Of all steps."""
    draft_ms: float = 0
    proposed: int = 0
    accepted: int = 0
    rows: int = 0
    """Of all verifying passes."""
    accepted_each: tuple[int, ...] = ()
    """Step by step."""
    baseline_tokens: int = 0
    """Of greedy's output."""
    baseline_steps: int = 0
    """Of those that count, as of all that follows."""
    baseline_step_ms: float = 0
    baseline_every_ms: float = 0
    """Of all its steps."""
    again_ms: float = 0.0
    """Of as many steps of greedy decoding, done once more."""
    degenerate: Degeneration | None = None
    """The fault of the output, where it is empty or loops."""
    matches: bytes = b""
    """Of `ppd`: for each token 1 if it was among its candidates, else 0."""

    @property
    def failed(self) -> bool:
        """True if there is no output."""
        return self.verdict == "failed"

    @property
    def sample(self) -> DecodedSample:
        """The rest of a sample that has not failed."""
        assert isinstance(self.about, DecodedSample)
        return self.about

    @property
    def question(self) -> tuple[str, str]:
        """The example's question: all turns of a conversation are one question."""
        return self.task, self.about.question

    @property
    def same_length(self) -> float:
        """The factor that makes a method's time that of as many tokens as greedy gave."""
        return self.as_long_as(self.baseline_steps)

    def as_long_as(self, steps: int) -> float:
        """The same for so many tokens."""
        return steps / self.timed_tokens if self.timed_tokens else 0.0


def add_up(samples: Iterable[Sample]) -> list[SampleSums]:
    """The sums of each of these samples of a run that decodes, none of which is kept."""
    return [sums_of(sample) for sample in samples if isinstance(sample, Decoding)]


def sums_of(sample: Decoding) -> SampleSums:
    """The sums of one sample."""
    whose = sample.task, sample.method, sample.verdict
    if isinstance(sample, FailedSample):
        return SampleSums(replace(sample, prompt_ids=()), *whose, len(sample.output_ids))
    ours, theirs, again = _counted(sample)
    return SampleSums(
        replace(sample, **dict.fromkeys(LISTS, ())),
        *whose,
        tokens=len(sample.output_ids),
        steps=len(sample.step_ms),
        step_ms=ours.ms,
        timed_steps=ours.steps,
        timed_tokens=ours.tokens,
        every_ms=sum(sample.step_ms),
        draft_ms=sum(sample.draft_ms),
        proposed=sum(sample.proposed),
        accepted=sum(sample.accepted),
        rows=sum(sample.rows),
        accepted_each=tuple(sample.accepted),
        # Stored where it differs from the method's.
        baseline_tokens=len(
            sample.output_ids if sample.baseline_ids is None else sample.baseline_ids
        ),
        baseline_steps=theirs.steps,
        baseline_step_ms=theirs.ms,
        baseline_every_ms=sum(sample.baseline_step_ms),
        # Greedy decoding once more, for so many steps: drawn outputs differ in length.
        again_ms=again.ms * theirs.steps / again.steps if again.steps else 0.0,
        degenerate=degenerate(sample.output_ids, sample.text),
        matches=bytes(sample.matches or ()),
    )


def _counted(sample: DecodedSample) -> tuple[FullBatch, FullBatch, FullBatch]:
    """The steps that count of the method, of greedy decoding and of greedy decoding once more."""
    if sample.batch > 1:
        nothing = FullBatch(ms=0, steps=0, tokens=0)
        parts = (sample.full, sample.baseline_full, sample.baseline_again_full)
        ours, theirs, again = (part or nothing for part in parts)
        return ours, theirs, again
    steps = len(sample.baseline_step_ms)
    again_steps = steps if sample.baseline_again_steps is None else sample.baseline_again_steps
    return (
        FullBatch(
            ms=sum(sample.step_ms),
            steps=len(sample.step_ms),
            tokens=max(0, len(sample.output_ids) - 1),
        ),
        FullBatch(ms=sum(sample.baseline_step_ms), steps=steps, tokens=steps),
        FullBatch(ms=sample.baseline_again_ms, steps=again_steps, tokens=again_steps),
    )
