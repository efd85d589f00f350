"""Messages between units that have a GPU each: hidden states never leave the GPUs.

The few numbers that come with them are read by the host, so they have a copy there. NCCL sends
what is asked for in order, and may hold a message back until the other side takes it: each
direction has a group of its own, or two units that send at once would wait for each other. On
the CPU the same runs over gloo.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from ppdbench.engine.loading import ModelSpec, resolve_device
from ppdbench.methods.ppd.channel import (
    SLOTS,
    Channel,
    GroupChannel,
    Message,
    MessageKind,
    MessageLayout,
    Packet,
)


def own_gpus(spec: ModelSpec, units: int) -> bool:
    """True if every unit of a form has a GPU of its own, and they can talk to each other."""
    import torch.distributed as dist

    return (
        resolve_device(spec.device).type == "cuda"
        and units <= torch.cuda.device_count()
        and dist.is_nccl_available()
    )


class StagedMessage:
    """A message on a device, and its numbers on the host."""

    def __init__(self, layout: MessageLayout, wire: Tensor) -> None:
        self._there, states = layout.parts(wire)
        self._here = torch.zeros(self._there.shape, dtype=self._there.dtype)
        if wire.is_cuda:
            self._here = self._here.pin_memory()
        self._packet = Packet(self._here, states)

    def write(
        self, kind: MessageKind, ids: Sequence[int], states: Tensor | None, logit: float
    ) -> None:
        """Fill in a message; the device gets to it when it has computed the states."""
        self._packet.write(kind, ids, states, logit)
        self._there.copy_(self._here, non_blocking=True)

    def read(self, landing: Tensor | None) -> tuple[Message, int]:
        """The message, once it is there; its states stay where they are."""
        self._here.copy_(self._there)
        return self._packet.read(None)


class DirectChannel(GroupChannel):
    """Like its base, with buffers on the device; `groups` are for sending and for receiving."""

    def __init__(
        self, layout: MessageLayout, peer: int, groups: tuple[Any, Any], device: torch.device
    ) -> None:
        Channel.__init__(self)
        self._peer, (self._group, self._source) = peer, groups
        wires = torch.zeros(SLOTS + 1, layout.nbytes, dtype=torch.uint8, device=device)
        self._out, self._back = wires[:SLOTS], wires[SLOTS]
        self._packets: list[Any] = [StagedMessage(layout, wire) for wire in self._out]
        self._received: Any = StagedMessage(layout, self._back)
        self._under_way = [None] * SLOTS
        self._count = 0
        self._landing = None


def nccl(store: Any, rank: int, world: int, patience: timedelta) -> Any:
    """A group over GPUs in which waiting for nobody is an error, as it is over gloo."""
    import torch.distributed as dist

    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = patience
    return dist.ProcessGroupNCCL(store, rank, world, options)
