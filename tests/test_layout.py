"""Tests mirror the package: a module of some weight has tests under its own name, at its place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGE = ROOT / "ppdbench"
# Statements in its functions, from which on a module has a test file of its own.
WEIGHTY = 60


def statements(source: str) -> int:
    """The statements in the functions of a module, docstrings left out."""
    functions = (f for f in ast.walk(ast.parse(source)) if isinstance(f, ast.FunctionDef))
    inside = {
        node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and node is not function and not _is_words(node)
    }
    return len(inside)


def _is_words(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def weighty() -> list[str]:
    """The modules that are to have a test file of their own, by their path in the package."""
    return [
        str(module.relative_to(PACKAGE))
        for module in sorted(PACKAGE.rglob("*.py"))
        if statements(module.read_text("utf-8")) >= WEIGHTY
    ]


@pytest.mark.parametrize("module", weighty())
def test_a_module_of_some_weight_has_tests_under_its_name(module: str) -> None:
    path = Path(module)
    namesake = ROOT / "tests" / path.parent / f"test_{path.name}"
    assert namesake.is_file(), f"ppdbench/{module} needs {namesake.relative_to(ROOT)}"
    assert "\ndef test_" in namesake.read_text("utf-8")


def test_statements_are_counted_once_and_without_words() -> None:
    source = '"""Words."""\nX = 1\ndef f():\n    """Words."""\n    def g():\n        return 1\n'
    assert statements(source) == 2
