"""What a command prints of its run: for people, for other programs, and as JSON.

Made of the header and the samples alone, so that a stored run prints again what it printed when
it was made, without its model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppdbench.bench.counterparts import beside
from ppdbench.bench.summary import overall, summarize
from ppdbench.bench.sweep_summary import swept
from ppdbench.errors import DataError
from ppdbench.probe import accuracy, closeness, summary
from ppdbench.probe.buckets import stored_buckets
from ppdbench.report import decode_tables, draft_tables, probe_tables, sweep_tables
from ppdbench.report.export import Sheet, emit
from ppdbench.samples import fewest_examples
from ppdbench.store import StoredRun

Header = Mapping[str, Any]
Samples = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Output:
    """Tables that people read, one with every figure, and the content of JSON."""

    sheets: list[Sheet]
    long: Sheet
    content: Any

    def sheets_for(self, csv: bool) -> list[Sheet]:
        """What is written: programs get one table."""
        return [self.long] if csv else self.sheets

    def emit(self, form: str) -> None:
        """To stdout."""
        emit(self.sheets_for(form == "csv"), self.content, form)


def of_run(run: StoredRun) -> Output:
    """What a stored run's own command printed."""
    header, kind = run.header, run.header.get("kind")
    done = [sample for sample in run.samples if sample.get("verdict") != "failed"]
    if not run.samples or (not done and kind in ("probe", "drafts", "similarity")):
        raise DataError(f"{run.path} holds no finished samples; finish the run with --resume")
    if kind in ("decode", "bench"):
        return of_decoding(header, run.samples)
    if kind == "sweep":
        return of_sweep(header, run.samples)
    if kind == "probe":
        rates = summary.match_rates(done, header["config"]["ks"], stored_buckets(header, done))
        return of_matches(header, done, rates, str(run.path))
    if kind == "drafts":
        return of_drafts(header, done, str(run.path))
    if kind == "similarity":
        return of_similarity(header, done, str(run.path))
    raise DataError(f"{run.path} holds a {kind} run, which has no tables; see `ppdbench table`")


def of_decoding(header: Header, samples: Samples) -> Output:
    """Of `decode` and `bench`."""
    found = summarize(header, samples)
    long = decode_tables.long(found)
    if header["kind"] == "decode":
        return Output(decode_tables.sheets(found), long, found[0] if len(found) == 1 else found)
    together = overall(header, samples)
    return Output(decode_tables.contest(found, together, beside(header, samples)), long, found)


def of_sweep(header: Header, samples: Samples) -> Output:
    """Of `sweep`."""
    found = swept(header, samples)
    return Output(sweep_tables.sheets(found), sweep_tables.long(found), sweep_tables.to_json(found))


def of_matches(header: Header, samples: Samples, rates: Sequence[summary.Rate], run: str) -> Output:
    """Of `probe`."""
    saturations = summary.saturation(samples)
    sheets = probe_tables.sheets(header, rates, saturations, fewest_examples(samples))
    content = summary.to_json(header, samples, rates, saturations, run)
    return Output(sheets, probe_tables.long(rates), content)


def of_drafts(header: Header, samples: Samples, run: str) -> Output:
    """Of `probe --what drafts`."""
    rows = accuracy.accuracies(samples)
    sheets = draft_tables.sheets(header, rows, fewest_examples(samples))
    return Output(sheets, draft_tables.long(rows), accuracy.to_json(header, samples, rows, run))


def of_similarity(header: Header, samples: Samples, run: str) -> Output:
    """Of `probe --what similarity`."""
    rows = closeness.similarities(samples)
    content = closeness.to_json(rows, header, run)
    return Output(draft_tables.similarity_sheets(header, rows), draft_tables.long(rows), content)
