"""Execution of generated programs, whose results become facts of their samples.

They run once, when their sample is made. Whoever reads the run later finds the outcome and
runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from msgspec.structs import replace

from ppdbench.errors import ConfigError
from ppdbench.runs.records import Decoding, FailedSample
from ppdbench.runs.workload import Workload
from ppdbench.sandbox.outside import check_held, execute
from ppdbench.scoring import NEEDS_EXECUTION
from ppdbench.tasks.code import CodeTest, code_of, code_test

# The value of allow_code_execution that lets programs run where not everything is held.
UNPROTECTED = "unprotected"


class CodeRuns:
    """The tests of all examples that have some, and the sandbox that decides them."""

    def __init__(
        self, tests: Mapping[tuple[str, str], CodeTest], *, unprotected: bool = False
    ) -> None:
        self._tests, self._unprotected = tests, unprotected
        # Methods that are exact give one program: it runs once for all of them.
        self._execute = lru_cache(maxsize=64)(execute)

    @classmethod
    def read(cls, work: Workload, *, unprotected: bool = False) -> CodeRuns:
        """The tests of a run's examples, whose hash goes with what is known of their source."""
        tests: dict[tuple[str, str], CodeTest] = {}
        for task, examples in work.examples:
            if NEEDS_EXECUTION & set(task.metrics):
                of_task = {
                    (task.name, example.id): code_test(task, example) for example in examples
                }
                work.take_tests(task.name, [_told(*named) for named in of_task.items()])
                tests |= of_task
        if not tests:
            raise ConfigError(
                "--allow-code-execution: no task of this run has code to run; use --task humaneval "
                "or leave the option out"
            )
        if not unprotected:
            check_held()
        return cls(tests, unprotected=unprotected)

    def examined(self, sample: Decoding, *, chat: bool = False) -> Decoding:
        """The sample with how its program ended; as it is where its text is no program.

        In a `chat` the text is an answer with code in it.
        """
        test = self._tests.get((sample.task, sample.example_id))
        if test is None or isinstance(sample, FailedSample):
            return sample
        program = test.program(code_of(sample.text, test) if chat else sample.text)
        found = self._execute(program, test.exam, unprotected=self._unprotected)
        return replace(
            sample,
            passed=found.passed,
            execution=found.outcome,
            raised=found.raised or None,
            protection=list(found.protection),
        )


def _told(example: tuple[str, str], test: CodeTest) -> str:
    """All that decides whether an example's program passes, and whose it is."""
    task, example_id = example
    return f"\0{task}\0{example_id}\0{test.program('')}{test.exam.source}"
