"""The table of our methods: it names all of them, what it names is there, and nothing else does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppdbench import methods
from ppdbench.methods import METHODS, OURS
from ppdbench.training.plans import TRAINABLES

FOLDER = Path(methods.__file__).parent
NO_METHODS = {"__init__", "base", "copies", "exits", "plugins"}

# Where else methods are named: commands that are of one method, papers, a word that is one, too.
NAMED_IN = {
    "cli/datastore_command.py": {"rest"},
    "cli/decode_command.py": {"ppd"},
    "cli/main.py": {"draft-verify"},
    "cli/skips_command.py": {"draft-verify"},
    "engine/anatomy.py": {"hybrid"},
    "files/publications.py": {"layerskip", "ppd"},
    "report/profile_tables.py": {"rest"},
}
# Words of their own, or of what this package is about: names only where they are all that is said.
WORDS = {"rest", "hybrid", "lookahead", "speculative", "ppd"}
REFERENCE = "greedy"  # what every method is held against
NAMES = OURS.keys() - {REFERENCE}
APART = re.compile(rf"(?<![\w-])({'|'.join(sorted(NAMES - WORDS, reverse=True))})(?![\w-])")
HOMES = {f"{methods.__name__}.{OURS[name][0].partition('.')[0]}": name for name in NAMES}


def test_every_file_and_folder_is_named() -> None:
    lying = {path.stem for path in FOLDER.glob("*.py")} - NO_METHODS
    lying |= {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    assert {modules[0].partition(".")[0] for modules in OURS.values()} == lying
    plans = {f"{path.parent.name}.plan" for path in FOLDER.glob("*/plan.py")}
    assert {module for modules in OURS.values() for module in modules[1:]} == plans


@pytest.mark.parametrize("name", OURS)
def test_what_is_named_registers_itself_under_that_name(name: str) -> None:
    made = [METHODS.get(name).make, *([TRAINABLES.get(name).plan] if len(OURS[name]) > 1 else [])]
    assert METHODS.get(name).name == name
    assert [one.__module__ for one in made] == [f"{methods.__name__}.{m}" for m in OURS[name]]


def said(tree: ast.Module) -> Iterator[str]:
    """The texts of a module that a program reads: neither docstrings nor help."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        match waiting.pop():
            case ast.Expr(value=ast.Constant()) | ast.keyword(arg="help"):
                pass
            case ast.Constant(value=str(text)):
                yield text
            case node:
                waiting += ast.iter_child_nodes(node)


def named(source: str) -> set[str]:
    """The methods that a module names or imports."""
    tree, found = ast.parse(source), set()
    for text in said(tree):
        found |= {*APART.findall(text), text.partition(":")[0]} & NAMES
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {n for home, n in HOMES.items() if f"{node.module}.".startswith(f"{home}.")}
    return found


def test_nothing_else_in_the_package_names_a_method() -> None:
    """So that a method is added, changed and deleted in its own place."""
    package = FOLDER.parent
    apart = {FOLDER, package / "tables"}  # a paper's table has rows for methods
    found = {
        str(path.relative_to(package)): names
        for path in sorted(package.rglob("*.py"))
        if apart.isdisjoint(path.parents) and (names := named(path.read_text("utf-8")))
    }
    assert found == NAMED_IN


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ('x = "medusa"', {"medusa"}),
        ('raise ValueError(f"use {x} or prompt-lookup")', {"prompt-lookup"}),
        ("from ppdbench.methods.eagle.network import DraftNetwork", {"eagle"}),
        ('x = "layerskip:exit_layer=2"', {"layerskip"}),
        ('x = "lookahead"', {"lookahead"}),
        ('x = "--prompt-tokens, and the rest of a lookahead"', set()),
        ('"""As medusa does."""', set()),
        ('f(help="as in medusa")', set()),
    ],
)
def test_a_name_is_found_where_a_program_reads_it(code: str, names: set[str]) -> None:
    assert named(code) == names


def test_methods_that_draft_chains_are_told_apart() -> None:
    """They run over layers with a memory (`test_memory`)."""
    chained = {name for name in METHODS if METHODS.get(name).chains}
    assert chained == {"draft-verify", "jacobi", "layerskip", "prompt-lookup", "speculative"}
