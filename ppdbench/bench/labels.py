"""Names of what decodes in batches, for who runs it and who reads it back."""

from __future__ import annotations

APART = "apart"  # the value of --prefill that runs a newcomer's prompt in a pass of its own


def label_of(label: str, size: int) -> str:
    """The label of a method in batches of this size; alone it keeps its own."""
    return label if size == 1 else f"{label} (batch {size})"


def label_alone(label: str, size: int) -> str:
    """The label that a method has alone."""
    return label.removesuffix(f" (batch {size})")
