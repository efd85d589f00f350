"""Examples whose answer is a program: what has to stand around it so that it tests itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ppdbench.errors import DataError
from ppdbench.sandbox.exam import Exam
from ppdbench.tasks.columns import text_at
from ppdbench.tasks.examples import Example
from ppdbench.tasks.spec import Task

# From a line of backticks to the next, or to an end that the length of the output made.
FENCED = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


def code_of(answer: str) -> str:
    """The code that a chat's answer speaks of: its first fenced block, or all where none is.

    Mostly that is the whole function once more, whose definition then replaces the prompt's.
    """
    found = FENCED.search(answer)
    return answer if found is None else f"\n{found[1]}"


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
