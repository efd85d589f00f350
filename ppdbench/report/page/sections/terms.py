"""The section on terms: the meaning of the page's words, and the papers of the methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ppdbench.files.publications import PPD, Publication
from ppdbench.methods import METHODS
from ppdbench.report.html import Child, h
from ppdbench.report.page.parts import Section, definition_list
from ppdbench.report.page.runs import DECODES, PROBES, SWEEPS, Run, of_kind

OF_DECODING = {
    "greedy": "The most likely token each time, one pass of the model per token: the reference.",
    "identical": "An output that is greedy's, token id by token id.",
    "tie": "An output that first differs where two tokens are equally likely up to rounding.",
    "mismatch": "An output that differs for no such reason: a bug, and no speedup is shown.",
    "inexact": "A method whose outputs need not be greedy's, however fast it is.",
    "per step": "Tokens that a pass of the whole model commits: drafts accepted, and its own.",
    "accepted": "The share of drafted tokens that were kept.",
    "speedup": "Greedy's decode time over the method's, for the same examples.",
    "95%": "The interval that the speedup lies in, by drawing examples again (bootstrap).",
    "noise": "What greedy gains over itself: a speedup within that is none.",
    "prefill": "The pass over the prompt, before the first token.",
}
OF_MATCHES = {
    "match": "A token of the final layer that a layer below has among its k likeliest.",
    "k": "How many of a layer's likeliest tokens count.",
    "layer": "Layers run before tokens are read out; the last is the model itself.",
    "head N, Y": "Read out by the model's own head (N), or one trained for the layer (Y).",
    "bucket": "Positions in the output, counted from 1, that share a figure.",
}
OF_PIPELINES = {
    "p": "The match rate at the exit: how often the candidates hold the token that comes.",
    "theorem": "The speedup that Theorem 4.1 of the paper promises for this p.",
    "matches": "The same cost, counted for the matches in the order in which they came.",
    "times": "These with the times of the parts on this machine.",
    "one unit": "What was measured, over greedy decoding on one unit.",
    "all units": "And over greedy decoding that has the threads of all units.",
    "efficiency": "The share of the theorem's gain over one unit that was measured.",
    "busy": "Processes at work at a time, on average, in the paper's form of the method.",
    "equation 5": "What the paper's formula predicts for busy from p alone.",
}


def section(runs: Sequence[Run]) -> Section | None:
    """The words that these runs use, and their papers."""
    words = dict(_words(runs))
    if not words:
        return None
    works = list(_works(runs))
    body: list[Child] = [definition_list(list(words.items()))]
    if works:
        links = [h("li", f"{name}: ", h("a", w.title, href=w.link)) for name, w in works]
        body += [h("h3", "Papers"), h("ul", links)]
    return Section("terms", "Words and papers", tuple(body))


def _words(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    decoded = [*of_kind(runs, DECODES), *of_kind(runs, SWEEPS)]
    if of_kind(runs, PROBES):
        yield from OF_MATCHES.items()
    if decoded:
        yield from OF_DECODING.items()
    if any("p" in summary for run in decoded for summary in run.summaries):
        yield from OF_PIPELINES.items()


def _works(runs: Sequence[Run]) -> Iterator[tuple[str, Publication]]:
    """Yield each paper once, under the method that is of it."""
    methods = {s["method"] for run in of_kind(runs, DECODES) for s in run.summaries}
    probed = bool(of_kind(runs, PROBES))
    for name in METHODS:
        for work in METHODS.get(name).papers:
            if name in methods or (probed and work == PPD):  # which match rates are about
                yield name, work
