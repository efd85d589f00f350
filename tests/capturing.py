"""What stands for a GPU in tests of captured passes: the call is made again.

Calls are made once, their outputs kept, and repeated over the very same buffers into the very same
outputs, which is all that a CUDA graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ppdbench.engine.graphs import TensorCall


class Repeated:
    """Captures by calling again; counts what was captured."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, call: TensorCall) -> tuple[Callable[[], object], Sequence[Tensor]]:
        self.made += 1
        kept = [out.clone() for out in call()]

        def replay() -> None:
            for held, new in zip(kept, call(), strict=True):
                held.copy_(new)

        return replay, kept
