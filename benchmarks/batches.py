"""Methods by batch sizes on one model, in float32 and bfloat16: tokens per second and speedups.

Each number type is one `bench --batch`, whose run folder is kept; printed are its tables, and
beside them how greedy decoding in batches compares with one prompt after the other.

    python -m benchmarks.batches [--model reference] [--batch 1,2,4,8,16] [--limit 64]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ppdbench import api
from ppdbench.api import Result
from ppdbench.report.sheet import Sheet
from ppdbench.report.terminal import print_sheets

METHODS = ("greedy", "prompt-lookup", "layerskip", "lookahead")
DTYPES = ("float32", "bfloat16")


def table(found: dict[str, Result]) -> Sheet:
    """Tokens per second of all sequences and speedup over greedy, method by size and type."""
    rows = [
        (dtype, row["method"], row["batch"], row["tokens_per_s"], row["speedup"], _verdicts(row))
        for dtype, result in found.items()
        for row in result.output.content
    ]
    return Sheet(
        "Methods by batch",
        ("dtype", "method", "batch", "tokens/s", "speedup", "output"),
        tuple(rows),
        digits={"tokens/s": 1, "speedup": 2},
    )


def _verdicts(row: dict[str, int]) -> str:
    return f"{row['identical']} identical, {row['tie']} tie, {row['mismatch']} mismatch"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="reference")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--batch", default="1,2,4,8,16")
    parser.add_argument("--task", default="squad")
    parser.add_argument("--data", default="builtin")
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", default="results/batches")
    given = parser.parse_args()
    found: dict[str, Result] = {}
    for dtype in DTYPES:
        model = api.load(given.model, dtype=dtype, offline=True)
        found[dtype] = api.bench(
            model,
            given.methods,
            given.task,
            batch=[int(size) for size in given.batch.split(",")],
            data=given.data,
            limit=given.limit,
            max_new_tokens=given.max_new_tokens,
            threads=given.threads,
            out=Path(given.out) / dtype,
            progress=True,
        )
        print_sheets(found[dtype].output.sheets)
    print_sheets([table(found)])


if __name__ == "__main__":
    main()
