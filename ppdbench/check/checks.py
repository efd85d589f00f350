"""Every check that a run and its baseline allow: identity, outputs, rates, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ppdbench.bench import claims
from ppdbench.bench.summary import ALL
from ppdbench.check.comparable import machine_differences
from ppdbench.check.figures import NOISES, Figure, Outputs, by_question, rate
from ppdbench.check.judge import Check, Pairs, check_figure, noise_factor
from ppdbench.check.metrics import IGNORED, Rule
from ppdbench.check.snapshot import Snapshot
from ppdbench.check.thresholds import Thresholds
from ppdbench.errors import DataError
from ppdbench.runs.store import StoredRun
from ppdbench.stats import Ratio

MIB = 1 << 20


class Checks:
    """The checks of one run, by the rules of its thresholds."""

    def __init__(
        self, run: StoredRun, now: Snapshot, baseline: Snapshot, thresholds: Thresholds
    ) -> None:
        self.run, self.now, self.baseline, self.thresholds = run, now, baseline, thresholds
        self.alike = not machine_differences(now.machine, baseline.machine)
        self.figures = {figure.key: figure for figure in now.figures}
        self.notes: list[str] = []  # what was not judged, and why

    def __iter__(self) -> Iterator[Check]:
        """Identity first, then what the baseline knows, in its order."""
        yield from self._identity()
        for outputs in self.baseline.outputs:
            rule = self._rule("outputs", outputs.subject)
            if rule.kind != IGNORED:
                yield self._outputs(outputs, rule)
        missing = list(self._missing())
        keys = {figure.key for figure in missing}
        for figure, rule in self._judged(self.baseline.figures):
            check = None if figure.key in keys else self._figure(figure, rule)
            if check is not None:
                yield check
        for figure in missing:
            if figure.withheld is None:
                yield _missing(*figure.key, rate(figure.parts))
            else:
                self._not_judged(figure, figure.withheld)
        yield from self._memory()

    def _judged(self, figures: Iterable[Figure]) -> Iterator[tuple[Figure, Rule]]:
        """Those of these figures that are to be judged, each with its rule."""
        mismatched = {(s.task, s.method) for s in self.run.samples if s.verdict == "mismatch"}
        for figure in figures:
            if figure.metric in NOISES:
                continue
            rule = self._rule(figure.metric, figure.subject)
            # No speedup is ever quoted beside a mismatch.
            unfair = figure.metric == "speedup" and (figure.task, figure.subject) in mismatched
            if not unfair and rule.kind != IGNORED:
                yield figure, rule

    def _rule(self, metric: str, subject: str) -> Rule:
        return self.thresholds.rule(metric, subject)

    def _identity(self) -> Iterator[Check]:
        """Check the run alone: methods that are exact must give what greedy decoding gives."""
        if self.now.kind == "probe" or self.now.drawn:
            return
        exact = {method.label for method in self.now.methods if method.exact}
        for outputs in self.now.outputs:
            if outputs.subject in exact:
                group = (outputs.task, outputs.subject)
                verdicts = Counter(
                    sample.verdict
                    for sample in self.run.samples
                    if (sample.task, sample.method) == group
                )
                rule = self._rule("identity", outputs.subject)
                yield _identity(*group, verdicts, rule)

    def _outputs(self, before: Outputs, rule: Rule) -> Check:
        key = (before.task, before.subject)
        now = next(o for o in self.now.outputs if (o.task, o.subject) == key)
        triples = zip(self.baseline.examples(before.task), before.hashes, now.hashes, strict=True)
        other = [e for e, theirs, ours in triples if ours is not None and ours != theirs]
        # One output may always be the unlucky one, however few there are.
        share = max(1, int(rule.amount * len(before.hashes))) if rule.amount else 0
        allowed = 0 if self.alike else share
        note = f"other output in {', '.join(other[:5])}{', ...' if len(other) > 5 else ''}"
        note += f"; another machine, which may have {allowed}" if not self.alike else ""
        return Check(
            task=before.task,
            subject=before.subject,
            metric="outputs",
            baseline=0,
            now=len(other),
            limit=f"<= {allowed}",
            verdict="FAILED" if len(other) > allowed else "ok",
            note=note if other else "",
        )

    def _figure(self, before: Figure, rule: Rule) -> Check | None:
        now = self.figures.get(before.key)
        if now is None:
            raise DataError(
                f"not comparable with the baseline: {before.task} has no {before.metric} of "
                f"{before.subject}; the baseline was made by `{' '.join(self.baseline.command)}`"
            )
        task = before.task
        pairs = Pairs.of(self.baseline.examples(task), self.now.questions(task), before, now)
        if before.metric == "speedup" and (reason := _withheld(before, now, pairs)) is not None:
            self._not_judged(before, reason)
            return None
        noise = self._noise(task, before.subject) if before.metric == "speedup" else 1.0
        return check_figure(before, pairs, rule, alike=self.alike, noise=noise)

    def _missing(self) -> Iterator[Figure]:
        """Figures that the run counts and the baseline does not, though it knows their subjects.

        What nothing was counted of is not kept, so a figure that was removed leaves no trace.
        """
        before = self.baseline
        there = {figure.key for figure in before.figures if rate(figure.parts) is not None}
        new_heads = not any(figure.trained for figure in before.figures)
        if new_heads and any(figure.trained for figure in self.now.figures):
            self.notes.append("Not in the baseline, so not checked: trained heads.")
        for figure, _ in self._judged(self.now.figures):
            # Subjects of a probe's figures are layers, which are those of the baseline.
            new = self.now.kind != "probe" and figure.subject not in before.subjects
            new = new or (figure.trained and new_heads)
            if not new and figure.key not in there and rate(figure.parts) is not None:
                yield figure

    def _not_judged(self, figure: Figure, reason: str) -> None:
        whose = f"{figure.task}: {figure.subject}"
        self.notes.append(f"{whose}, {figure.metric}: {reason}, so it is not judged.")

    def _noise(self, task: str, label: str) -> float:
        questions = self.now.questions(task)
        before, now = (_noise(run, task, questions, label) for run in (self.baseline, self.now))
        return noise_factor(before, now)

    def _memory(self) -> Iterator[Check]:
        """Check the memory of the process: several methods share it."""
        before, now = self.baseline.peak_memory_bytes, self.now.peak_memory_bytes
        rule = self._rule("peak_memory", "")
        if rule.kind == IGNORED or not now:
            return
        if not before:
            yield _missing(ALL, "process", "peak_memory", now / MIB)
        else:
            allowed = (1 + rule.amount) * before
            yield Check(
                task=ALL,
                subject="process",
                metric="peak_memory",
                baseline=before / MIB,
                now=now / MIB,
                limit=f"<= {allowed / MIB:.0f} MiB",
                verdict="FAILED" if now > allowed else "ok",
            )


def _missing(task: str, subject: str, metric: str, now: float | None) -> Check:
    return Check(
        task=task,
        subject=subject,
        metric=metric,
        baseline=None,
        now=now,
        limit="in both",
        verdict="FAILED",
        note="missing from the baseline; if nothing was counted then, write it again with --update",
    )


def _withheld(before: Figure, now: Figure, pairs: Pairs) -> str | None:
    """Return the reason why one of two speedups, or what they share, may not be claimed."""
    told = before.withheld or now.withheld
    return told or (None if claims.enough(*pairs.by_question) else claims.TOO_FEW)


def _noise(made: Snapshot, task: str, questions: Sequence[str], label: str) -> Ratio | None:
    """Return the noise of greedy decoding's times in batches of the size that a method had."""
    repeats = [
        by_question(questions, figure.parts)
        for figure in made.figures
        if figure.task == task
        and figure.metric in NOISES
        and made.batch(figure.subject) == made.batch(label)
    ]
    return claims.noise(repeats)


def _identity(task: str, subject: str, verdicts: Counter[str | None], rule: Rule) -> Check:
    mismatches, ties = verdicts["mismatch"], verdicts["tie"]
    too_many = rule.kind == "max_ties" and ties > rule.amount
    limit = "<= 0" if rule.kind != "max_ties" else f"<= 0, {rule.amount:.0f} ties"
    note = f"{mismatches} mismatches, {ties} ties, {verdicts['identical']} identical"
    return Check(
        task=task,
        subject=subject,
        metric="identity",
        baseline=None,
        now=mismatches,
        limit=limit,
        verdict="FAILED" if mismatches or too_many else "ok",
        note=note if mismatches or ties else "",
    )
