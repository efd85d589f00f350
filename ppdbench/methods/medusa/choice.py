"""The choice between heads in flat products and in plain ones, made when they are loaded."""

from __future__ import annotations

from dataclasses import replace

import torch

from ppdbench.engine.flat.choice import hold_rows
from ppdbench.engine.flat.understood import NotUnderstoodError, RefusedError
from ppdbench.engine.flat.weights import pack
from ppdbench.methods.medusa.flat import FlatHead, FlatHeads
from ppdbench.methods.medusa.network import MedusaHeads

CHECKED = 3  # states over which both are compared


@torch.inference_mode()
def lay_out_heads(heads: MedusaHeads) -> MedusaHeads:
    """The heads with weights laid out flat where the model's own are and they give the same."""
    staged = heads.loaded.staged
    if staged.flat is None:
        return heads
    rows = tuple(
        FlatHead(
            tuple(pack(weight[h], bias[h, 0]) for weight, bias in heads.blocks),
            tuple(pack(matrix[h]) for matrix in heads.readout),
        )
        for h in range(heads.count)
    )
    words = None if heads.words is None else pack(heads.words[1])
    seed = torch.Generator().manual_seed(0)
    states = torch.randn(CHECKED, staged.hidden_size, generator=seed).to(staged.dtype)
    try:
        flat = replace(
            heads,
            blocks=(),
            readout=(),
            words=None if heads.words is None else (heads.words[0], heads.words[1][:0]),
            flat=FlatHeads(staged.adapter, rows, words),
        )
        hold_rows(flat.logits(states), heads.logits(states), "Medusa's heads")
    except (NotUnderstoodError, RefusedError):
        return heads
    return flat
