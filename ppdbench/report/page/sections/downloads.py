"""Numbers to take away: files inside the page, as links that need neither network nor script."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Sequence

from ppdbench.report import decode_tables, draft_tables, probe_tables
from ppdbench.report.export import to_csv
from ppdbench.report.html import Node, h
from ppdbench.report.page.parts import Section
from ppdbench.report.page.runs import SIMILARITY, Run
from ppdbench.report.pictures.drawing import slug
from ppdbench.report.sheet import Sheet
from ppdbench.runs.samples import sample_paths
from ppdbench.runs.store import HEADER

ROOM = 1_000_000  # bytes of packed samples in one page, over all runs
PACKED = "application/gzip"
PLAIN = 100_000  # bytes up to which a table is not packed


def section(runs: Sequence[Run]) -> Section:
    """Offer for each run its figures, its header and, where there is room, every sample."""
    room = ROOM // len(runs)
    return Section("data", "Data", tuple(_of_run(run, room) for run in runs))


def _of_run(run: Run, room: int) -> Node:
    folder = run.stored.path
    links = [
        _link(slug(run.name, "figures.csv"), to_csv([_long(run)]).encode(), "every figure"),
        _link(slug(run.name, HEADER), (folder / HEADER).read_bytes(), "what was run"),
    ]
    return h("div", h("h3", run.name), h("ul", links, _samples(run, room)), class_="downloads")


def _samples(run: Run, room: int) -> Node:
    paths = sample_paths(run.stored.path)
    words = f"{len(run.samples)} samples: token ids, times and verdicts"
    # Text of this kind packs to a quarter or less; what is far larger is not even tried.
    if sum(path.stat().st_size for path in paths) <= 12 * room:
        lines = b"".join(path.read_bytes() for path in paths)
        packed = gzip.compress(lines, compresslevel=6, mtime=0)
        if len(packed) <= room:
            return _link(slug(run.name, "samples.jsonl.gz"), packed, words, PACKED)
    names = ", ".join(str(path) for path in paths)
    return h("li", f"{words} are too large for this page; they lie in ", h("code", names), ".")


def _link(name: str, content: bytes, words: str, kind: str = "text/plain") -> Node:
    if kind == "text/plain" and len(content) > PLAIN:
        name, content, kind = f"{name}.gz", gzip.compress(content, mtime=0), PACKED
    data = base64.b64encode(content).decode("ascii")
    size = f"{max(1, round(len(content) / 1000))} kB"
    link = h("a", name, href=f"data:{kind};base64,{data}", download=name)
    return h("li", link, f": {words} ({size})")


def _long(run: Run) -> Sheet:
    if run.is_decode:
        return decode_tables.long(run.summaries)
    if run.is_probe:
        return probe_tables.long(run.rates)
    if run.kind in SIMILARITY:
        return draft_tables.long(run.similarities)
    return draft_tables.long(run.accuracies)
