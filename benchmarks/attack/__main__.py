"""All attacks, and a table of what was survived: `python -m benchmarks.attack [--short]`.

Each kind has its own time; attempts that did not fit are counted, not hidden. Exits with 1 if
anything was not survived.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from benchmarks.attack import inputs, kept, kills, mutants, programs, records, text
from benchmarks.attack.base import AttackKind, Tally, attack
from ppdbench.report.terminal import people

# Each kind lies in a module of its own beside this one.
KINDS: Sequence[AttackKind] = (
    inputs.KIND,
    kept.KIND,
    kills.KIND,
    mutants.KIND,
    programs.KIND,
    records.KIND,
    text.KIND,
)


def main() -> int:
    """Attack, print the table, and say what was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few attempts of each kind")
    parser.add_argument("--kind", action="append", choices=[kind.name for kind in KINDS])
    parser.add_argument("--seconds", type=float, default=600.0, help="time for each kind")
    given = parser.parse_args()
    chosen = [kind for kind in KINDS if given.kind is None or kind.name in given.kind]
    with tempfile.TemporaryDirectory(prefix="attack-") as place:
        tempfile.tempdir = place  # what attacks keep for later attempts goes with it
        tallies = [
            attack(kind, Path(place), short=given.short, seconds=given.seconds) for kind in chosen
        ]
    show(tallies)
    return 1 if any(tally.failures for tally in tallies) else 0


def show(tallies: Sequence[Tally]) -> None:
    """One row for each kind; failures have been said as they were met."""
    table = Table("attack", "tries", "survived", "not tried", "seconds")
    for tally in tallies:
        counts = map(str, (tally.tries, tally.survived, tally.left, round(tally.elapsed_s)))
        table.add_row(tally.kind, *counts)
    people().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
