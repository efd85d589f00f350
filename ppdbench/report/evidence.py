"""The certainty of a speedup, in the words that every table and page uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppdbench.bench.claims import TOO_FEW, WHY_TOO_FEW, Speedup, no_difference, within_noise
from ppdbench.errors import counted
from ppdbench.runs.prompting import PLAIN as PLAIN_PROMPTS
from ppdbench.runs.samples import in_turns
from ppdbench.stats import FEW, FEW_EXAMPLES, Ratio

Summary = Mapping[str, Any]
PLAIN = (
    None,
    "mismatch",
    "failed examples",
    "not measured",
)  # a mismatch and failures stand under output
MANY_NAMES = 6  # methods from which on a note rather names the others
PAIRED = "Speedup: greedy's decode time over the method's, paired by example, 95% bootstrap."


def sized(summaries: Sequence[Summary]) -> str:
    """Say how many examples there were, and how many of them took a step that could be timed."""
    first, timed = summaries[0], min(s["n_timed"] for s in summaries)
    examples = first["n_questions"]
    words = in_turns(examples, first["n_examples"], "example")
    return words + (f", {timed} timed" if timed < examples else "")


def speedup_cells(summary: Summary, name: str = "speedup") -> tuple[str, str]:
    """The paired ratio and its interval; why there is none, or what noise could have made."""
    if summary["method"] == "greedy" and name == "speedup" and summary["noise_low"] is not None:
        return "noise floor", interval(summary["noise_low"], summary["noise_high"])
    value, low, high, withheld = (
        summary[f"{name}{end}"] for end in ("", "_low", "_high", "_withheld")
    )
    if value is None:
        return _reason(withheld), "-"
    no_claim = name == "speedup" and no_difference(summary)
    return _claimed(value, not no_claim), interval(low, high)


def claim_cells(speedup: Speedup, noise: Ratio | None) -> tuple[str, str]:
    """The same of what has no summary."""
    ratio = speedup.ratio
    if ratio is None or ratio.low is None or ratio.high is None:
        return _reason(speedup.withheld), "-"
    return _claimed(ratio.value, not within_noise(ratio, noise)), interval(ratio.low, ratio.high)


def _claimed(value: float, differs: bool) -> str:
    return f"{value:.2f}x" if differs else "no difference"


def degenerate_note(summaries: Sequence[Summary]) -> str | None:
    """Name the methods whose outputs say nothing, by number; None where all say something."""
    whose: dict[str, list[str]] = {}
    for summary in summaries:
        if summary["empty"] or summary["loops"]:
            whose.setdefault(_counted(summary), []).append(summary["label"])
    if not whose:
        return None
    all_of = [summary["label"] for summary in summaries]
    words = "; ".join(f"{n} ({_listed(labels, all_of)})" for n, labels in whose.items())
    most = any(map(mostly_degenerate, summaries))
    warning = " A speedup over mostly such outputs says little of others." if most else ""
    return f"Degenerate outputs: {words}.{warning}"


def _listed(labels: Sequence[str], all_of: Sequence[str]) -> str:
    """Name methods; of many, where the others are fewer, those that are not among them."""
    others = [label for label in all_of if label not in labels]
    if len(labels) <= MANY_NAMES or len(labels) <= len(others):
        return ", ".join(labels)
    return f"all but {', '.join(others)}" if others else "all"


def _counted(summary: Summary) -> str:
    kinds = {"empty": "empty", "loops": "looping"}
    words = " and ".join(f"{summary[kind]} {word}" for kind, word in kinds.items() if summary[kind])
    return f"{words} of {summary['n_examples']}"


def mostly_degenerate(summary: Summary) -> bool:
    """True if half or more of the outputs are empty or loop."""
    return bool(2 * (summary["empty"] + summary["loops"]) >= summary["n_examples"])


def _reason(withheld: str | None) -> str:
    """Say why there is no speedup, where nothing else in the row says so already."""
    return "-" if withheld in PLAIN else str(withheld)


def interval(low: float, high: float) -> str:
    """The bounds of an interval of ratios, as they read."""
    return f"[{low:.2f}, {high:.2f}]"


def is_chat(prompts: str) -> bool:
    """True if prompts went through a chat template, by what a summary says of them."""
    return prompts != PLAIN_PROMPTS


def chat_notes(prompts: str) -> list[str]:
    """Name the template and what it was given, where there is one."""
    return [f"Prompts: {prompts}."] if is_chat(prompts) else []


def why_no_gain(summary: Summary) -> str | None:
    """Say of a method that loses what would have to be accepted, and what is; None of others."""
    speedup, proposed = summary["speedup"], summary.get("proposed_per_step")
    needed = summary.get("committed_to_pay")
    if speedup is None or speedup >= 1 or no_difference(summary):
        return None
    if "p" in summary:
        return _why_units_lose(summary)
    if not proposed or needed is None:
        return None
    found = summary["accepted_per_proposed"]
    step = f"{summary['label']}: a step takes as long as {needed:.2f} of greedy's"
    if needed - 1 > proposed:
        return (
            f"{step}, so it cannot pay even if all {proposed:.1f} tokens that it drafts a step "
            f"were accepted; {found:.0%} are."
        )
    return (
        f"{step}, so it pays from {(needed - 1) / proposed:.0%} of {proposed:.1f} drafted tokens "
        f"accepted; {found:.0%} are."
    )


def _why_units_lose(summary: Summary) -> str:
    """Say what the matches of pipelined decoding promise, and what became of that."""
    promised = summary["predicted_speedup_times"] or summary["predicted_speedup"]
    told = (
        f"{summary['label']}: candidates held {summary['p']:.0%} of the tokens, for which the "
        f"times of its parts here promise {promised:.2f}x; "
    )
    if summary["form"] == "inline":
        return told + "one process ran them in turn, which cannot pay."
    spent = summary["communication_share"]
    return told + f"{spent:.0%} of its units' time went into messages between them."


def _experts_note(summaries: Sequence[Summary]) -> str | None:
    """Say how many experts passes read: the narrowest and the widest of each method."""
    told = []
    for summary in summaries:
        if found := summary.get("experts"):
            by_rows = {int(rows): mean for rows, mean in found["by_rows"].items()}
            ends = dict.fromkeys((min(by_rows), max(by_rows)))
            each = (f"{by_rows[n]:.1f} by {counted(n, 'row')}" for n in ends)
            told.append(f"{summary['label']} {', '.join(each)}")
    if not told:
        return None
    held = max(s["experts"]["of"] for s in summaries if s.get("experts"))
    return f"Experts that a layer reads in a pass, of {held}: {'; '.join(told)}."


def probe_note(summaries: Sequence[Summary]) -> str | None:
    """Say what was chosen for the model by looking at it, and where what was found is kept."""
    told = []
    for summary in summaries:
        if summary["probed"]:
            values = {**summary["chosen"], **summary["used"]}
            pairs = (f"{name}={values[name]}" for name in summary["chosen"])
            told.append(f"{summary['label']} {', '.join(pairs)}")
    if not told:
        return None
    each = "; ".join(dict.fromkeys(told))
    return f"Chosen for this model by a short probe, kept in run.json with its facts: {each}."


def noise_note(summaries: Sequence[Summary]) -> list[str]:
    """Say how far greedy decoding lies from itself: of several floors the least and the most."""
    floors = {
        (s["noise_high"], s["noise_low"]): s["task"]
        for s in summaries
        if s["noise_low"] is not None and s.get("added") is None
    }
    if not floors:
        return []
    by_task = len(set(floors.values())) > 1
    ends = [
        interval(low, high) + (f" on {task}" if by_task else "")
        for (high, low), task in (min(floors.items()), max(floors.items()))
    ]
    told = ends[0]
    if len(floors) > 1:
        told = f"{' to '.join(ends)}, {'a task' if by_task else 'a batch'} by its own"
    return [f"Greedy against itself: {told}, the noise of this machine."]


def added_notes(summaries: Sequence[Summary]) -> list[str]:
    """Name the methods that a stored run was resumed with, when, and the noise of that time."""
    turns: dict[str, list[Summary]] = {}
    for summary in summaries:
        if (at := summary.get("added")) is not None:
            turns.setdefault(at, []).append(summary)
    each = "; ".join(_of_turn(at, added) for at, added in turns.items())
    return [f"Added to the run later, beside greedy decoding of that time: {each}."] if each else []


def _of_turn(at: str, added: Sequence[Summary]) -> str:
    labels = ", ".join(dict.fromkeys(summary["label"] for summary in added))
    floors = {(summary["noise_low"], summary["noise_high"]) for summary in added}
    told = [interval(low, high) for low, high in floors if low is not None]
    noise = f", noise {told[0]}" if told and len(floors) == 1 else ""
    return f"{labels} ({at[:10]}{noise})"


def load_notes(summaries: Sequence[Summary]) -> list[str]:
    """Say what disturbed the times, and of methods that were added later whose."""
    whose: dict[str | None, str] = {}
    for summary in summaries:
        if summary["under_load"]:
            whose.setdefault(summary.get("added"), summary["under_load"])
    return [
        f"Under load{'' if at is None else f' on {at[:10]}'}: {load}. Measure again on a quiet "
        "machine."
        for at, load in whose.items()
    ]


def notes_on(summaries: Sequence[Summary]) -> list[str]:
    """Explain how speedups came about, and what they can be told from."""
    notes = [PAIRED]
    notes += noise_note(summaries)
    notes += added_notes(summaries)
    notes += [why for s in summaries if (why := why_no_gain(s)) is not None]
    notes += load_notes(summaries)
    if (degenerate := degenerate_note(summaries)) is not None:
        notes.append(degenerate)
    if (experts := _experts_note(summaries)) is not None:
        notes.append(experts)
    notes += chat_notes(summaries[0]["prompts"])
    if any(s["speedup_withheld"] == TOO_FEW for s in summaries):
        notes.append(WHY_TOO_FEW)
    elif min(s["n_timed"] for s in summaries) < FEW_EXAMPLES:
        notes.append(FEW)
    return notes
