"""Drafts taken back by layers with a memory: by reading again, or by a state behind each row.

    python -m benchmarks.recurrent [--families lfm2,mamba2] [--rows 2,5,9] [--width 1024]
        [--dtype float32] [--threads 1] [--steps 24] [--save FILE.json]

A random model of each family decodes in steps as methods do: passes of some rows, of which the
first few are kept. One way copies the states before a pass, and the next one reads what was kept
again, in the mixers alone. The other lets mixers read row by row and copies their states behind
each: nothing is read again, but weights are read for every row. Models here take the second where
mixers run row by row anyway, and else the first. Both run in turns, and must give the same logits.
FILE.json in place of --families shows again what was measured. Run it on a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from benchmarks.curve import this_machine
from benchmarks.families import tiny
from benchmarks.measured import keep
from ppdbench.cli.common import parse_numbers
from ppdbench.engine.loading import DTYPES
from ppdbench.engine.memory import RememberingCache
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import NumericalError, PpdbenchError
from ppdbench.machine import environment
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet
from ppdbench.stats import median

# Short convolutions, gated delta nets, and Mamba of both makes, alone and beside attention.
FAMILIES = (
    *("lfm2", "qwen3_next", "qwen3_5_text", "mamba2", "bamba", "falcon_h1"),
    *("granitemoehybrid", "nemotron_h", "jamba"),
)
FILE = "recurrent.json"  # under results/readme
ROWS = (2, 5, 9)
PROMPT, STEPS, WARM = 64, 24, 4
HEAD = 64  # of attention and of Mamba
DELTA_HEAD = 128
STATE = 128  # numbers that Mamba keeps of each of a head's
STD = 0.05
MOST = 1_000_000_000
CLOSE = 1e-3  # of the length of logits: orders of sums differ, over many steps


class TakenBack(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of `rows` of which `kept` are kept: milliseconds of a step, and what both ways hold."""

    family: str
    rows: int
    kept: int
    again_ms: float
    by_rows_ms: float
    again_bytes: int
    by_rows_bytes: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured, and the machine that it is from."""

    machine: str
    width: int
    dtype: str
    threads: int
    steps: list[TakenBack]


def model_of(family: str, width: int, dtype: torch.dtype) -> StagedModel:
    """A random model of some layers of each kind, so wide, with parts as large as usual ones."""
    inner = 2 * width
    model = tiny(
        family,
        most=MOST,
        std=STD,
        hidden_size=width,
        intermediate_size=inner + width // 2,
        num_attention_heads=width // HEAD,
        num_key_value_heads=max(1, width // HEAD // 4),
        head_dim=HEAD,
        max_position_embeddings=4096,
        **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "num_heads"), inner // HEAD),
        **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), HEAD),
        **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), STATE),
        mamba_d_ssm=inner,
        mamba_dt_rank=width // 16,
        **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), DELTA_HEAD),
        linear_num_key_heads=max(1, width // DELTA_HEAD // 2),
        linear_num_value_heads=max(1, width // DELTA_HEAD),
    )
    return StagedModel(model.to(dtype))


class Way:
    """A sequence that is decoded in steps over one kind of cache."""

    def __init__(self, model: StagedModel, tokens: Sequence[int], *, by_rows: bool) -> None:
        self.session = Session(model, len(tokens))
        assert isinstance(self.session.cache, RememberingCache)
        self.session.cache.by_rows = by_rows
        self.tokens, self.ms = tokens, list[float]()
        self.session.reset(list(tokens[:PROMPT]))
        self.session.prefill()

    def step(self, start: int, rows: int, kept: int) -> Tensor:
        """One pass over the tokens from `start` on; its logits."""
        ids = self.session.ids(self.tokens[start : start + rows])
        began = time.perf_counter()
        logits = self.session.logits(self.session.forward(ids, self.session.chain(rows, start)))
        self.session.cache.keep(start, range(kept))
        self.ms.append(1e3 * (time.perf_counter() - began))
        return logits

    @property
    def median_ms(self) -> float:
        """Of a step, once all is warm."""
        return median(self.ms[WARM:])


@torch.inference_mode()
def taken_back(model: StagedModel, family: str, rows: int, kept: int, steps: int) -> TakenBack:
    """Decode both ways in turns, and hold one against the other."""
    drawn = torch.Generator().manual_seed(0)
    length = PROMPT + (WARM + steps) * kept + rows
    tokens = torch.randint(3, model.vocab_size, (length,), generator=drawn).tolist()
    again, by_rows = (Way(model, tokens, by_rows=each) for each in (False, True))
    for number in range(WARM + steps):
        start = PROMPT + number * kept
        mine, other = (way.step(start, rows, kept) for way in (again, by_rows))
        off = float((mine - other).norm() / other.norm())
        if model.dtype == torch.float32 and not off <= CLOSE:
            raise NumericalError(f"{family}: logits of both ways are {off:.1g} apart in a step")
    return TakenBack(
        family=family,
        rows=rows,
        kept=kept,
        again_ms=again.median_ms,
        by_rows_ms=by_rows.median_ms,
        again_bytes=again.session.cache.nbytes,
        by_rows_bytes=by_rows.session.cache.nbytes,
    )


def measured(asked: argparse.Namespace) -> Measured:
    """Measure every family with every number of rows, half of the drafts kept and all of them."""
    environment.set_threads(asked.threads)
    machine, found = this_machine(), []
    for family in asked.families.split(","):
        model = model_of(family, asked.width, DTYPES[asked.dtype])
        for rows in parse_numbers("--rows", asked.rows):
            for kept in sorted({1, 1 + (rows - 1) // 2, rows}):
                print(f"{family}, {kept} of {rows} rows", file=sys.stderr, flush=True)
                found.append(taken_back(model, family, rows, kept, asked.steps))
    return Measured(
        machine=machine, width=asked.width, dtype=asked.dtype, threads=asked.threads, steps=found
    )


def sheets(found: Measured) -> list[Sheet]:
    """Ratios of both ways in one table, and what they are of in another."""
    return [ratios(found), times(found)]


def ratios(found: Measured) -> Sheet:
    """The time of reading again, of that with a state by row: families by steps."""
    steps = sorted({(each.rows, each.kept) for each in found.steps})
    ratio = {(e.family, e.rows, e.kept): e.again_ms / e.by_rows_ms for e in found.steps}
    columns = [f"{kept} of {rows}" for rows, kept in steps]
    rows = [
        (family, *(ratio.get((family, *step)) for step in steps))
        for family in dict.fromkeys(each.family for each in found.steps)
    ]
    return Sheet(
        "Reading again, of the time with a state by row, by the rows that are kept",
        ("family", *columns),
        tuple(rows),
        notes=_notes(found),
        digits=dict.fromkeys(columns, 2),
    )


def _notes(found: Measured) -> tuple[str, ...]:
    return (
        f"Medians of a step of random models {found.width} wide, {found.dtype}, "
        f"{found.threads} threads. Ratio below 1: reading again is faster.",
        found.machine,
    )


def times(found: Measured) -> Sheet:
    """Every step with its times, and what both ways hold."""
    rows: list[tuple[Any, ...]] = [
        (
            *(each.family, each.rows, each.kept, each.again_ms, each.by_rows_ms),
            *(each.again_ms / each.by_rows_ms, each.again_bytes / 1e6, each.by_rows_bytes / 1e6),
        )
        for each in found.steps
    ]
    return Sheet(
        "Drafts taken back by layers with a memory",
        (
            *("family", "rows", "kept", "read again, ms", "state by row, ms", "ratio"),
            *("read again, MB", "state by row, MB"),
        ),
        tuple(rows),
        notes=_notes(found),
        digits={
            **dict.fromkeys(("read again, ms", "state by row, ms", "ratio"), 2),
            **dict.fromkeys(("read again, MB", "state by row, MB"), 1),
        },
    )


def stored(path: Path) -> Measured:
    """Read what `--save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Measured)


def main() -> int:
    """Measure or read, show, and keep what was asked for; an exit code."""
    quiet()
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--families", default=",".join(FAMILIES), help="or a file of --save")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="of a step")
    parser.add_argument("--width", type=int, default=1024, help="of hidden states")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--save", type=Path, help="keep what was measured, as .json")
    asked = parser.parse_args()
    kept = Path(asked.families)
    try:
        found = stored(kept) if kept.suffix == ".json" else measured(asked)
    except PpdbenchError as error:
        print(f"recurrent: {error}", file=sys.stderr)
        return 2
    emit(sheets(found), None, "markdown")
    keep(found, asked.save)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
