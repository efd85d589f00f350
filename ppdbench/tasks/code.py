"""Examples whose answer is a program: what has to stand around it so that it tests itself."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from ppdbench.errors import DataError
from ppdbench.sandbox.exam import Exam
from ppdbench.tasks.columns import text_at
from ppdbench.tasks.examples import Example
from ppdbench.tasks.spec import Task

# From a fence, which may stand in a list, to the next, or to an end that the length of the output
# made.
FENCED = re.compile(
    r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})(?P<mark>[^`\n]*)\n"
    r"(?P<code>.*?)(?:^[ \t]*(?P=fence)|\Z)",
    re.MULTILINE | re.DOTALL,
)
PYTHON = re.compile(r"\s*(python3?|py)\b", re.IGNORECASE)
BEGINNING = re.compile(r"^([ \t]*)(?:(?:async[ \t]+def|def|class|import|from)\b|@)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CodeTest:
    """A prompt to be completed, the definition of `check`, and the name of what it checks."""

    prompt: str
    test: str
    entry_point: str

    def program(self, completion: str) -> str:
        """Return what HumanEval's own harness runs of a completion, up to its tests."""
        return f"{self.prompt}{completion}\n"

    @property
    def exam(self) -> Exam:
        """The tests that the harness runs behind the program."""
        source = f"{self.test}\ncheck({self.entry_point})"
        return Exam(source, given=self.prompt, entry_point=self.entry_point)


def code_test(task: Task, example: Example) -> CodeTest:
    """The test of an example, from the columns that the task names in `code`.

    The prompt is the column's, not the one that the model read: that may have been cut to fit,
    or stand behind worked examples.
    """
    where = f"{task.name} example {example.id}"
    test = CodeTest(**{part: text_at(example.row, at, where) for part, at in task.code.items()})
    if not test.entry_point.isidentifier():
        raise DataError(f"{where}: the entry point {test.entry_point!r} is no name of a function")
    return test


def code_of(answer: str, test: CodeTest) -> str:
    """The code that a chat's answer speaks of, less what keeps it from being a program.

    Mostly that is the whole function once more, whose definition then replaces the prompt's: in
    a fenced block, or in the text itself. Where no function is, it is the rest of the prompt's.
    """
    blocks = _blocks(answer)
    defined = re.compile(rf"^(?:async[ \t]+)?def[ \t]+{test.entry_point}\b", re.MULTILINE)
    for text in (*blocks, answer):
        for code in filter(defined.search, _beginnings(text)):
            valid = _longest_valid(code, test)
            if defined.search(valid):
                return valid
    rest = next(iter(blocks), answer)
    return _longest_valid(rest, test) or rest


def _blocks(answer: str) -> list[str]:
    """The fenced blocks, those marked as Python first; each begins a line."""
    found = sorted(FENCED.finditer(answer), key=lambda block: not PYTHON.match(block["mark"]))
    return ["\n" + _outdented(block["code"], len(block["indent"])) for block in found]


def _beginnings(text: str) -> Iterator[str]:
    """The text, then what is left of it from each line that may begin a program."""
    yield text
    for line in BEGINNING.finditer(text):
        yield "\n" + _outdented(text[line.start() :], len(line[1]))


def _outdented(text: str, width: int) -> str:
    return re.sub(rf"^[ \t]{{0,{width}}}", "", text, flags=re.MULTILINE)


def _longest_valid(code: str, test: CodeTest) -> str:
    """As many lines of `code` from its first as compile behind the prompt; none may be left."""
    lines, before = code.split("\n"), test.prompt.count("\n")
    while any(map(str.strip, lines)):
        valid = "\n".join(lines)
        wrong = _wrong_line(test.program(valid))
        if wrong is None:
            return valid
        # Nothing compiles that holds the line at which the compiler stops.
        del lines[max(0, min(len(lines), wrong - before) - 1) :]
    return ""


def _wrong_line(program: str) -> int | None:
    """The line that stops the compiler, the last where it names none; None if nothing does."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a model wrote
            compile(program, "answer", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or _last_line(program)
    # Bytes that are no text, and nesting deeper than the compiler goes.
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return _last_line(program)
    return None


def _last_line(program: str) -> int:
    return program.count("\n") + 1
