"""Every family of decoders that transformers has, and what became of it here.

The table beside this file was written by `make families`, which builds a tiny model of each and
holds it against transformers. It is read where no model should be loaded: in lists, and before
the weights of one that would be refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("families.json")


@dataclass(frozen=True, slots=True)
class Known:
    """One family: its `kind` of layers, and whether it runs or `why` not."""

    family: str
    kind: str
    runs: bool
    why: str


@cache
def of_text_and_more() -> dict[str, str]:
    """The classes of transformers that read pictures or sounds and write, by `model_type`."""
    from transformers.models.auto import modeling_auto as auto

    return {
        **auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
        **auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }


@cache
def known() -> dict[str, Known]:
    """All families by their `model_type`."""
    rows = json.loads(TABLE.read_text("utf-8"))
    return {row["family"]: Known(**row) for row in rows}
