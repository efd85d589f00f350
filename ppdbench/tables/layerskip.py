"""Tables 2 to 5 and 10 of "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding".

Each printed row has the same method of ours beside it, with the same share of the layers and the
same draft length. The paper's autoregressive rows are of weights without LayerSkip; ours are of
the very weights that draft, so that outputs can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ppdbench.errors import DataError
from ppdbench.files.papers import Paper, our_task
from ppdbench.runs.store import StoredRun
from ppdbench.tables import decoded
from ppdbench.tables.base import TableSheets, table
from ppdbench.tables.compared import ComparedRow, Quantity, blanks, compared
from ppdbench.tables.recipe import RecipeStep, layers_at

PaperRow = Mapping[str, Any]
Summary = Mapping[str, Any]
Key = tuple[str, str, int | None, int | None]  # task, method, layers run, tokens drafted

METHODS = {
    "autoregressive": "greedy",
    "early_exit": "early-exit",
    "self_speculative": "layerskip",
    "draft_and_verify": "draft-verify",
}
GENERATED, PARSED = ("cnn_dailymail", "xsum", "humaneval"), ("topv2",)
UNSAID_LENGTH = 12  # Table 3 does not say how long drafts are; Table 2 has 12 on the same task

ONE_SHOT = RecipeStep(
    "layerskip-cnn",
    "bench --task cnn_dailymail --shots 1 --method greedy --method draft-verify "
    "--method early-exit:exit_layer={8/32} --method early-exit:exit_layer={15/40} "
    "--method layerskip:exit_layer={8/32},draft_length=12 "
    "--method layerskip:exit_layer={15/40},draft_length=12",
)
ZERO_SHOT = RecipeStep(
    "layerskip-xsum",
    "bench --task xsum --method greedy --method draft-verify "
    "--method early-exit:exit_layer={8/32} --method early-exit:exit_layer={15/40} "
    "--method layerskip:exit_layer={8/32},draft_length=12 "
    "--method layerskip:exit_layer={15/40},draft_length=4",
)
CODE = RecipeStep(
    "layerskip-code",
    "bench --task humaneval --method greedy "
    "--method early-exit:exit_layer={8/32} --method early-exit:exit_layer={15/40} "
    "--method layerskip:exit_layer={8/32},draft_length=6 "
    "--method layerskip:exit_layer={7/40},draft_length=4",
)
SCRATCH = RecipeStep(
    "layerskip-scratch",
    "bench --task cnn_dailymail --shots 1 --method greedy "
    + " ".join(
        f"--method layerskip:exit_layer={exit_layer},draft_length={UNSAID_LENGTH}"
        for exit_layer in ("{8/24}", "{8/32}")
    ),
)
FINETUNED_CODE = RecipeStep(
    "layerskip-code-finetuned",
    "bench --task humaneval --method greedy --method early-exit:exit_layer={6/32} "
    "--method layerskip:exit_layer={6/32},draft_length=12",
)


def _parses(name: str, draft_length: int, tokens: int) -> RecipeStep:
    """Make a step that parses TOPv2 with three exits."""
    exits = ("{18/24}", "{12/24}", "{6/24}")
    early = " ".join(f"--method early-exit:exit_layer={e}" for e in exits)
    drafts = " ".join(
        f"--method layerskip:exit_layer={e},draft_length={draft_length}" for e in exits
    )
    return RecipeStep(
        name,
        f"bench --task topv2 --max-new-tokens {tokens} --method greedy {early} {drafts}",
    )


PARSES_GPU = _parses("layerskip-parses-gpu", 8, 80)
PARSES_CPU = _parses("layerskip-parses-cpu", 7, 50)

ROUGE = Quantity("rouge2", "ROUGE-2", 4)
EXACT = Quantity("exact_match", "exact match")
ACCEPTED = Quantity("token_acceptance", "accepted")
SPEED = Quantity("tokens_per_s", "tokens/s", 1)
TIME = Quantity("time_per_token_ms", "ms/token", 2)
SPEEDUP = Quantity("speedup", "speedup", 2)

SAME_WEIGHTS = (
    "Printed greedy rows are of weights without LayerSkip; ours are of the same weights in every "
    "row. Speedup is of times per token, paired by example, and absent beside a mismatch."
)
ACCEPTANCE = (
    "accepted: of drafted tokens, the model's own not counted. E: layers run, of all; d: tokens "
    "drafted at most."
)
UNLIKE = "draft-verify is printed from its own paper, with other references; d and E are its own."


@table("layerskip/2", recipe=(ONE_SHOT, ZERO_SHOT, CODE), tasks=GENERATED)
def generation(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Quality, acceptance and speed after continual pretraining."""
    return _generated(
        "Table 2: generation after continual pretraining", paper, runs, (SAME_WEIGHTS, UNLIKE)
    )


@table("layerskip/3", recipe=(SCRATCH,), tasks=GENERATED[:1])
def from_scratch(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The same for models trained from scratch."""
    rows = [
        {**row, "num_speculations": UNSAID_LENGTH if row["exit_layer"] else None}
        for row in paper["rows"]
    ]
    notes = (SAME_WEIGHTS, f"The paper does not say d; ours is {UNSAID_LENGTH}, as in Table 2.")
    return _generated(
        "Table 3: generation after pretraining from scratch", {**paper, "rows": rows}, runs, notes
    )


@table("layerskip/4", recipe=(FINETUNED_CODE,), tasks=GENERATED[2:])
def code(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Code completion after finetuning on code."""
    return _generated("Table 4: HumanEval after finetuning on code", paper, runs, (SAME_WEIGHTS,))


@table("layerskip/5", recipe=(PARSES_GPU,), tasks=PARSED)
def parses(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """Parsing after finetuning on TOPv2, on a GPU."""
    return _parsed("Table 5: TOPv2 after task finetuning, GPU", paper, runs)


@table("layerskip/10", recipe=(PARSES_CPU,), tasks=PARSED)
def parses_on_cpu(paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    """The same on a CPU, where speedups follow from the times."""
    length = paper["setting"]["num_speculations"]
    greedy = next(r for r in paper["rows"] if r["method"] == "autoregressive")
    rows = [
        {
            **row,
            "num_speculations": length if row["method"] == "self_speculative" else None,
            "speedup": greedy["time_per_token_ms"] / row["time_per_token_ms"],
        }
        for row in paper["rows"]
    ]
    return _parsed("Table 10: TOPv2 after task finetuning, CPU", {**paper, "rows": rows}, runs)


def _generated(
    title: str, paper: Paper, runs: Sequence[StoredRun], notes: Sequence[str]
) -> TableSheets:
    quantities = (ROUGE, ACCEPTED, SPEED, SPEEDUP)
    scores = {"rouge2": "rouge2"}
    return _compared(title, paper, runs, quantities, scores, (*notes, ACCEPTANCE))


def _parsed(title: str, paper: Paper, runs: Sequence[StoredRun]) -> TableSheets:
    quantities = (EXACT, ACCEPTED, TIME, SPEEDUP)
    scores = {"exact_match": "topv2_exact_match"}
    notes = (SAME_WEIGHTS, ACCEPTANCE, "The paper's model was finetuned on this task.")
    return _compared(title, paper, runs, quantities, scores, notes)


def _compared(
    title: str,
    paper: Paper,
    runs: Sequence[StoredRun],
    quantities: Sequence[Quantity],
    scores: Mapping[str, str],
    notes: Sequence[str],
) -> TableSheets:
    """Every printed row with what was measured at the same depth."""
    ours = _measured(runs, {our_task(row["task"]) for row in paper["rows"]})
    depth = depth_of(ours)
    exits = _exits(paper, depth)
    made: dict[Key, dict[str, Any]] = {}
    rows = []
    for row in paper["rows"]:
        key = _key(row, exits.get((row["task"], _share(row, paper))))
        if key in ours and key not in made:
            made[key] = values(ours[key], scores)
        rows.append(ComparedRow(_names(row, paper, key, depth), row, made.get(key, {})))
    missing = blanks(rows, "they were not run at this depth and draft length", runs)
    return compared(
        title, NAMES, quantities, rows, (*notes, *missing, *decoded.evidence(ours.values()))
    )


NAMES = ("task", "model", "method", "E paper", "E", "d")


def _names(row: PaperRow, paper: Paper, key: Key, depth: int) -> tuple[str | int | None, ...]:
    task, method, exit_layer, length = key
    model, layers = _model(row, paper)
    size = model.rpartition("-")[2]
    printed = f"{row['exit_layer']}/{layers}" if row["exit_layer"] else None
    return task, size, method, printed, f"{exit_layer}/{depth}" if exit_layer else None, length


def _key(row: PaperRow, exit_layer: int | None) -> Key:
    """Find the run of ours that belongs beside a printed row."""
    task, method = our_task(row["task"]), METHODS[row["method"]]
    return task, method, exit_layer, row.get("num_speculations")


def _share(row: PaperRow, paper: Paper) -> Fraction | None:
    """The part of its model that a row runs while drafting."""
    _, layers = _model(row, paper)
    return Fraction(row["exit_layer"], layers) if row["exit_layer"] else None


def _exits(paper: Paper, depth: int) -> dict[tuple[str, Fraction | None], int]:
    """Map the paper's exits to our layers: on each task those that its recipe runs."""
    shares: dict[str, set[Fraction]] = {}
    for row in paper["rows"]:
        share = _share(row, paper)
        if share is not None:
            shares.setdefault(row["task"], set()).add(share)
    return {
        (task, share): layer
        for task, of_task in shares.items()
        for share, layer in layers_at(of_task, depth).items()
    }


def _model(row: PaperRow, paper: Paper) -> tuple[str, int]:
    """The paper's model of a row and how many layers it has."""
    setting = paper["setting"]
    model = row.get("model") or setting["model"]
    layers = setting["layers"]
    return model, layers[model] if isinstance(layers, Mapping) else layers


def _measured(runs: Sequence[StoredRun], tasks: set[str]) -> dict[Key, Summary]:
    """Summaries by what they are of; of several alike the last one counts."""
    found: dict[Key, Summary] = {}
    for summary in decoded.summaries(runs, tasks):
        if _plain(summary):
            options, name = decoded.settled(summary), summary["method"]
            drafts = options.get("draft_length") if name == "layerskip" else None
            found[summary["task"], name, options.get("exit_layer"), drafts] = summary
    if not found:
        raise DataError(
            f"none of these runs decodes {' or '.join(sorted(tasks))} as this table needs; run "
            "what `ppdbench table` without a run names"
        )
    return found


def _plain(summary: Summary) -> bool:
    """True if a method ran as in the paper: fixed exits and lengths, everything reused."""
    return summary["method"] in METHODS.values() and (
        summary["method"] == "draft-verify"
        or (has_fixed_drafts(summary) and summary["options"].get("reuse", "kvq") == "kvq")
    )


def has_fixed_drafts(summary: Summary) -> bool:
    """True if exits and draft lengths were the same in every step."""
    options = summary["options"]
    return not options.get("confidence") and not options.get("adaptive")


def depth_of(ours: Mapping[Any, Summary]) -> int:
    """Return the number of layers of these runs' model."""
    return decoded.n_layers(next(iter(ours.values())))


def values(summary: Summary, scores: Mapping[str, str]) -> dict[str, Any]:
    """Return what a row shows of a summary; `scores` are metrics by the name they have there."""
    return {
        **{name: decoded.quality(summary, metric) for name, metric in scores.items()},
        "token_acceptance": summary["accepted_per_proposed"],
        "tokens_per_s": summary["tokens_per_s"],
        "time_per_token_ms": summary["ms_per_token"],
        "speedup": decoded.speedup(summary),
    }
