"""Every check that a run and its baseline allow: identity, outputs, rates, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ppdbench.bench import claims
from ppdbench.bench.summary import ALL
from ppdbench.check.comparable import machine_differences
from ppdbench.check.figures import NOISES, Figure, Outputs, by_question
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
        mismatched = {(s.task, s.method) for s in self.run.samples if s.verdict == "mismatch"}
        for figure in self.baseline.figures:
            if figure.metric in NOISES:
                continue
            rule = self._rule(figure.metric, figure.subject)
            # No speedup is ever quoted beside a mismatch.
            unfair = figure.metric == "speedup" and (figure.task, figure.subject) in mismatched
            check = None if unfair or rule.kind == IGNORED else self._figure(figure, rule)
            if check is not None:
                yield check
        yield from self._memory()

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
            whose = f"{before.task}: {before.subject}"
            self.notes.append(f"{whose}, speedup: {reason}, so it is not judged.")
            return None
        noise = self._noise(task, before.subject) if before.metric == "speedup" else 1.0
        return check_figure(before, pairs, rule, alike=self.alike, noise=noise)

    def _noise(self, task: str, label: str) -> float:
        questions = self.now.questions(task)
        before, now = (_noise(run, task, questions, label) for run in (self.baseline, self.now))
        return noise_factor(before, now)

    def _memory(self) -> Iterator[Check]:
        """Check the memory of the process: several methods share it."""
        before, now = self.baseline.peak_memory_bytes, self.now.peak_memory_bytes
        rule = self._rule("peak_memory", "")
        if before and now and rule.kind != IGNORED:
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
