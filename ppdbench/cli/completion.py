"""Completion with Tab: names of methods and their options, tasks, models, tables.

A shell asks anew for each Tab, so nothing here imports torch, or anything else that takes long:
methods are read off their source files. The script of a shell, which a user has it read once,
comes from click.

    eval "$(_PPDBENCH_COMPLETE=bash_source ppdbench)"
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator

from click import Context, Parameter
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from ppdbench.engine.shapes import NAMED, PREFIX
from ppdbench.files.resources import PACKAGE, folder

Items = list["CompletionItem[str]"]
METHOD_FILES = PACKAGE / "methods"
MODELS = ("reference", "reference-draft", "smollm2")


def known_methods() -> dict[str, list[str]]:
    """Every method that comes with the package, with the names of its options."""
    found: dict[str, list[str]] = {}
    for path in sorted(METHOD_FILES.rglob("*.py")):
        text = path.read_text("utf-8")
        if "@strategy(" in text:
            found.update(_methods_of(ast.parse(text)))
    return found


def _methods_of(module: ast.Module) -> Iterator[tuple[str, list[str]]]:
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    for node in classes.values():
        for decorator in node.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="strategy"), args=[ast.Constant(value=str(name))]):
                    yield name, list(_fields(node, classes))


def _fields(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    """The annotated names of a class, after those of its bases in the same file."""
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _fields(classes[base.id], classes)
    for line in node.body:
        match line:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                if "ClassVar" not in ast.unparse(kind):
                    yield name


def complete_methods(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """Methods; after `NAME:` and each comma, the options of that method."""
    known = known_methods()
    name = max((n for n in known if incomplete.startswith(f"{n}:")), key=len, default=None)
    if name is None:
        return _starting(incomplete, known)
    *given, last = incomplete[len(name) + 1 :].split(",")
    taken = {pair.partition("=")[0] for pair in given}
    before = incomplete[: len(incomplete) - len(last)]
    left = (f"{before}{option}=" for option in known[name] if option not in taken)
    return _starting(incomplete, [*left, *(n for n in known if n.startswith(f"{name}:"))])


def complete_method_names(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """Complete names of methods, without their options."""
    return _starting(incomplete, known_methods())


def complete_settings(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """The options of the method that the command line names."""
    method = str(ctx.params.get("method") or "").partition(":")[0]
    return _starting(incomplete, (f"{option}=" for option in known_methods().get(method, ())))


def complete_tasks(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """The tasks that come with the package, and files."""
    names = sorted(path.stem for path in folder("tasks").glob("*.yaml"))
    return [*complete_files(ctx, param, incomplete), *_starting(incomplete, names)]


def complete_models(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """Embedded models, SmolLM2, named shapes, files and folders."""
    names = [*MODELS, *(f"{PREFIX}{name}" for name in NAMED)]
    return [*complete_files(ctx, param, incomplete), *_starting(incomplete, names)]


def complete_data(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """Offer the sources of examples: two names, and files."""
    return [*complete_files(ctx, param, incomplete), *_starting(incomplete, ("hub", "builtin"))]


def complete_tables(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """The papers' tables; for what stands behind the first, runs."""
    from ppdbench.files import papers

    return [*complete_files(ctx, param, incomplete), *_starting(incomplete, papers.names())]


def complete_files(ctx: Context, param: Parameter, incomplete: str) -> Items:
    """Leave files to the shell; first in a list, as a shell's script forgets what it read."""
    return [CompletionItem(incomplete, type="file")]


def _starting(incomplete: str, names: Iterable[str]) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


# After `exit_layer=` a value follows, not the next word.
KEEP = 'COMPREPLY+=("$value"); [[ $value == *= ]] && compopt -o nospace'


class Bash(BashComplete):
    """Bash takes `layerskip:exit_layer=2` for several words, as `:` and `=` break words there.

    The line as it was typed tells them together again, and of what is offered bash gets what
    follows the last break.
    """

    name = "bash"
    source_template = BashComplete.source_template.replace(
        "env COMP_WORDS=", 'env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDS='
    ).replace("COMPREPLY+=($value)", KEEP)

    def get_completion_args(self) -> tuple[list[str], str]:
        """All words before the one at the cursor, and that word up to the cursor."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        self.word = "" if not words or line[-1:].isspace() else words.pop()
        return words, self.word

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return the text that bash is to put in place of its own last word."""
        word = self.word.partition("=")[2] if self.word.startswith("--") else self.word
        there = max(word.rfind(mark) for mark in ":=") + 1
        return f"{item.type},{item.value[there:]}"


add_completion_class(Bash)
