"""The choice between a draft network's program and its modules, made when it is loaded."""

from __future__ import annotations

import torch

from ppdbench.engine.flat.choice import ProductChecks, hold_rows
from ppdbench.engine.flat.products import plain
from ppdbench.engine.flat.understood import NotUnderstoodError, RefusedError
from ppdbench.engine.packing import exchange, pack
from ppdbench.methods.eagle.flat import FlatDraft
from ppdbench.methods.eagle.network import DraftNetwork
from ppdbench.methods.eagle.rows import DraftRows

# A check over true rows, and over two levels behind them: the rows that guesses go on from.
TRUE_ROWS, LEVELS = 7, ((0, 0, 0), (0, 0, 1))
SEED = 0


@torch.inference_mode()
def lay_out_draft(network: DraftNetwork, *, flat: bool) -> FlatDraft | None:
    """Lay a network's products out, flat where that is asked for and gives the same.

    Without a program, which is not returned then, they are packed for its modules.
    """
    if flat:
        try:
            return _flat(network)
        except (NotUnderstoodError, RefusedError, ValueError):  # or heads of odd sizes
            exchange(network, plain)
    pack(network)
    return None


def _flat(network: DraftNetwork) -> FlatDraft:
    if network.dtype != network.target.dtype:
        raise NotUnderstoodError(f"its weights are of {network.dtype}")
    exchange(network, ProductChecks().flat)
    made = FlatDraft(network)
    _compare(made)
    return made


def _compare(flat: FlatDraft) -> None:
    """Refuse a program that gives other states or logits than the modules do."""
    network, drawn = flat.network, torch.Generator().manual_seed(SEED)
    spare = sum(map(len, LEVELS))
    both = [DraftRows(network, TRUE_ROWS, spare, way) for way in (None, flat)]
    tokens = torch.randint(network.target_vocab, (1, TRUE_ROWS), generator=drawn)
    features = torch.randn(1, TRUE_ROWS, flat.width, generator=drawn).to(flat.dtype)
    wanted, found = (rows.read(tokens, features) for rows in both)
    hold_rows(found, wanted, "a draft of true rows")
    levels = [rows.branches(wanted[:, -1:]) for rows in both]
    for origin in LEVELS:
        tokens = torch.randint(network.target_vocab, (len(origin),), generator=drawn)
        wanted, found = (level.extend(torch.tensor(origin), tokens) for level in levels)
        hold_rows(found, wanted, "a draft of guesses")
    wanted, found = (level.logits() for level in levels)
    hold_rows(found, wanted, "the readout of a draft")
