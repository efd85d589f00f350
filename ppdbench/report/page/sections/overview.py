"""The page's first screen: the few numbers a reader came for."""

from __future__ import annotations

from collections.abc import Sequence

from ppdbench.bench.claims import LEAST_EXAMPLES, TOO_FEW, no_difference
from ppdbench.probe.summary import TOTAL
from ppdbench.report.evidence import mostly_degenerate
from ppdbench.report.html import Node, h
from ppdbench.report.page.runs import DECODES, PROBES, Run, of_kind
from ppdbench.runs.drawing import GREEDY
from ppdbench.runs.records import probing
from ppdbench.stats import FEW_EXAMPLES


def tiles(runs: Sequence[Run]) -> Node:
    """A number and what it says, for each thing that was measured."""
    found = [
        *(_identity(run) for run in of_kind(runs, DECODES)),
        *(_fastest(run) for run in of_kind(runs, DECODES)),
        *(_known_early(run) for run in of_kind(runs, PROBES)),
    ]
    return h("ul", (tile for tile in found if tile), class_="tiles")


def _tile(number: str, words: str, kind: str = "plain") -> Node:
    return h("li", h("strong", number), h("span", words), class_=kind)


def _identity(run: Run) -> Node | None:
    judged, identical, ties = run.held_to_greedy
    if not judged:
        return None
    same = identical + ties
    kind = "bad" if same < judged else "plain"
    return _tile(f"{same} of {judged}", f"outputs are greedy's, up to ties ({run.name})", kind)


def _fastest(run: Run) -> Node | None:
    """The largest gain of an exact method, or that there is none."""
    # What runs in one process in place of several says nothing about speed.
    methods = [
        s
        for s in run.overall
        if s["exact"] and s["method"] != "greedy" and s.get("form") != "inline"
    ]
    timed = [s for s in methods if s["speedup"] is not None]
    if not timed and any(s["speedup_withheld"] == TOO_FEW for s in methods):
        words = f"for a speedup, which takes {LEAST_EXAMPLES} or more ({run.name})"
        return _tile(TOO_FEW, words)
    if not timed:
        return None
    best = max(timed, key=lambda s: s["speedup"])
    if best["speedup"] <= 1 or no_difference(best):
        return _tile("no gain", f"of an exact method over greedy beyond noise ({run.name})")
    low, high = best["speedup_low"], best["speedup_high"]
    words = f"as fast as greedy: {best['label']} [{low:.2f}, {high:.2f}], the fastest ({run.name})"
    if mostly_degenerate(best):
        bad = best["empty"] + best["loops"]
        words += f"; {bad} of {best['n_examples']} outputs are empty or loop"
    if best["n_timed"] < FEW_EXAMPLES:
        words += f"; {best['n_timed']} examples, which are few"
    if best["under_load"]:
        words += "; measured under load"
    return _tile(f"{best['speedup']:.2f}×", words)


def _known_early(run: Run) -> Node | None:
    """The match rate half-way up, which is where pipelining exits; of greedy tokens if there."""
    layers, k = sorted({rate.layer for rate in run.rates}), max(probing(run.header).config.ks)
    n_layers = run.header.model.n_layers
    half = min(layers, key=lambda n: abs(2 * n - n_layers))
    rates = [r for r in run.rates if (r.layer, r.k, r.bucket, r.head) == (half, k, TOTAL, "N")]
    if not rates:
        return None
    rate = next((r for r in rates if r.target == GREEDY), rates[0])
    how = "" if rate.target == GREEDY else f", {rate.target} target"
    where = f"after {half} of {n_layers} layers, k = {k}, {rate.task}{how} ({run.name})"
    return _tile(f"{100 * rate.match_rate:.0f}%", f"of tokens are known {where}")
