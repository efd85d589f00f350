"""The draft length that was fastest in batches of each size, as vLLM takes it.

`num_speculative_tokens_per_batch_size` of vLLM's `speculative_config` is a list of [first batch
size, last batch size, drafted tokens], both ends included, 0 for none; between and behind the
ranges the last one before holds (https://github.com/vllm-project/vllm/pull/32374).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ppdbench.bench.grid import LENGTHS
from ppdbench.bench.sweep_summary import BATCH, Cell, Swept


def schedule(found: Swept) -> dict[str, Any]:
    """The fields of vLLM's configuration, from a sweep over draft lengths and batch sizes.

    Nothing where the sweep was over something else.
    """
    length = next((name for name in LENGTHS if name in found.axes), None)
    if length is None or BATCH not in found.axes:
        return {}
    ranges = [[start, end, drafted] for start, end, drafted in _ranges(found, length)]
    return {
        "num_speculative_tokens": max(found.axes[length]),
        "num_speculative_tokens_per_batch_size": ranges,
    }


def _ranges(found: Swept, length: str) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of sizes and what is best in them: from each size to the next that differs."""
    best = [(size, _best(found, size, length)) for size in sorted(found.axes[BATCH])]
    kept = [best[0], *(b for a, b in pairwise(best) if a[1] != b[1])]
    starts = [1, *(size for size, _ in kept[1:])]
    ends = [*(start - 1 for start in starts[1:]), best[-1][0]]
    for start, end, (_, drafted) in zip(starts, ends, kept, strict=True):
        yield start, end, drafted


def _best(found: Swept, size: int, length: str) -> int:
    """The fastest draft length in batches of a size; 0 where greedy decoding was faster."""
    paces = [(_pace(cell), int(cell.at[length])) for cell in found.cells if cell.at[BATCH] == size]
    fastest, drafted = max(paces, key=lambda one: (one[0], -one[1]))
    return drafted if fastest > 1 else 0


def _pace(cell: Cell) -> float:
    """The speed of a cell over greedy on however few examples; 0 where it is wrong."""
    summary = cell.summary
    if summary is None or summary["mismatch"] or summary["failed"]:
        return 0.0
    ours, greedy = summary["tokens_per_s"], summary["baseline_tokens_per_s"]
    return ours / greedy if ours and greedy else 0.0
