"""Tables of a decoding run, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ppdbench.bench.counterparts import Beside
from ppdbench.errors import counted
from ppdbench.report import pipeline_tables, profile_tables
from ppdbench.report.evidence import (
    claim_cells,
    is_chat,
    notes_on,
    probe_note,
    sized,
    speedup_cells,
)
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.runs.samples import in_turns

Summary = Mapping[str, Any]
PER_STEP = "per step: tokens that one pass of the whole model commits; each of greedy's commits 1."
PARTED = ("profile", "memory", "quality")  # figures by name, each of which has a column
ACCEPTED = "accepted: the share of drafted tokens that were kept."


def sheets(summaries: Sequence[Summary]) -> list[Sheet]:
    """Speed, identity and, where it was scored, quality of one method per task."""
    return [
        _speed(summaries),
        _identity(summaries),
        *pipeline_tables.sheets(summaries),
        *profile_tables.sheets(summaries),
        *([scores_sheet(summaries)] if _scored(summaries) else []),
    ]


def comparison(
    summaries: Sequence[Summary], overall: Sequence[Summary], peers: Sequence[Beside] = ()
) -> list[Sheet]:
    """Several methods side by side: one table per task, one for all, peers, and quality."""
    tasks = list(dict.fromkeys(s["task"] for s in summaries))
    tables = [_side_by_side([s for s in summaries if s["task"] == task]) for task in tasks]
    if len(tasks) > 1:
        tables.append(_side_by_side(overall))
    return [
        *tables,
        *([beside_peers(peers)] if peers else []),
        *pipeline_tables.sheets(summaries),
        *profile_tables.sheets(summaries),
        *method_memory(overall),
        *([scores_sheet(summaries)] if _scored(summaries) else []),
    ]


def beside_peers(peers: Sequence[Beside]) -> Sheet:
    """Compare our methods with those of others that do the same."""
    rows = tuple((p.ours, p.theirs, p.n_examples, *claim_cells(p.speedup, p.noise)) for p in peers)
    return Sheet(
        "Beside transformers",
        ("method", "against", "examples", "speedup", "95%"),
        rows,
        notes=("Its decode time over ours for as many tokens, paired by example, all tasks.",),
        spare=("examples",),
    )


def method_memory(summaries: Sequence[Summary]) -> list[Sheet]:
    """Show the memory that each method keeps beside the model and its cache."""
    known = [s for s in summaries if s["memory"] is not None]
    if not known:
        return []
    held = known[0]["memory"]
    both = held["weight_bytes"] + held["cache_bytes"]
    rows = tuple(
        (s["label"], s["memory"]["method_bytes"] / 2**20, s["memory"]["method_bytes"] / both)
        for s in known
    )
    return [
        Sheet(
            f"Memory of methods on {where(known[0])}",
            ("method", "MiB", "of model and cache"),
            rows,
            notes=(
                "Tensors that a method holds itself: its weights, caches and buffers. The model: "
                f"{held['weight_bytes'] / 2**20:.1f} MiB, its cache for the longest example: "
                f"{held['cache_bytes'] / 2**20:.1f} MiB.",
            ),
            digits={"MiB": 2, "of model and cache": 1},
            percent=frozenset({"of model and cache"}),
        )
    ]


def differing(n: int) -> str:
    """Say that so many outputs differ from greedy's."""
    return f"{counted(n, 'output')} {'differs' if n == 1 else 'differ'} from greedy"


def verdict_text(summary: Summary) -> str:
    """Sum up the verdicts on outputs in words; alarming ones first."""
    if summary["target"] != "greedy":
        inexact = "" if summary["exact"] else "inexact, "
        words = [f"{inexact}sampled ({summary['target']})"]
    elif not summary["exact"]:
        agreement = summary["agreement"]
        words = ["inexact" if agreement is None else f"inexact, {100 * agreement:.1f}% agree"]
    else:
        kinds = {"mismatch": "MISMATCH", "tie": "tie", "identical": "identical"}
        words = [f"{summary[kind]} {word}" for kind, word in kinds.items() if summary[kind]]
    if summary["failed"]:
        words.insert(0, f"{summary['failed']} FAILED")
    return ", ".join(words)


def _side_by_side(summaries: Sequence[Summary]) -> Sheet:
    first, note = summaries[0], probe_note(summaries)
    rows = tuple(
        (
            s["label"],
            s["tokens_per_s"],
            s["committed_per_step"],
            verdict_text(s),
            *speedup_cells(s),
        )
        for s in summaries
    )
    return Sheet(
        f"{first['task']}: {sized(summaries)}, {where(first)}",
        ("method", "tokens/s", "per step", "output", "speedup", "95%"),
        rows,
        notes=(PER_STEP, *([note] if note else ()), *notes_on(summaries)),
        digits={"tokens/s": 1, "per step": 2},
        spare=("per step", "tokens/s"),
    )


def where(summary: Summary) -> str:
    """The model, and what a reader must know to compare with another run."""
    marks = [summary["dtype"]]
    marks += [f"GGUF {summary['gguf']}"] if summary.get("gguf") else []
    marks += ["with an adapter"] if summary.get("adapter") else []
    marks += ["random weights"] if summary["synthetic"] else []
    marks += ["chat"] if is_chat(summary["prompts"]) else []
    marks += ["strict"] if summary["strict"] else []
    processes = summary.get("processes", 1)
    if processes != 1:
        marks.append("in jobs" if processes is None else f"{processes} processes")
    return f"{summary['model']} ({', '.join(marks)})"


def _speed(summaries: Sequence[Summary]) -> Sheet:
    first = summaries[0]
    columns = {
        "task": "task",
        "examples": "examples",
        "timed": "n_timed",
        "tokens": "n_tokens",
        "prefill ms": "prefill_ms",
        "ms/token": "ms_per_token",
        "tokens/s": "tokens_per_s",
        "per step": "committed_per_step",
        "accepted": "accepted_per_proposed",
    }
    if first["method"] == "greedy":
        del columns["accepted"]  # it proposes nothing
    if all(s["n_timed"] == s["n_questions"] for s in summaries):
        del columns["timed"]
    counted = [{**s, "examples": _examples(s)} for s in summaries]
    rows = tuple(tuple(s[name] for name in columns.values()) for s in counted)
    peak = max((s["peak_memory_bytes"] or 0 for s in summaries), default=0)
    return Sheet(
        f"{first['method']}{_options(first)} on {where(first)}",
        tuple(columns),
        rows,
        notes=(
            "Steps alone; the first token belongs to the prefill. Peak memory of the process: "
            f"{peak / 2**20:.0f} MiB.",
            PER_STEP,
            *(() if first["method"] == "greedy" else (ACCEPTED,)),
        ),
        digits={"prefill ms": 2, "ms/token": 3, "tokens/s": 1, "per step": 2, "accepted": 1},
        percent=frozenset({"accepted"}),
        spare=("prefill ms", "tokens", "tokens/s"),
    )


def _examples(summary: Summary) -> int | str:
    """Count the examples, and the turns where there are more of these."""
    examples, turns = summary["n_questions"], summary["n_examples"]
    return examples if examples == turns else in_turns(examples, turns)


def _options(summary: Summary) -> str:
    """The method's options: what was typed, or what it chose itself."""
    pairs = _pairs(summary)
    return f" ({pairs})" if pairs else ""


def _pairs(summary: Summary) -> str:
    told = as_used(summary["options"], summary["used"])
    return ", ".join(f"{name}={value}" for name, value in told.items())


def as_used(options: Mapping[str, Any], used: Mapping[str, str]) -> dict[str, Any]:
    """Options as they took effect; those that are empty say nothing."""
    return {n: used.get(n, value) for n, value in options.items() if n in used or value != ""}


def _identity(summaries: Sequence[Summary]) -> Sheet:
    rows = tuple((s["task"], verdict_text(s), *speedup_cells(s)) for s in summaries)
    notes = notes_on(summaries)
    return Sheet("Against greedy", ("task", "output", "speedup", "95%"), rows, notes=tuple(notes))


def _scored(summaries: Sequence[Summary]) -> bool:
    return any(s["quality"] for s in summaries)


def scores_sheet(summaries: Sequence[Summary]) -> Sheet:
    """The scores of every task and method."""
    rows = tuple(
        (s["task"], s["label"], metric, value)
        for s in summaries
        for metric, value in (s["quality"] or {}).items()
    )
    lacking = {(s["task"], s["unscored"]) for s in summaries if s.get("unscored")}
    notes = [
        f"{task}: {n} outputs had no score, as their reference holds none to compare with"
        for task, n in sorted(lacking)
    ]
    return Sheet("Quality", ("task", "method", "metric", "value"), rows, notes=tuple(notes))


def long(summaries: Sequence[Summary]) -> Sheet:
    """Every figure, one task and method per row, for other programs."""
    flat = [dict(_columns(summary)) for summary in summaries]
    # Some methods have figures that others lack.
    names = tuple(dict.fromkeys(name for figures in flat for name in figures))
    return Sheet("decoding", names, tuple(tuple(map(each.get, names)) for each in flat))


def _columns(summary: Summary) -> Iterator[tuple[str, Cell]]:
    """Each figure with the name of its column; what is counted by length or layer has none."""
    for name, value in summary.items():
        if name == "options":
            yield name, _pairs(summary)
        elif name in PARTED:
            yield from ((f"{name}_{part}", figure) for part, figure in (value or {}).items())
        elif isinstance(value, list):
            yield name, "+".join(map(str, value))
        elif not isinstance(value, dict):
            yield name, str(value) if isinstance(value, bool) else value
