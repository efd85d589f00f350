"""Imports inside functions: only where they keep something slow from loading with the module."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "ppdbench"

# What takes a tenth of a second or far more, and what is not installed everywhere.
SLOW = {
    *("torch", "transformers", "datasets", "matplotlib", "numpy", "pandas", "pyarrow"),
    *("accelerate", "safetensors", "tokenizers", "huggingface_hub", "evaluate", "gguf"),
    *("nltk", "rouge_score", "sacrebleu", "bitsandbytes", "torchao", "resource", "pytest"),
}
# What `--help` and Tab completion need not wait for: each takes some hundredths of a second, and
# together they would take longer than all the rest.
SPARED = {"yaml", "jinja2", "rich", "msgspec", "filelock", "orjson", "psutil", "importlib.metadata"}
# The same, of ours: what commands carry out, draw and list. It is spared in `cli` alone.
WORK = ("bench", "cli", "methods", "probe", "report", "scoring")
# What cannot be imported on every system.
LINUX = {"ppdbench.machine.libc"}
# Parts of torch that `import torch` does not bring.
APART = {"torch.distributed"}


def module_name(path: Path) -> str:
    """`ppdbench.engine.cache`, as it is imported."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def at_import(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports that are carried out when the module is, those for types left out."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def deferred(tree: ast.Module) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports inside functions."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    yield node


def imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    """All that an import may name, with the packages around it."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names = [node.module or "", *(f"{node.module}.{name}" for name in names)]
    return {name[: len(name) if end < 0 else end] for name in names for end in _ends(name)}


def _ends(name: str) -> list[int]:
    return [-1, *(at for at, letter in enumerate(name) if letter == ".")]


@functools.cache
def tree_of(module: str) -> ast.Module:
    """What a module of ours says."""
    return ast.parse(PATHS[module].read_text("utf-8"))


def brought(names: set[str]) -> set[str]:
    """All slow things that come with these imports, whoever of ours brings them."""
    found, waiting, seen = set(), list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in LINUX:
            found.add(name)
        elif name in PATHS:
            inside = {other for node in at_import(tree_of(name)) for other in imported(node)}
            waiting += inside
        elif name in SLOW | SPARED | APART:
            found.add(name)
    return found


def parts(module: str) -> set[str]:
    """A module and the packages that are imported with it."""
    return {module, *(module[:end] for end in _ends(module) if end > 0)}


@pytest.mark.parametrize("module", PATHS)
def test_what_is_imported_inside_a_function_is_slow_to_load(module: str) -> None:
    there = brought(parts(module))
    here = PATHS[module].relative_to(PACKAGE.parent)
    work = tuple(f"ppdbench.{name}." for name in WORK) if ".cli." in module else ()
    for node in deferred(tree_of(module)):
        keeps_away = brought(imported(node)) - there
        spared = any(f"{name}.".startswith(work) for name in imported(node) - there)
        assert keeps_away or spared, (
            f"{here}:{node.lineno}: {ast.unparse(node)} can stand at the top"
        )


def test_it_finds_what_keeps_nothing_away() -> None:
    def of(code: str) -> set[str]:
        return brought({n for node in at_import(ast.parse(code)) for n in imported(node)})

    assert of("import torch.nn") == {"torch"}
    assert of("from ppdbench.errors import ConfigError") == set()
    assert "torch" in of("from ppdbench.engine import loading")
    assert of("if TYPE_CHECKING:\n    import torch\n") == set()
    assert of("def f():\n    import torch\n") == set()
