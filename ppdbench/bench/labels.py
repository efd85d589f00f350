"""Labels of methods that decode in batches, for who runs them and who reads them back."""

from __future__ import annotations


def label_of(label: str, size: int) -> str:
    """The label of a method in batches of this size; alone it keeps its own."""
    return label if size == 1 else f"{label} (batch {size})"


def label_alone(label: str, size: int) -> str:
    """The label that a method has alone."""
    return label.removesuffix(f" (batch {size})")
