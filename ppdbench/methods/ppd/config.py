"""The configuration that every form of Predictive Pipelined Decoding is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ppdbench.engine.flat.choice import kind_of_passes
from ppdbench.engine.heads import ExitHead
from ppdbench.engine.loading import Loaded, ModelSpec, resolve_device
from ppdbench.engine.session import Session
from ppdbench.methods.ppd.units import EarlyHead, own_head


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """The configuration that every form is given."""

    target: Loaded
    capacity: int
    exit_after: int
    k: int
    head: ExitHead | None
    patience_s: float

    @property
    def in_the_middle(self) -> bool:
        """True if both halves have as many layers."""
        return 2 * self.exit_after == self.target.staged.n_layers

    @property
    def head_bytes(self) -> int:
        """Bytes that a trained head adds to the weights of the unit that reads candidates out."""
        head = self.head
        parts = () if head is None else (head.weight, head.down, head.up)
        return sum(part.nbytes for part in parts if part is not None)

    def early_head(self) -> EarlyHead:
        """Return the function that reads candidates out."""
        return own_head if self.head is None else partial(_trained, self.target, self.head)

    @property
    def passes(self) -> str:
        """Return how units that load the model run its passes."""
        return kind_of_passes(self.target.staged.path.kernels)


def _trained(loaded: Loaded, head: ExitHead, session: Session, hidden: Tensor) -> Tensor:
    return head.logits(loaded.staged.adapter, loaded.staged.adapter.norm(hidden))


def device_of(spec: ModelSpec, rank: int) -> ModelSpec:
    """The same model on the GPU of this unit: the one `rank` places after the first unit's.

    Where there are too few, units share them; on the CPU all share that.
    """
    first = resolve_device(spec.device)
    if first.type != "cuda":
        return spec
    at = ((first.index or 0) + rank) % torch.cuda.device_count()
    return replace(spec, device=f"cuda:{at}")
