"""Match rates in the papers' own layouts: Table 2 (pooled) and Tables 6 to 8 (by position)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ppdbench.probe.kinds import KindRate
from ppdbench.probe.summary import INTERVAL, TOTAL, Rate, Saturation
from ppdbench.report.evidence import chat_notes
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.drawing import drawn_note
from ppdbench.runs.prompting import in_words, prompting
from ppdbench.runs.records import Header, ProbeHeader, ProbeSettings
from ppdbench.stats import FEW, FEW_EXAMPLES, grouped

# The paper reads 40 layers out after these; deeper tables show the same fractions.
PAPER_DEPTHS = (10 / 40, 20 / 40, 30 / 40, 35 / 40, 37 / 40)
MANY_LAYERS = 8
FULL = "--full-length"
MOST_ROWS = 12  # layers of one task and head in the pooled table
PARTLY = (
    "Not all layers were probed, so that no mean can be told: <= means this layer or one before it "
    "that was not, > more than the deepest; there to stay is among the probed ones."
)
UNCHOSEN = "A drawn token that is no layer's first choice counts as there after the last."


def paper_layers(layers: Sequence[int], n_layers: int) -> list[int]:
    """The layers that bucket tables show: all, or the paper's depths where there are many."""
    if len(layers) <= MANY_LAYERS:
        return list(layers)
    return sorted({min(layers, key=lambda n: abs(n - f * n_layers)) for f in PAPER_DEPTHS})


def spread_layers(layers: Sequence[int], most: int = MOST_ROWS) -> list[int]:
    """All layers, or some that stand as far apart, the first and the last among them."""
    if len(layers) <= most:
        return list(layers)
    last = len(layers) - 1
    return [layers[round(i * last / (most - 1))] for i in range(most)]


def _left_out(shown: int, of: int) -> tuple[str, ...]:
    """Say which layers a table shows, where it does not show all."""
    if shown == of:
        return ()
    return (
        f"{shown} of {of} layers, evenly spread from the first to the last; all: --format csv, "
        "json.",
    )


def label(header: Header) -> str:
    """The model's name and type, with a warning where its weights are random."""
    model = header.model
    warning = ", random weights" if model.synthetic else ""
    source = f", GGUF {model.gguf}" if model.gguf else ""
    source += ", with an adapter" if model.adapter else ""
    chat = ", chat" if prompting(header) is not None else ""
    return f"{model.name} ({model.dtype}{source}{warning}{chat})"


def sheets(
    header: Header,
    rates: Sequence[Rate],
    kinds: Sequence[KindRate],
    saturations: Sequence[Saturation],
    n_examples: int,
) -> list[Sheet]:
    """All tables of a probe run for people; `n_examples` in the smallest task."""
    n_layers = header.model.n_layers
    return [
        pooled(header, rates, n_examples),
        *([by_kind_sheet(kinds)] if kinds else []),
        *(
            by_position(group, n_layers, task, target)
            for (task, target), group in grouped(rates, "task", "target").items()
        ),
        saturation_sheet(saturations, n_layers),
    ]


def pooled(header: Header, rates: Sequence[Rate], n_examples: int) -> Sheet:
    """One row per task, head and layer; one column per k."""
    totals = [rate for rate in rates if rate.bucket == TOTAL]
    ks = sorted({rate.k for rate in totals})
    several = len({rate.target for rate in totals}) > 1
    layers = sorted({rate.layer for rate in totals})
    shown = set(spread_layers(layers))
    rows: dict[tuple[Cell, ...], dict[int, Rate]] = {}
    for rate in (rate for rate in totals if rate.layer in shown):
        names = (rate.task, *((rate.target,) if several else ()), rate.head, rate.layer)
        rows.setdefault(names, {})[rate.k] = rate
    head = ("task", *(("target",) if several else ()), "head", "layer", *(f"k={k}" for k in ks))
    return Sheet(
        f"Match rate in %, {label(header)}",
        head,
        tuple(
            (*names, *(with_interval(of[k].match_rate, of[k].low, of[k].high) for k in ks))
            for names, of in rows.items()
        ),
        notes=(
            "Share of positions whose final token is among the layer's top k.",
            f"±, < and >: {INTERVAL}.",
            "head N: the model's own; Y: trained for the layer. layer: number of layers run.",
            *prompt_notes(header),
            *(drawn_note(header.config.targets) if isinstance(header, ProbeHeader) else ()),
            *_left_out(len(shown), len(layers)),
            *((FEW,) if n_examples < FEW_EXAMPLES else ()),
        ),
    )


def by_kind_sheet(rates: Sequence[KindRate]) -> Sheet:
    """One row per task, head and kind of layer; for each k the rate and what a layer adds."""
    ks = sorted({rate.k for rate in rates})
    several = len({rate.target for rate in rates}) > 1
    rows: dict[tuple[Cell, ...], dict[int, KindRate]] = {}
    for rate in rates:
        names = (rate.task, *((rate.target,) if several else ()), rate.head, rate.kind, rate.layers)
        rows.setdefault(names, {})[rate.k] = rate
    added = [f"a layer adds, k={k}" for k in ks]
    return Sheet(
        "Match rate in % by kind of layer",
        (
            *("task", *(("target",) if several else ()), "head", "kind", "layers"),
            *(column for k, more in zip(ks, added, strict=True) for column in (f"k={k}", more)),
        ),
        tuple(
            (*names, *(cell for k in ks for cell in _of_kind(of[k]))) for names, of in rows.items()
        ),
        notes=(
            "Over all tokens after each of the probed layers of a kind, wherever these stand.",
            "A layer adds: percentage points more than after the layer before it, on average.",
        ),
        digits=dict.fromkeys(added, 2),
    )


def _of_kind(rate: KindRate) -> tuple[Cell, Cell]:
    added = None if rate.added is None else 100 * rate.added
    return with_interval(rate.match_rate, rate.low, rate.high), added


def prompt_notes(header: Header) -> tuple[str, ...]:
    """Say how prompts were asked and where outputs end, where that is not how papers do it."""
    ends = isinstance(header.config, ProbeSettings) and header.config.stop_at_eos
    return (
        *chat_notes(in_words(prompting(header))),
        *((f"Outputs end with the text; {FULL} goes on to full length, as papers do.",) * ends),
    )


def with_interval(rate: float, low: float, high: float) -> str:
    """A share in per cent, as it reads in a table."""
    if rate == 1:
        return f"100.00 >{100 * low:.1f}"
    if rate == 0:
        return f"0.00 <{100 * high:.1f}"
    return f"{100 * rate:.2f} ±{100 * (high - low) / 2:.1f}"


def by_position(rates: Sequence[Rate], n_layers: int, task: str, target: str) -> Sheet:
    """One row per k, layer and head; one column per bucket of positions."""
    shown = set(paper_layers(sorted({rate.layer for rate in rates}), n_layers))
    rows: dict[tuple[Cell, ...], dict[str, Rate]] = {}
    for rate in sorted(rates, key=lambda r: (r.k, r.head, r.layer)):
        if rate.layer in shown:
            rows.setdefault((rate.k, rate.head, rate.layer), {})[rate.bucket] = rate
    buckets = list(dict.fromkeys(rate.bucket for rate in rates))
    how = "" if target == "greedy" else f", {target} target"
    skipped = len({rate.layer for rate in rates}) - len(shown)
    return Sheet(
        f"{task}{how}: match rate in % by output position",
        ("k", "head", "layer", *buckets),
        tuple(
            (*names, *(round(100 * cells[b].match_rate, 1) for b in buckets))
            for names, cells in rows.items()
        ),
        notes=(
            (f"The paper's depths; {skipped} more layers in --format csv and json.",)
            if skipped
            else ()
        ),
        digits=dict.fromkeys(buckets, 1),
        groups=(3, *[1] * len(buckets)),
    )


def saturation_sheet(saturations: Sequence[Saturation], n_layers: int) -> Sheet:
    """Show after how many layers the final token is there, and there to stay."""
    rows: list[tuple[Cell, ...]] = []
    for s in saturations:
        shares = (0.25, 0.5, 0.75, 0.95)
        first = [_at_most(s, _layer_at(s, s.earliest, share)) for share in shares]
        stays = [_layer_at(s, s.stays, share) for share in shares]
        rows.append((s.task, s.target, "first there", s.earliest_mean, *first))
        rows.append((s.task, s.target, "there to stay", s.stays_mean, *stays))
    return Sheet(
        f"Layers needed, of {n_layers}",
        ("task", "target", "final token", "mean", "25%", "50%", "75%", "95%"),
        tuple(rows),
        notes=(
            "25% ... 95%: layers after which so many of the tokens are settled.",
            *([PARTLY] if any(len(s.layers) < n_layers for s in saturations) else []),
            *([UNCHOSEN] if any(s.target != "greedy" for s in saturations) else []),
        ),
        digits={"mean": 2},
    )


def _layer_at(saturation: Saturation, counts: Mapping[int, int], share: float) -> Cell:
    """The smallest layer by which `share` of the tokens is covered; `>25` where none is."""
    needed, seen = share * saturation.n, 0
    for layer in sorted(counts):
        seen += counts[layer]
        if seen >= needed:
            return layer
    return f">{saturation.deepest}"


def _at_most(saturation: Saturation, layer: Cell) -> Cell:
    """The same for what is there first: `<=25` where the layer before was not looked at."""
    unsure = isinstance(layer, int) and saturation.follows_a_gap(layer)
    return f"<={layer}" if unsure else layer


def long(rates: Sequence[Rate]) -> Sheet:
    """Every rate with its interval, one per row, for other programs."""
    return Sheet.of("match rates", [asdict(rate) for rate in rates])
