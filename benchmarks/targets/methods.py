"""Methods beside greedy decoding and their counterparts, on models that others can run, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.halves import measure
from benchmarks.targets.rows import (
    DTYPES,
    REAL,
    REFERENCE,
    TargetRow,
    beside,
    decoded,
)
from ppdbench.bench.choices import with_peers
from ppdbench.bench.runner import Choice
from ppdbench.bench.summary import overall, summarize
from ppdbench.bench.sums import SampleSums, add_up
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.runs.records import DecodedSample, Header

OURS = ("greedy", "layerskip:exit_layer=2", "prompt-lookup", "draft-verify", "lookahead")
TREES = (
    "rest:datastore=reference",
    "medusa",
    "hidden-transfer",
    "prompt-tokens",
    "eagle:nodes=12,top_k=4",
)
MOST_BOOKKEEPING = 0.03
# On a real model: what needs no training for it, what was trained for it, and two units.
FREE = (
    *("greedy", "prompt-lookup", "lookahead", "rest:datastore=smollm2", "jacobi"),
    *("layerskip", "draft-verify"),
)
TRAINED = ("hybrid", "hybrid:of=eagle", "medusa", "eagle", "hidden-transfer", "prompt-tokens")
TASKS = ("gsm8k", "xsum", "humaneval", "mt_bench")
ANY_FREE = "3 without training above 1.0"
GOALS = {
    "prompt-lookup": "1.3 or more",
    **{label.partition(":")[0]: "1.8 or more of one" for label in TRAINED},
}
SPLIT = {1: "0.85 or more", 3: "0.75 or more"}  # the share of the promised gain, by k
PAIRS = {
    "greedy": "transformers:greedy",
    "layerskip:exit_layer=2": "transformers:early-exit",
    "prompt-lookup": "transformers:prompt-lookup",
}


def strategies(rounds: int) -> Iterator[TargetRow]:
    """Our methods against their counterparts."""
    chosen, _ = with_peers(list(map(Choice.parse, OURS)), REFERENCE)
    _, samples = decoded(chosen, rounds)
    by_label: dict[str, list[DecodedSample]] = {}
    for sample in samples:
        by_label.setdefault(sample.method, []).append(sample)
    for mine, theirs in PAIRS.items():
        label = mine if mine in by_label else mine.partition(":")[0]
        goal = {"greedy": "2.0", "prompt-lookup": "1.6"}.get(mine, "2.0")
        yield beside(f"{label} / {theirs}, steps", goal, by_label[label], by_label[theirs])


def speculation(rounds: int) -> Iterator[TargetRow]:
    """Yield what pays on a real model, whole answers of all tasks together, in both types.

    Of a speedup over greedy the median is that over all examples, the range its interval. Answers
    that repeat themselves without end are easy to guess: the note says what is left without them,
    and without empty ones.
    """
    peer = PAIRS["prompt-lookup"]
    chosen = list(map(Choice.parse, (*FREE, *TRAINED, peer)))
    for dtype in DTYPES:
        header, samples = decoded(
            chosen, rounds, model=REAL, dtype=dtype, tasks=TASKS, max_new_tokens=None
        )
        sums = add_up(samples)
        endless = {one.question for one in sums if one.method == "greedy" and one.degenerate}
        sound = [one for one in sums if one.question not in endless]
        found, notes = gains(header, sums), gains(header, sound) if sound and endless else {}
        for label in sorted(found, key=lambda each: -found[each][0]):
            goal = GOALS.get(label.partition(":")[0], ANY_FREE)
            note = ""
            if label in notes:
                low, middle, high = notes[label]
                without = f"without {len(endless)} endless or empty answers"
                note = f"{middle:.2f} [{low:.2f}, {high:.2f}] {without}"
            yield TargetRow(f"{label} / greedy, {REAL}, {dtype}", goal, found[label], note)
        own, theirs = ([s for s in samples if s.method == each] for each in ("prompt-lookup", peer))
        yield beside(f"prompt-lookup / {peer}, {REAL}, {dtype}", "2.5", own, theirs)


def gains(header: Header, sums: Sequence[SampleSums]) -> dict[str, tuple[float, float, float]]:
    """The speedup of each of our methods over greedy decoding, over all tasks, in its interval."""
    return {
        row["label"]: (row["speedup_low"], row["speedup"], row["speedup_high"])
        for row in overall(header, sums)
        if row["speedup"] is not None and row["label"] not in ("greedy", PAIRS["prompt-lookup"])
    }


def split(rounds: int) -> Iterator[TargetRow]:
    """Yield the share of the gain that two units of `ppd` get of what the theorem promises.

    With it what is left of the promise to units that talk for nothing: with a memory each, and with
    this machine's.
    """
    chosen = [Choice.parse(f"ppd:form=split,k={k},head={REAL}") for k in SPLIT]
    for dtype in DTYPES:
        header, samples = decoded(chosen, rounds, model=REAL, dtype=dtype, tasks=TASKS[:1])
        loaded = load(ModelSpec(name=REAL, dtype=dtype))
        for summary in summarize(header, add_up(samples), scores=False):
            k, found = summary["options"]["k"], summary["gain_efficiency"]
            what = f"ppd on two units, k={k}, share of the gain, {REAL}, {dtype}"
            halves, p = measure(loaded, k, rounds, REAL), summary["p"]
            note = (
                f"p {p:.2f}, promised {summary['predicted_speedup']:.2f}x, with a memory each "
                f"{halves.speedup_apart(p):.2f}x, with one {halves.speedup(p):.2f}x"
            )
            yield TargetRow(what, SPLIT[k], [] if found is None else [found], note)


def bookkeeping(rounds: int) -> Iterator[TargetRow]:
    """Yield the share of steps that is bookkeeping, in chains and trees, of both models.

    It takes as long whatever a pass takes: of the small model it is a share of little.
    """
    for model, labels in ((REFERENCE, (*OURS, *TREES)), (REAL, FREE)):
        chosen = list(map(Choice.parse, labels))
        header, samples = decoded(chosen, rounds, model=model, profile=True)
        summaries = summarize(header, add_up(samples), scores=False)
        shares = {s["label"]: s["profile"]["bookkeeping_share"] for s in summaries}
        over = [label for label, share in shares.items() if share > MOST_BOOKKEEPING]
        listed = " ".join(f"{label} {shares[label]:.3f}" for label in over)
        what = f"bookkeeping, share of a step, {model}"
        note = f"over: {listed}" if over else ""
        yield TargetRow(what, f"{MOST_BOOKKEEPING} or less", list(shares.values()), note)
