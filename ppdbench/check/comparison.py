"""A run against its baseline, and what all their checks come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdbench.check.baseline import open_baseline
from ppdbench.check.checks import Checks
from ppdbench.check.comparable import machine_differences, refuse_unlike
from ppdbench.check.judge import Check
from ppdbench.check.snapshot import Snapshot, snapshot
from ppdbench.check.thresholds import Thresholds
from ppdbench.errors import DataError
from ppdbench.runs.records import FailedSample
from ppdbench.runs.store import StoredRun, read_whole


@dataclass(frozen=True, slots=True)
class Comparison:
    """The checks of a run, in the order of its baseline; `unfinished` are its failures to run."""

    run: str
    baseline: str
    kind: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    unfinished: tuple[str, ...]
    unsealed: tuple[str, ...] = ()
    """The run and the baseline, where damage to them need not show for want of checksums."""

    @property
    def failed(self) -> list[Check]:
        """The checks that got worse, or changed where nothing may."""
        return [check for check in self.checks if check.failed]

    @property
    def exit_code(self) -> int:
        """1: a check failed; 3: none did, but examples failed to run; 0: neither."""
        return 1 if self.failed else 3 if self.unfinished else 0

    @property
    def verdict(self) -> str:
        """The whole of it in one line."""
        words = f"{len(self.checks)} checks, {len(self.failed)} failed"
        better = sum(check.verdict == "better" for check in self.checks)
        words += f", {better} better than the baseline" if better else ""
        return words + (f", {len(self.unfinished)} not run" if self.unfinished else "")


def compare_paths(run_path: Path, baseline_path: Path, thresholds: Thresholds) -> Comparison:
    """Compare a run folder with a baseline file, or with another run folder."""
    baseline, sealed = open_baseline(baseline_path)
    thresholds.refuse_misfits(baseline)
    run = read_whole(run_path)
    now = snapshot(run, baseline.settings.get("ks"))
    refuse_unlike(now, baseline)
    made = Checks(run, now, baseline, thresholds)
    checks = tuple(made)
    if not checks:
        raise DataError(f"{run_path} and {baseline_path} have nothing in common that is checked")
    return Comparison(
        str(run_path),
        str(baseline_path),
        now.kind,
        checks,
        (*_notes(now, baseline), *made.notes),
        tuple(_unfinished(run)),
        (*[str(run_path)] * bool(run.unsealed), *[str(baseline_path)] * (not sealed)),
    )


def _notes(now: Snapshot, baseline: Snapshot) -> Iterator[str]:
    differences = machine_differences(now.machine, baseline.machine)
    if differences:
        yield (
            f"Another machine than the baseline's ({'; '.join(differences)}): rounding may differ, "
            "so what is not equal is held to the interval of its change."
        )
    new = [subject for subject in now.subjects if subject not in baseline.subjects]
    if new:
        yield f"Not in the baseline, so only its identity is checked: {', '.join(new)}."


def _unfinished(run: StoredRun) -> Iterator[str]:
    for sample in run.samples:
        if isinstance(sample, FailedSample):
            where = f"{sample.task} {sample.example_id}, {sample.method}"
            yield f"{where}: {sample.error}"
    for label, error in run.header.not_run.items():
        yield f"{label} did not run: {error}"


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return what `check --format json` prints."""
    names = ("task", "subject", "metric", "baseline", "now", "limit", "verdict", "note")
    return {
        "run": comparison.run,
        "baseline": comparison.baseline,
        "exit_code": comparison.exit_code,
        "failed": len(comparison.failed),
        "checks": [{name: getattr(check, name) for name in names} for check in comparison.checks],
        "notes": list(comparison.notes),
        "unfinished": list(comparison.unfinished),
    }
