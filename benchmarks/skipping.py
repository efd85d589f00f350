"""A model before and after training by LayerSkip: what its exits read, and what they gain.

    python -m benchmarks.skipping TRAINED --held-out TEXT [--before smollm2] [--limit 5]
        [--method layerskip:exit_layer=6,draft_length=1] [--work FOLDER] [--save FILE.json]

TRAINED is what `ppdbench train layerskip --out` wrote. Both models read the same held-out answers,
and counted is how often an exit's first guess is the last layer's choice. Then each decodes
examples of the package with drafts of its own first layers, beside greedy decoding of its own: as
exits and lengths are chosen without options, and as every `--method` says. Runs are kept in
`--work` and gone on with. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.curve import this_machine
from benchmarks.measured import told, warned
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.bench.summary import overall
from ppdbench.bench.sums import add_up
from ppdbench.engine.loading import ModelSpec, load_stock
from ppdbench.engine.quiet import quiet
from ppdbench.errors import ConfigError, PpdbenchError
from ppdbench.files.whole import write_whole
from ppdbench.machine.environment import set_threads
from ppdbench.report.decode_tables import verdict_text
from ppdbench.report.evidence import speedup_cells
from ppdbench.report.probe_tables import spread_layers
from ppdbench.report.sheet import Cell, Sheet
from ppdbench.report.terminal import print_sheets
from ppdbench.runs.running import Destination
from ppdbench.training.evaluate import by_layer
from ppdbench.training.record import read_state
from ppdbench.training.run import HELD_OUT
from ppdbench.training.text import ANSWERS, TextSpec, tokenized
from ppdbench.training.trainer import STATE

BEFORE, AFTER = "before", "after"
TASKS = ("gsm8k", "xsum", "humaneval", "mt_bench")
DRAFTS = (
    *("method", "training", "used", "accepted", "per step", "to pay", "tokens/s"),
    *("speedup", "95%", "output"),
)
KEPT = (  # of a summary
    *("label", "used", "n_examples", "n_tokens", "identical", "tie", "mismatch", "failed", "loops"),
    *("committed_per_step", "committed_to_pay", "accepted_per_proposed", "proposed_per_step"),
    *("tokens_per_s", "baseline_tokens_per_s", "speedup", "speedup_low", "speedup_high"),
    *("speedup_withheld", "noise_low", "noise_high", "method", "target", "exact", "agreement"),
)


def read_out(name: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure every exit of a model on the held-out text, in float32."""
    model, tokenizer = load_stock(_spec(name, "float32"))
    text = TextSpec(sources=(asked.held_out,), learn=ANSWERS)
    asked.work.mkdir(parents=True, exist_ok=True)
    ids = tokenized(text, tokenizer, int(model.config.vocab_size), asked.work / HELD_OUT)
    found = by_layer(model, ids[: asked.held_out_tokens or None], asked.sequence)
    return [asdict(each) for each in found]


def decoded(name: str, which: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Decode with drafts of the model's own layers; the figures over all tasks, by method."""
    config = DecodeConfig(
        model=_spec(name, asked.dtype),
        tasks=tuple(asked.tasks),
        data="builtin",
        limit=asked.limit,
        max_new_tokens=asked.max_new_tokens,
        threads=asked.threads,
        methods=tuple(map(Choice.parse, ("greedy", *asked.method))),
        warmup=1,
    )
    folder = asked.work / which
    to = Destination(out=folder, resume=(folder / "run.json").exists(), report=told, warn=warned)
    run = run_decode(config, to, kind="bench")
    return [
        {key: summary[key] for key in KEPT} for summary in overall(run.header, add_up(run.samples))
    ]


def _spec(name: str, dtype: str) -> ModelSpec:
    return ModelSpec(name=name, dtype=dtype, device="cpu", offline=True)


def trained(folder: Path) -> dict[str, Any]:
    """Return how much a training trained, and how, from what it wrote."""
    about = read_state(folder / STATE)
    if about["kind"] != "layerskip":
        raise ConfigError(f"{folder} was trained by {about['kind']}, not by layerskip")
    config = about["config"]
    tokens = config["steps"] * config["batch_size"] * config["sequence"]
    return {"tokens": tokens, "text_tokens": about["tokens"], **config, **about["recipe"]}


def measured(asked: argparse.Namespace) -> dict[str, Any]:
    """Measure both models."""
    training, machine = trained(Path(asked.trained)), this_machine()
    set_threads(asked.threads)
    models = {BEFORE: asked.before, AFTER: asked.trained}
    return {
        "model": asked.before,
        "machine": machine,
        "dtype": asked.dtype,
        "threads": torch.get_num_threads(),
        "tasks": asked.tasks,
        "training": training,
        "exits": {which: read_out(name, asked) for which, name in models.items()},
        "decoded": {which: decoded(name, which, asked) for which, name in models.items()},
    }


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """Every exit before and after; every way to draft before and after."""
    return [_exits(content), _drafts(content)]


def _exits(content: Mapping[str, Any]) -> Sheet:
    before, after = (content["exits"][which] for which in (BEFORE, AFTER))
    shown = spread_layers([each["layer"] for each in before])
    how = content["training"]
    rows: list[dict[str, Cell]] = [
        {
            "layers": old["layer"],
            "first before": old["top1"],
            "first after": new["top1"],
            "of 3 before": old["top3"],
            "of 3 after": new["top3"],
            "loss before": old["loss"],
            "loss after": new["loss"],
        }
        for old, new in zip(before, after, strict=True)
        if old["layer"] in shown
    ]
    notes = (
        "first, of 3: how often the last layer's choice is an exit's first guess, one of its "
        "first three; loss: of the answer that the model gave before it was trained on.",
        f"Trained on {how['tokens']:,} tokens: {how['steps']} steps of {how['batch_size']} "
        f"sequences of {how['sequence']}, {how['tokens'] / how['text_tokens']:.1f} times through "
        f"its own answers; rate {how['learning_rate']:g}, layer dropout up to {how['p_max']:g}, "
        f"weight of exits {how['e_scale']:g}, every {how['rotation']}th exit in a step.",
    )
    title = f"Exits of {content['model']} before and after training by LayerSkip"
    parts = [column for column in rows[0] if column.startswith(("first", "of 3"))]
    return Sheet.of(
        title,
        rows,
        notes=notes,
        percent=frozenset(parts),
        digits=dict.fromkeys(parts, 1) | {"loss before": 2, "loss after": 2},
    )


def _drafts(content: Mapping[str, Any]) -> Sheet:
    decoded: Mapping[str, Sequence[Mapping[str, Any]]] = content["decoded"]
    rows = [
        _drafted(which, each)
        for label in [each["label"] for each in decoded[BEFORE]]
        for which, found in decoded.items()
        for each in found
        if each["label"] == label
    ]
    notes = (
        "used: exits and lengths, chosen by a short probe where the method does not name them; "
        "accepted: drafted tokens that were right; to pay: tokens that a step must commit to be "
        "worth its time.",
        f"{content['dtype']}, {content['threads']} threads; examples of "
        f"{', '.join(content['tasks'])}; each model beside its own greedy decoding, in turns; "
        f"{content['machine']}.",
    )
    return Sheet(
        f"Drafts of its own first layers, {content['model']} before and after",
        DRAFTS,
        tuple(rows),
        notes,
        percent=frozenset({"accepted"}),
        digits=dict.fromkeys(("per step", "to pay"), 2) | {"accepted": 1, "tokens/s": 1},
        spare=("tokens/s", "to pay", "output"),
    )


def _drafted(which: str, found: Mapping[str, Any]) -> tuple[Cell, ...]:
    used = ", ".join(f"{name}={value}" for name, value in found["used"].items())
    shares = ("accepted_per_proposed", "committed_per_step", "committed_to_pay", "tokens_per_s")
    figures = (found[name] for name in shares)
    return found["label"], which, used, *figures, *speedup_cells(found), verdict_text(found)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, show and keep; an exit code."""
    quiet()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.skipping", description=__doc__)
    parser.add_argument("trained", help="folder that `ppdbench train layerskip` wrote")
    parser.add_argument("--before", default="smollm2", help="the model that it was trained from")
    parser.add_argument("--held-out", required=True, help="text to measure exits on")
    parser.add_argument("--held-out-tokens", type=int, default=8192, help="the first N (0: all)")
    parser.add_argument("--sequence", type=int, default=256)
    parser.add_argument("--dtype", default="bfloat16", help="of decoding")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--method", nargs="+", default=["layerskip"], help="beside greedy")
    parser.add_argument("--limit", type=int, default=5, help="examples of each task")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--work", type=Path, default=Path("results/skipping"))
    parser.add_argument("--save", type=Path, help="keep what was measured, as .json")
    asked = parser.parse_args(words)
    try:
        content = measured(asked)
    except PpdbenchError as error:
        print(f"skipping: {error}", file=sys.stderr)
        return 2
    print_sheets(sheets(content))
    if asked.save is not None:
        write_whole(asked.save, json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
