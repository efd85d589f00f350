"""The printed output of a command: for people, for other programs, and as JSON.

Made of the header and the samples alone, so that a stored run prints again what it printed when
it was made, without its model.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.counterparts import beside
from ppdbench.bench.summary import overall, summarize
from ppdbench.bench.sums import SampleSums
from ppdbench.bench.sweep_summary import Swept, swept
from ppdbench.probe import accuracy, similarity, summary
from ppdbench.probe.kinds import by_kind
from ppdbench.probe.ranks import StoredRanks
from ppdbench.report import batch_tables, decode_tables, draft_tables, probe_tables, sweep_tables
from ppdbench.report.export import PrintedOutput
from ppdbench.report.page.runs import DECODES, PROBES, SIMILARITY, SWEEPS, Run
from ppdbench.runs.records import Header, ProbeHeader, Sample
from ppdbench.runs.samples import fewest_examples
from ppdbench.runs.unfinished import unfinished

Samples = Sequence[Sample]


def of_run(run: Run) -> PrintedOutput:
    """Return what a stored run's own command printed."""
    header, place = run.header, str(run.stored.path)
    if run.kind in DECODES:
        return of_decoding(header, run.sums)
    if run.kind in SWEEPS:
        return of_sweep(swept(header, run.sums))
    return _of_probes(run, header, place).marked(run.unfinished)


def _of_probes(run: Run, header: Header, place: str) -> PrintedOutput:
    if run.kind in PROBES:
        return of_matches(header, run.done, run.ranks, run.rates, place)
    if run.kind in SIMILARITY:
        return of_similarity(header, run.done, place)
    return of_drafts(header, run.done, place)


def of_decoding(header: Header, sums: Sequence[SampleSums]) -> PrintedOutput:
    """Build the output of `decode` and `bench`."""
    found = summarize(header, sums)
    long = decode_tables.long(found)
    lacking = unfinished(header, (one.about for one in sums))
    batches = batch_tables.has_batches(found)
    if header.kind == "decode":
        content = found[0] if len(found) == 1 else found
        tables = batch_tables.comparison(found, ()) if batches else decode_tables.sheets(found)
        return PrintedOutput(tables, long, content).marked(lacking)
    together, peers = overall(header, sums), beside(header, sums)
    compare = batch_tables.comparison if batches else decode_tables.comparison
    sheets = compare(found, together, peers)
    return PrintedOutput(sheets, long, found).marked(lacking)


def of_sweep(found: Swept) -> PrintedOutput:
    """Build the output of `sweep`."""
    return PrintedOutput(
        sweep_tables.sheets(found), sweep_tables.long(found), sweep_tables.sweep_json(found)
    )


def of_matches(
    header: Header, samples: Samples, ranks: StoredRanks, rates: Sequence[summary.Rate], run: str
) -> PrintedOutput:
    """Build the output of `probe`."""
    assert isinstance(header, ProbeHeader)
    saturations = summary.saturation(ranks, header.model.n_layers)
    kinds = by_kind(header.model.layer_kinds, ranks, sorted({rate.k for rate in rates}))
    sheets = probe_tables.sheets(header, rates, kinds, saturations, fewest_examples(samples))
    content = summary.match_rates_json(header, samples, rates, saturations, kinds, run)
    return PrintedOutput(sheets, probe_tables.long(rates), content)


def of_drafts(header: Header, samples: Samples, run: str) -> PrintedOutput:
    """Build the output of `probe --what drafts`."""
    rows = accuracy.accuracies(samples)
    sheets = draft_tables.sheets(header, rows, fewest_examples(samples))
    return PrintedOutput(
        sheets, draft_tables.long(rows), accuracy.accuracies_json(header, samples, rows, run)
    )


def of_similarity(header: Header, samples: Samples, run: str) -> PrintedOutput:
    """Build the output of `probe --what similarity`."""
    rows = similarity.similarities(samples)
    content = similarity.similarities_json(rows, header, run)
    return PrintedOutput(
        draft_tables.similarity_sheets(header, rows), draft_tables.long(rows), content
    )
