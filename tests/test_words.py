"""Words: a docstring says what a thing is or does, and no two classes share a name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

MODULES = sorted([*ROOT.glob("ppdbench/**/*.py"), *ROOT.glob("benchmarks/**/*.py")])
RIDDLE = re.compile(r"(What|How|Whether|Which|Where|Why|Who|Whose|When)\b")
BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def riddles(source: str) -> Iterator[str]:
    """First lines of the docstrings of modules, classes, functions and fields that ask."""
    for node in ast.walk(ast.parse(source)):
        for inner in node.body if isinstance(node, BODIES) else ():
            said = inner.value if isinstance(inner, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                text = said.value.strip()
                if RIDDLE.match(text):
                    yield text.splitlines()[0]


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = {
        str(path.relative_to(ROOT)): said
        for path in MODULES
        if (said := list(riddles(path.read_text("utf-8"))))
    }
    assert len(MODULES) > 100
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        '"""What it is."""',
        'class A:\n    """Whose it is."""',
        'def f():\n    """\n    How.\n    """',
        'a = 1\n"""Which it is."""',
    ],
)
def test_a_docstring_that_asks_is_found(source: str) -> None:
    assert len(list(riddles(source))) == 1


def test_no_two_classes_of_the_package_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
