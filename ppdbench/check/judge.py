"""One figure now against one before, under one rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ppdbench.check.figures import Figure, Part, by_question, rate
from ppdbench.check.metrics import METRICS, Rule
from ppdbench.stats import Change, Ratio, paired_change

CheckVerdict = Literal["ok", "better", "FAILED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison and its verdict; `note` says why wherever that is not plain."""

    task: str
    subject: str
    metric: str
    baseline: float | None
    now: float | None
    limit: str
    verdict: CheckVerdict
    note: str = ""

    @property
    def failed(self) -> bool:
        """True if this check ends in exit code 1."""
        return self.verdict == "FAILED"

    @property
    def name(self) -> str:
        """The name of what was checked, in one line."""
        return f"{self.task}: {self.subject}, {self.metric}"

    def text(self, value: float | None) -> str:
        """A value of this metric as people read it."""
        return METRICS.get(self.metric).text(value)

    @property
    def sentence(self) -> str:
        """The numbers and why, in one line."""
        words = f"{self.text(self.now)}, baseline {self.text(self.baseline)}, limit {self.limit}"
        return f"{words}; {self.note}" if self.note else words


@dataclass(frozen=True, slots=True)
class Pairs:
    """The examples that finished both times, and what they were counted as."""

    examples: list[str]
    questions: list[str]
    before: list[Part]
    now: list[Part]

    @classmethod
    def of(
        cls, examples: Sequence[str], questions: Sequence[str], before: Figure, now: Figure
    ) -> Pairs:
        """Pair what two figures have in common."""
        pairs = zip(examples, questions, before.parts, now.parts, strict=True)
        found = [(e, q, b, n) for e, q, b, n in pairs if b is not None and n is not None]
        return cls(
            [example for example, _, _, _ in found],
            [question for _, question, _, _ in found],
            [before for _, _, before, _ in found],
            [now for _, _, _, now in found],
        )

    @property
    def by_question(self) -> tuple[list[Part], list[Part]]:
        """Both sides with the turns of a conversation added up."""
        return by_question(self.questions, self.before), by_question(self.questions, self.now)

    @property
    def changed(self) -> list[str]:
        """The examples whose counts differ."""
        triples = zip(self.examples, self.before, self.now, strict=True)
        return [example for example, before, now in triples if before != now]


def check_figure(
    figure: Figure, pairs: Pairs, rule: Rule, *, alike: bool, noise: float = 1.0
) -> Check | None:
    """A verdict, or None where there is nothing to compare.

    `alike` says whether the machines round alike, without which nothing can be demanded to be
    exactly equal; `noise` is the factor that a speedup may lose to the noise of both runs.
    """
    before, now = rate(pairs.before), rate(pairs.now)
    if before is None:
        return None
    limit, verdict, note = _outcome(figure.metric, pairs, rule, alike, noise)
    return Check(
        task=figure.task,
        subject=figure.subject,
        metric=figure.metric,
        baseline=before,
        now=now,
        limit=limit,
        verdict=verdict,
        note=note,
    )


Ruling = tuple[str, CheckVerdict, str]  # limit, verdict, note
PLAIN: Ruling = ("equal", "ok", "")


def _outcome(metric: str, pairs: Pairs, rule: Rule, alike: bool, noise: float) -> Ruling:
    if rate(pairs.now) is None:
        return "some", "FAILED", "nothing left to count"
    changed = pairs.changed
    if rule.kind != "exact":
        return _no_lower(metric, pairs, rule, noise)
    if alike or not changed:
        return ("equal", "FAILED", f"changed in {_listed(changed)}") if changed else PLAIN
    limit, verdict, note = _no_lower(metric, pairs, rule, noise)
    where = f"another machine, changed in {_listed(changed)}"
    return limit, verdict, f"{where}; {note}" if note else where


def _no_lower(metric: str, pairs: Pairs, rule: Rule, noise: float) -> Ruling:
    """A drop below what is allowed fails if the limit is firm, or the interval has no 0."""
    before, now = rate(pairs.before), rate(pairs.now)
    assert before is not None
    assert now is not None
    allowed = before * min(1 - rule.amount, noise)
    limit = _limit(metric, rule, allowed, noise)
    change = paired_change(*pairs.by_question)
    # Counts are what they are; times, and what another machine counts, are draws.
    firm = rule.kind == "max_drop" and metric != "speedup"
    if now < allowed:
        if firm or change.high is None or change.high < 0:
            return limit, "FAILED", f"change {_interval(change)}"
        return limit, "ok", f"lower, but its change {_interval(change)} may be none"
    if change.low is not None and change.low > 0:
        return limit, "better", f"change {_interval(change)}"
    return limit, "ok", ""


def _limit(metric: str, rule: Rule, allowed: float, noise: float) -> str:
    if rule.kind != "max_drop":
        return "95% interval"
    words = "noise:" if noise < 1 - rule.amount else ">="
    return f"{words} {METRICS.get(metric).text(allowed)}"


def _interval(change: Change) -> str:
    if change.low is None or change.high is None:
        return f"{change.value:+.4f} (one example: no interval)"
    return f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}]"


def _listed(examples: Sequence[str]) -> str:
    """List some names, and say how many more there are."""
    more = f" and {len(examples) - 5} more" if len(examples) > 5 else ""
    return f"{'example' if len(examples) == 1 else 'examples'} {', '.join(examples[:5])}{more}"


def noise_factor(before: Ratio | None, now: Ratio | None) -> float:
    """The factor that a speedup may lose to noise alone, that of both runs; at most 1."""
    if before is None or now is None or before.high is None or now.low is None:
        return 1.0
    return min(1.0, now.low / before.high)
