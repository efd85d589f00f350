"""Predictive Pipelined Decoding on real units: how much of the promised gain each form gets.

    python -m benchmarks.pipelined [--model synthetic:layers=16,hidden=512] [--dtype bfloat16]

Match rates are set by `agree`, one synthetic model per point; everything within a point runs
interleaved. Per row: the measured match rate, Theorem 4.1's speedup with it, the measured one
over greedy decoding on one unit, the share of the gain, communication, weights over greedy's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ppdbench.bench.environment import set_threads
from ppdbench.bench.runner import Choice, DecodeConfig, run_decode
from ppdbench.bench.summary import summarize
from ppdbench.engine.loading import ModelSpec
from ppdbench.engine.quiet import quiet
from ppdbench.report.export import Sheet, emit

DEFAULT = "synthetic:layers=16,hidden=512"
COLUMNS = ("p", "theorem", "measured", "low", "high", "efficiency", "communication", "weights")


def point(
    model: str, dtype: str, methods: Sequence[str], examples: int, tokens: int
) -> list[dict[str, Any]]:
    """One interleaved run."""
    config = DecodeConfig(
        model=ModelSpec(name=model, dtype=dtype, device="cpu"),
        tasks=("xsum",),
        data="builtin",
        limit=examples,
        max_new_tokens=tokens,
        methods=tuple(map(Choice.parse, methods)),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = run_decode(
            config, Path(folder) / "run", kind="bench", resume=False, report=lambda *_: None
        )
    return summarize(run.header, run.samples, scores=False)


def row(model: str, whole: int, summary: dict[str, Any]) -> tuple[Any, ...]:
    """What a form got of what was promised."""
    share = summary["communication_ms_per_token"] / summary["ms_per_token"]
    broken = summary["n_examples"] - summary["identical"]
    return (
        model.partition("agree=")[2] or "-",
        summary["label"].removeprefix("ppd:"),
        summary["p"],
        summary["predicted_speedup"],
        summary["speedup_one_unit"],
        summary["speedup_one_unit_low"],
        summary["speedup_one_unit_high"],
        summary["gain_efficiency"],
        share,
        sum(summary["weight_bytes_per_unit"]) / whole,
        f"{broken} differ" if broken else "all identical",
    )


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--agree", default="0.5,0.7,0.8,0.9,0.97", help="none: the model as it is")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--form", action="append", help="split and replicated by default")
    parser.add_argument("--k", default="1,3,5")
    parser.add_argument("--examples", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    asked = parser.parse_args()
    quiet()
    set_threads(1)
    forms = asked.form or ["split", "replicated"]
    methods = [f"ppd:form={form},k={k}" for form in forms for k in asked.k.split(",")]
    points = [""] if asked.agree == "none" else [f",agree={a}" for a in asked.agree.split(",")]
    rows = []
    for suffix in points:
        name = asked.model + suffix
        greedy = ["ppd:form=inline"]  # its one unit holds what greedy decoding does
        *found, alone = point(name, asked.dtype, methods + greedy, asked.examples, asked.tokens)
        whole = alone["weight_bytes_per_unit"][0]
        rows += [row(name, whole, summary) for summary in found]
    sheet = Sheet(
        f"{asked.model}, {asked.dtype}, one thread per unit",
        ("agree", "form", *COLUMNS, "output"),
        tuple(rows),
        digits=dict.fromkeys(("theorem", "measured", "low", "high", "efficiency", "weights"), 2),
        percent=frozenset({"communication"}),
    )
    emit([sheet], None, "markdown")


if __name__ == "__main__":
    main()
