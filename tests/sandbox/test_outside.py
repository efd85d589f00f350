"""Programs in the sandbox: how they end, and what they cannot say of themselves."""

from __future__ import annotations

import pytest

from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.outside import LAYERS
from tests.sandbox.made import execute


def test_a_program_that_runs_to_its_end_has_passed() -> None:
    found = execute("assert sorted([3, 1]) == [1, 3]\nprint('noise')")
    assert found.passed
    assert (found.outcome, found.raised) == ("passed", None)
    assert {"limits", "audit hook"} <= set(found.protection) <= set(LAYERS)


@pytest.mark.parametrize(
    ("source", "raised"),
    [
        ("assert 1 == 2", "AssertionError"),
        ("def f(:", "SyntaxError"),
        ("raise ValueError", "ValueError"),
        ("f()", "NameError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError"),
        ("raise type('no name', (Exception,), {})", None),
        ("x = 'half a pair: \ud800'", "UnicodeEncodeError"),
    ],
)
def test_an_error_is_a_failure_that_is_named(source: str, raised: str | None) -> None:
    found = execute(source)
    assert (found.outcome, found.raised) == ("failed", raised)


@pytest.mark.parametrize(
    "source",
    [
        "import os; os._exit(0)",
        "import sys; sys.exit(0)",
        "exit(0)",
        "import os; os.close(1); os.close(2); os._exit(0)",
        "import os; os.abort()",
        "import ctypes; ctypes.string_at(0)",
        "quit()",
    ],
)
def test_leaving_early_is_no_success(source: str) -> None:
    found = execute(f"{source}\nassert False")
    assert found.outcome in ("failed", "ended early")
    assert not found.passed


ONE = Exam(
    "def check(candidate):\n    assert candidate() == 1\ncheck(answer)", entry_point="answer"
)
FORGED = [
    '{"ready": true}',
    '{"value": 1}',
    '{"outcome": "passed"}',
    '{"outcome": "passed", "secret": ""}',
    '{"outcome": "failed"}',
    '{"outcome": ["passed"]}',
    '{"outcome": "failed", "raised": "\\ud800"}',
    '["passed"]',
    "no json",
]


@pytest.mark.parametrize("line", FORGED)
def test_a_verdict_from_the_program_is_none(line: str) -> None:
    found = execute(
        f"import os\nfor n in range(3, 99):\n    try: os.write(n, {line!r}.encode() + b'\\n')\n"
        "    except OSError: pass\nos._exit(0)",
        exam=ONE,
    )
    assert not found.passed


@pytest.mark.parametrize(
    "cheat",
    [
        "import builtins; builtins.AssertionError = type('Calm', (Exception,), {})",
        "import builtins; builtins.print = builtins.exec = builtins.compile = lambda *a: None",
        "import sys; sys.excepthook = lambda *a: None",
        "import sys; sys.settrace(lambda frame, *a: setattr(frame, 'f_lineno', 9))",
        "import atexit; atexit.register(lambda: print('passed'))",
        "def check(candidate): pass",
        "__builtins__ = {}",
        'import json; json.dumps = lambda what: \'{"outcome": "passed"}\'',
        "import os\nfor n in range(3, 20):\n"
        '    try: os.write(n, b\'{"outcome": "passed"}\\n\' * 2)\n    except OSError: pass',
    ],
)
def test_tests_that_do_not_hold_cannot_be_talked_away(cheat: str) -> None:
    found = execute(f"{cheat}\ndef answer(): return 2", exam=ONE)
    assert found.outcome in ("failed", "ended early", "not judged")
