"""Who decides: tests run where the program is not, and get nothing but plain data from it."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from ppdbench.sandbox import candidate, examiner
from ppdbench.sandbox.exam import Exam
from ppdbench.sandbox.outside import execute
from ppdbench.sandbox.wire import Wire


def judged(program: str, tests: str, given: str = "", entry_point: str = "f") -> dict[str, Any]:
    """Both sides in this process, over the same pipes as between two."""
    asked, answered = os.pipe(), os.pipe()

    def attend() -> None:
        candidate.answer_calls(program, Wire(asked[0], answered[1]))
        os.close(answered[1])

    there = threading.Thread(target=attend)
    there.start()
    try:
        exam = Exam(tests, given=given, entry_point=entry_point)
        return examiner.examine(exam, Wire(answered[0], asked[1]))
    finally:
        os.close(asked[1])
        there.join(10)
        os.close(asked[0])
        os.close(answered[0])


def outcome(program: str, tests: str, given: str = "") -> str:
    return str(judged(program, tests, given)["outcome"])


RIGHT = [
    ("def f(x): return x + 1", "assert f(1) == 2"),
    ("def f(*, a, b=2): return [a, b]", "assert f(a=1) == [1, 2]"),
    ("def f(x): x.sort()", "x = [2, 1]\nf(x)\nassert x == [1, 2]"),
    ("def f(x): x['a'].append(1)", "inner = []\nx = {'a': inner}\nf(x)\nassert inner == [1]"),
    ("def f(x): x.clear(); x.add(3)", "x = {1}\nf(x)\nassert x == {3}"),
    ("def f(x): return {x, 2}", "assert sorted(f(1)) == [1, 2]"),
    ("def f(x): return (i for i in range(x))", "assert list(f(3)) == [0, 1, 2]"),
    ("def f(x): return lambda y: x + y", "assert f(1)(2) == 3"),
    ("f = 3", "assert f == 3"),
    ("def f(x): raise ValueError('no ' + x)", "try: f('a')\nexcept ValueError as e: said = str(e)\n"
     "assert said == 'no a'"),
    ("class Own(KeyError): pass\ndef f(x): raise Own", "try:\n    f(1)\n    assert False\n"
     "except LookupError: pass"),
    ("def f(x):\n    print('noise')\n    return x", "print('more')\nassert f(1) == 1"),
    ("def f(x): return x\ndef g(x): return -f(x)", "assert g(f(2)) == -2"),
    ("import math\ndef f(x): return math.sqrt(x)", "import math\nassert math.isclose(f(4), 2)"),
    ("def f(x): return x is True", "def check(candidate):\n    assert candidate(True) is True\n"
     "check(f)"),
]  # fmt: skip


@pytest.mark.parametrize(("program", "tests"), RIGHT)
def test_a_right_program_passes(program: str, tests: str) -> None:
    assert judged(program, tests) == {"outcome": "passed"}


@pytest.mark.parametrize(
    ("program", "raised"),
    [
        ("def f(x): return x", "AssertionError"),
        ("def f(x): return None", "AssertionError"),
        ("def f(x): raise TypeError", "TypeError"),
        ("def f(x): raise SystemExit(0)", "SystemExit"),
        ("def f(x): raise AssertionError", "AssertionError"),
        ("def f(x): raise UnicodeDecodeError('utf-8', b'', 0, 1, '')", "UnicodeDecodeError"),
        ("def f(x): return f(x)", "RecursionError"),
        ("def f(): return 2", "TypeError"),
        ("g = 1", "NameError"),
        ("def f(x: return", "SyntaxError"),
        ("raise KeyError", "KeyError"),
        ("import sys; sys.exit(0)", "SystemExit"),
    ],
)
def test_a_wrong_one_fails_by_the_name_of_its_error(program: str, raised: str) -> None:
    found = judged(program, "assert f(1) == 2")
    assert found == {"outcome": "failed", "raised": raised}


@pytest.mark.parametrize(
    "returned",
    ["Liar()", "[Liar()]", "Same(3)", "Word()", "List()", "True", "object()", "lambda: 2", "Liar"],
)
def test_answers_equal_to_everything_do_not_pass(returned: str) -> None:
    program = "\n".join(
        f"class {name}({base}):\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n    __hash__ = object.__hash__"
        for name, base in (("Liar", ""), ("Same", "int"), ("Word", "str"), ("List", "list"))
    )
    found = outcome(f"{program}\ndef f(x): return {returned}", "assert f(1) == 2")
    assert found in ("failed", "not judged")


def test_what_the_prompt_defines_is_not_the_programs_to_change() -> None:
    given = "from typing import List\n\ndef near(a, b):\n    return abs(a - b) < 1\n\ndef f(x):\n"
    tests = "assert near(f(1), 2)\nassert List"
    body = (
        "    near.__code__ = (lambda a, b: True).__code__\n    return 100\nnear = lambda *a: True"
    )
    assert outcome(given + body, tests, given) == "failed"
    assert outcome(given + "    return 2", tests, given) == "passed"


@pytest.mark.parametrize(
    "given", ["def f(x):\n    ", "def f(x):\n    '''Words.'''\n", "def f(x): #"]
)
def test_a_prompt_that_breaks_off_still_gives_its_names(given: str) -> None:
    helper = "def helper(x): return x\n" + given
    assert outcome(
        "def helper(x): return 7\ndef f(x): return 2", "assert helper(f(1)) == 2", helper
    )


def test_tests_that_want_more_than_plain_data_are_not_judged() -> None:
    assert outcome("def f(x): return x()", "assert f(lambda: 2) == 2") == "not judged"
    assert outcome("class f: pass", "assert f() == 2") == "not judged"
    caught = "try: f(object())\nexcept BaseException: pass"
    assert outcome("def f(x): return 1", caught) == "not judged"


@pytest.mark.usefixtures("sandboxed")
def test_tests_that_catch_everything_do_not_hide_the_end_of_a_program() -> None:
    tests = "for _ in range(3):\n    try: f(1)\n    except BaseException: pass"
    assert execute("import os\ndef f(x): os._exit(0)", Exam(tests)).outcome == "ended early"


@pytest.mark.usefixtures("sandboxed")
@pytest.mark.parametrize(
    "words",
    ["[]", "no json", '{"value": {"tuple": 3}}', '{"other": 1}', "[" * 9999, '{"value": 1'],
)
def test_answers_that_are_none_end_it(words: str) -> None:
    program = f"""
import os
for n in range(3, 30):
    try: os.write(n, {words!r}.encode() + b'\\n')
    except OSError: pass
def f(x): return 2
"""
    assert execute(program, Exam("assert f(1) == 2\nassert f(2) == 3")).outcome in (
        "ended early",
        "failed",
    )


@pytest.mark.usefixtures("sandboxed")
def test_the_tests_are_not_in_the_programs_process() -> None:
    program = """
import gc, sys
def f(x):
    texts = [str(v) for thing in gc.get_objects() if type(thing) is dict
             for v in thing.values() if type(v) is str]
    return any('MAR' + 'KED' in text for text in texts)
"""
    assert execute(program, Exam("mark = 'MARKED'\nassert f(1) == False")).passed


def test_humaneval_solutions_that_need_more_than_equality_pass(real_rows: Any) -> None:
    import json

    from ppdbench.tasks.code import CodeTest

    # Helpers of the prompt, random inputs, tolerance, `is`, the function itself in its test.
    wanted = {f"HumanEval/{n}" for n in (2, 32, 33, 38, 50, 52, 53, 72, 151)}
    lines = (real_rows / "humaneval" / "test.jsonl").read_text().splitlines()
    for row in map(json.loads, lines):
        if row["task_id"] in wanted:
            test = CodeTest(row["prompt"], row["test"], row["entry_point"])
            for body, expected in ((row["canonical_solution"], True), ("    return None\n", False)):
                found = judged(
                    test.program(body), test.exam.source, row["prompt"], row["entry_point"]
                )
                assert (found["outcome"] == "passed") == expected, row["task_id"]
