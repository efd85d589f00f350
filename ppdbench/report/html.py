"""HTML and SVG as nested values. All text is escaped here, so that no output becomes markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from ppdbench.files.clean import clean

VOID = {"meta", "br", "hr", "input", "link"}
# Parts of a drawing have no content, and closing each of them would make pages longer.
EMPTY = {"rect", "line", "path", "circle"}

Child: TypeAlias = "Node | Raw | str | int | Iterable[Child] | None"
Attribute = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that is markup already: style, script and data of our own making."""

    text: str


@dataclass(frozen=True, slots=True)
class Node:
    """An element, its attributes and what is in it."""

    tag: str
    attributes: dict[str, Attribute]
    children: tuple[Child, ...]

    def __str__(self) -> str:
        return "".join(_pieces(self))


def h(tag: str, /, *children: Child, **attributes: Attribute) -> Node:
    """An element; `class_` and `aria_label` are written `class` and `aria-label`."""
    named = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
    return Node(tag, named, children)


def _pieces(child: Child) -> Iterator[str]:
    if child is None:
        return
    if isinstance(child, Raw):
        yield child.text
    elif isinstance(child, Node):
        yield from _element(child)
    elif isinstance(child, str | int):
        yield clean(str(child), "html")
    else:
        for inner in child:
            yield from _pieces(inner)


def _element(node: Node) -> Iterator[str]:
    attributes = "".join(_written(name, value) for name, value in node.attributes.items())
    if node.tag in VOID or (node.tag in EMPTY and not node.children):
        yield f"<{node.tag}{attributes}{'' if node.tag in VOID else '/'}>"
        return
    yield f"<{node.tag}{attributes}>"
    yield from _pieces(node.children)
    yield f"</{node.tag}>"


def _written(name: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
    return f' {name}="{clean(text, "attribute")}"'
