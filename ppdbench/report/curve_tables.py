"""The cost of a pass by its rows, as a table."""

from __future__ import annotations

from ppdbench.bench.pass_curve import OTHER_BYTES, PassCurve
from ppdbench.errors import counted
from ppdbench.report.sheet import Sheet, one_line

EXPERTS = "experts\nread"
OTHER_WORDS = (
    f"behind other work: right after {OTHER_BYTES >> 20} MB of other memory were read, as a draft "
    "network's weights are; caches that held the model's weights do so no more"
)


def pass_curve_sheet(found: PassCurve) -> Sheet:
    """Both sides' times by rows, beside one row's, and below them the limit and the path."""
    one, points = found.points[0], found.points
    columns = {
        "rows": [p.rows for p in points],
        "ours ms": [p.ours.median for p in points],
        "transformers\nms": [p.stock.median for p in points],
        "ours /\none row": [p.ours.median / one.ours.median for p in points],
        "transformers\n/ one row": [p.stock.median / one.stock.median for p in points],
    }
    notes = [limit_words(found), path_words(found), _measured(found)]
    behind = [p.behind_other.median for p in points if p.behind_other is not None]
    if len(behind) == len(points):
        columns["ours behind\nother work ms"] = behind
        notes.insert(2, OTHER_WORDS)
    digits = {name: 2 for name in columns if name != "rows"}
    experts = [p.experts for p in points if p.experts is not None]
    if len(experts) == len(points):
        columns[EXPERTS] = experts
        digits[EXPERTS] = 1
        notes.append(_experts_words(found))
    return Sheet(
        f"Passes by their rows: {curve_label(found)}",
        tuple(columns),
        tuple(zip(*columns.values(), strict=True)),
        notes=tuple(notes),
        digits=digits,
    )


def curve_label(found: PassCurve) -> str:
    """Name what was measured and on how much of the machine."""
    random = " (synthetic weights)" if found.is_synthetic else ""
    threads = counted(found.threads, "thread")
    return f"{found.model}{random}, {found.dtype} on {found.device}, {threads}"


def limit_words(found: PassCurve) -> str:
    """Say how long reading the weights takes, and how much of one row's pass that is."""
    return (
        f"reading the weights once, {found.weight_bytes / 1e6:.1f} MB at "
        f"{found.bandwidth_bytes_per_s / 1e9:.1f} GB/s, takes {found.reading_ms:.2f} ms: "
        f"{found.reading_share:.2f} of our pass of one row"
    )


def path_words(found: PassCurve) -> str:
    """Say which kernels ran, why, and how long it took to prepare them."""
    path = found.path
    ready = f"; ready after {path.prepared_s:.1f} s" if path.prepared_s else ""
    return f"our passes: {path.words}{ready}"


def _experts_words(found: PassCurve) -> str:
    held, name = found.experts_of_a_layer, one_line(EXPERTS)
    return f"{name}: different ones in a pass, of {held} in a layer, on average of the layers"


def _measured(found: PassCurve) -> str:
    most, rounds = found.points[-1], counted(found.rounds, "round")
    return (
        f"medians of {len(most.ours.ms)} passes in {rounds}, in turns, behind "
        f"{found.context} cached tokens; the same likeliest token for {found.same_tokens} of "
        f"{most.rows} rows"
    )
