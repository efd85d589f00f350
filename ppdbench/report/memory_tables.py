"""The arithmetic of a model's memory as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppdbench.report.sheet import Sheet

GB = 1e9
PARTS = {
    "layers_bytes": "weights of the layers",
    "embedding_and_head_bytes": "embedding, norms, head",
    "packed_head_bytes": "packed copy of a tied head",
    "turned_keys_bytes": "copy of what makes keys of latents",
    "cache_bytes": "keys and values of {context} tokens",
    "states_bytes": "states of layers with a memory",
    "passes_bytes": "passes of {context} rows",
}


def memory_sheets(needs: Mapping[str, Any]) -> list[Sheet]:
    """Show the parts of a model's memory, and what each place would hold of it."""
    rows = [(PARTS[name].format(**needs), needs[name] / GB) for name in PARTS if needs.get(name)]
    rows += [(f"{name}: what it adds", size / GB) for name, size in needs["methods_bytes"].items()]
    rows.append(("together", needs["total_bytes"] / GB))
    digits = {"GB": 3, "free GB": 3}
    parts = Sheet(f"Memory: {needs['model']}", ("what", "GB"), tuple(rows), digits=digits)
    free, held = needs["free_bytes"], needs["held_bytes"]
    places = [
        (place, held.get(place, 0) / GB, free[place] / GB if place in free else None)
        for place in [*free, *(place for place in held if place not in free)]
    ]
    told = "It fits." if needs["fits"] else "It does not fit as asked."
    notes = (f"Worked out from shapes alone; passes are an estimate. {told}",)
    header = ("place", "GB", "free GB")
    return [parts, Sheet("Where it goes", header, tuple(places), digits=digits, notes=notes)]
