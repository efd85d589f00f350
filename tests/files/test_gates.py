"""Nothing leaves past the cleaning and the careful writing: the package's source is looked through.

Text reaches a terminal by `notice`, `say`, a `Terminal` or `emit`, and files by `write_whole` or
`replacing`. Who is allowed to do it otherwise is listed here, with the reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import ppdbench

PACKAGE = Path(ppdbench.__file__).parent

# Calls that say something, and who may make them.
SPEAKERS = {
    "click.echo": {
        "cli/common.py",  # notice and say
        "cli/main.py",  # help, and the cleaned traceback of --debug
        "cli/check_command.py",  # annotations, cleaned for the runner that reads them
    },
    "click.secho": set(),
    "print": {"sandbox/inside.py"},
    "Console": set(),
    "sys.stdout.write": {"report/export.py"},  # emit
    "sys.stderr.write": {
        "report/progress.py",  # cleaned lines where there is no terminal
        "runs/description.py",  # a developer's tool, of its own docs
    },
}
# Calls that write a file, and who may make them other than to a path that `replacing` gave.
WRITERS = {
    "sandbox/namespaces.py": "files of the kernel",
    "machine/environment.py": "a mark of the kernel's",
    "runs/writers.py": "a register that is locked while it is written",
    "runs/store.py": "samples, which are appended",
    "bench/drawing.py": "draws, which are appended",
    "bench/answers.py": "answers, which are appended",
    "training/states.py": "states, which are appended",
    "training/trainer.py": "a log, which is appended",
    "runs/description.py": "a page of our own docs",
    "cli/check_command.py": "a job's page, which several programs append to",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_only_a_few_places_speak() -> None:
    for name, tree in sources():
        said = {ast.unparse(call.func) for call in calls(tree)} & SPEAKERS.keys()
        assert not {how for how in said if name not in SPEAKERS[how]}, name


def test_files_are_replaced_whole() -> None:
    for name, tree in sources():
        replaced = {
            item.optional_vars.id
            for node in ast.walk(tree)
            if isinstance(node, ast.With)
            for item in node.items
            if ast.unparse(item.context_expr).startswith("replacing(")
            and isinstance(item.optional_vars, ast.Name)
        }
        for call in calls(tree):
            if name not in WRITERS and _writes(call):
                target = ast.unparse(call.func).split(".")[0]
                assert target in replaced, f"{name}: {ast.unparse(call)}"


def _writes(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return isinstance(call.func, ast.Name) and call.func.id == "open" and _for_writing(call)
    if call.func.attr in ("write_text", "write_bytes"):
        return True
    return call.func.attr == "open" and _for_writing(call)


def _for_writing(call: ast.Call) -> bool:
    given = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [arg.value for arg in given if isinstance(arg, ast.Constant)]
    return any(isinstance(mode, str) and set("wax") & set(mode) for mode in modes)


def test_json_in_utf8_is_cleaned() -> None:
    """`ensure_ascii=False` writes what is not seen as it is."""
    allowed = {
        "runs/samples.py",  # read by this program alone
        "report/page/sections/explorer.py",  # its values are cleaned before
    }
    for name, tree in sources():
        raw = any("ensure_ascii=False" in ast.unparse(call) for call in calls(tree))
        if raw and name not in allowed:
            assert "clean(" in ast.unparse(tree), name
