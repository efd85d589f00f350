"""Programs run once, when their sample is made; what happened is a fact from then on."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from ppdbench.bench import execution
from ppdbench.bench.execution import CodeRuns
from ppdbench.cli.main import run
from ppdbench.engine.loading import ModelSpec
from ppdbench.errors import ConfigError, DataError
from ppdbench.runs.store import read_run
from ppdbench.runs.workload import Item, RunConfig, Workload
from ppdbench.sandbox import outside
from ppdbench.sandbox.outside import Execution
from ppdbench.tasks import load_rows, load_task
from ppdbench.tasks.code import CodeTest, code_of, code_test
from ppdbench.tasks.examples import Example, build_examples
from tests.cli.test_decode_command import model_folder
from tests.filled import add_up, summarize, typed

pytestmark = pytest.mark.usefixtures("sandboxed")

# What is generated goes on in the comment: the program is right whatever that says, unless it
# begins a new line.
RIGHT = "def two():\n    return 2  # "
WRONG = "def two():\n    return 3  # "
TEST = "def check(candidate):\n    assert candidate() == 2\n"


FACTS = ("passed", "execution", "raised", "protection")


def rows(*prompts: str, **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "task_id": f"T/{number}",
            "prompt": prompt,
            "canonical_solution": "",
            "test": TEST,
            "entry_point": "two",
            **changes,
        }
        for number, prompt in enumerate(prompts)
    ]


def data(path: Path, content: list[dict[str, Any]]) -> Path:
    solved = [{**row, "canonical_solution": "2"} for row in content]
    path.write_text("".join(json.dumps(row) + "\n" for row in solved))
    return path


def workload(path: Path, task: str = "humaneval") -> Workload:
    spec = ModelSpec(name="any")
    return Workload.read(RunConfig(model=spec, tasks=(task,), data=str(path)))


def items(work: Workload) -> list[Item]:
    return [Item(t, e, [1], 0, 4) for t, examples in work.examples for e in examples]


def facts(
    runs: CodeRuns, item: Item, told: dict[str, Any], *, chat: bool = False
) -> dict[str, Any]:
    """What is known of a sample once its program has run."""
    named = {"task": item.task.name, "example_id": item.example.id}
    found = runs.examined(typed("decode", {**told, **named}), chat=chat)
    known = {name: getattr(found, name, None) for name in FACTS}
    return {name: value for name, value in known.items() if value is not None}


def decoded(text: str, verdict: str = "identical") -> dict[str, Any]:
    return {"verdict": verdict, "text": text}


def examples(data_name: str | Path) -> list[tuple[Any, Example]]:
    task = load_task("humaneval")
    found = load_rows(task, str(data_name), split=None, limit=None, offline=True)
    return [(task, example) for example in build_examples(task, found)]


# The program


def test_the_program_is_the_one_of_the_reference_harness() -> None:
    (task, example), *_ = examples("builtin")
    row = example.row
    test = code_test(task, example)
    assert test.program("    return 1\n") + test.exam.source == (
        f"{row['prompt']}    return 1\n\n{row['test']}\ncheck({row['entry_point']})"
    )


# An answer of a chat: FUNCTION is the whole function, BODY what completes the prompt.
SAID = {
    "a block": "Here it is:\n\n```python\nFUNCTION```\nIt adds. ```no```",
    "a block with the body": "```\nBODY```",
    "a block without its end": "  ```py\nFUNCTION",
    "a block that was cut": "```python\nFUNCTION\n# Test\nprint(two(1, 2)\nassert two(",
    "a block in a list": "1. Do:\n   ```python\n   FUNCTION   ```\n2. Done",
    "a block that is an item": "- ```python\n  FUNCTION  ```",
    "an indented block": "```python\n    FUNCTION```",
    "tildes": "~~~python\nFUNCTION~~~\nDone.",
    "four backticks": "````\nFUNCTION````",
    "a block of another language": "First:\n```bash\npip install x\n```\n```python\nFUNCTION```",
    "a body behind another language": "```bash\npip install x\n```\n```Python\nBODY```",
    "the use before the function": "```python\ntwo() == 2\n```\n```\nFUNCTION```",
    "a block with a late import": "```python\nfrom __future__ import annotations\nFUNCTION```",
    "a block that shows the use alone": "FUNCTION\nUse it:\n```python\nprint(two(),\n```",
    "a function": "FUNCTION",
    "a body": "BODY",
    "a constant before the function": "TWO = 2\n\nFUNCTION\nIt uses TWO.",
    "a function and a cut one": "FUNCTION\ndef three(a, b, c",
    "a function and a sentence": "FUNCTION\nThis adds the numbers.",
    "a sentence and a function": "Sure! Here it is:\n\nFUNCTION",
    "a sentence and an import": "from the top, then:\n\nimport math\n\nFUNCTION\nDone.",
    "a sentence and an indented function": "Sure! Here it is:\n\n    FUNCTION\nDone.",
    "a body and a sentence": "BODY\nThis adds the numbers.",
    "a body with a function, and a cut one": "    def one():\n        return 1\n\nBODY\ndef (",
    "an odd escape": "```python\nFUNCTION\nodd = '\\d'\n```",
}


def written(answer: str, expression: str) -> str:
    """The answer with its function, each line as far in as the first."""
    body = f'    """Say `two`."""\n    return {expression}\n'
    for name, code in {"FUNCTION": f"def two():\n{body}", "BODY": body}.items():
        margin = answer.partition(name)[0].rpartition("\n")[2]
        inner = code.rstrip("\n").replace("\n", f"\n{margin}") + "\n"
        answer = answer.replace(name, inner)
    return answer


@pytest.mark.parametrize("shape", SAID)
def test_a_chats_answer_is_run_from_the_function_in_it(shape: str) -> None:
    prompt = 'def two():\n    """Return 2."""\n'
    test = CodeTest(prompt=prompt, test=TEST, entry_point="two")
    for expression, passes in {"1 + 1": True, "1 + 2": False}.items():
        said = written(SAID[shape], expression)
        found = execution.execute(test.program(code_of(said, test)), test.exam)
        assert (found.passed, found.raised) == (passes, None if passes else "AssertionError")


@pytest.mark.parametrize(
    "answer",
    [
        "I cannot do that.",
        "",
        "```python\ndef two(:\n    return 2\n```",
        "def two()\n    return 2",
        "Two: " + "(" * 400,
        "-" * 50_000,
        "\x00\ud800",
    ],
)
def test_an_answer_without_a_program_fails(answer: str) -> None:
    test = CodeTest(prompt='def two():\n    """Return 2."""\n', test=TEST, entry_point="two")
    code = code_of(answer, test)
    assert "".join(code.split()) in "".join(answer.split())
    assert code == answer or "`" in answer


@pytest.mark.parametrize(
    "completion",
    [
        "    return 2\n\nThis adds the numbers.",
        "```python\ndef two():\n    return 2\n```",
        "Sure:\n\ndef two():\n    return 2\n",
        "    return 2\n\ndef three(a, b",
    ],
)
def test_a_completion_of_the_prompt_is_run_as_it_stands(completion: str, tmp_path: Path) -> None:
    work = workload(data(tmp_path / "d.jsonl", rows('def two():\n    """Return 2."""\n')))
    runs, (item,) = CodeRuns.read(work), items(work)
    plain, chat = (facts(runs, item, decoded(completion), chat=chat) for chat in (False, True))
    assert (plain["execution"], plain["raised"]) == ("failed", "SyntaxError")
    assert chat["execution"] == "passed"


def test_solutions_of_the_builtin_examples_pass_and_nothing_else_does() -> None:
    for task, example in examples("builtin")[::3]:
        test = code_test(task, example)
        assert execution.execute(test.program(example.references[0]), test.exam).passed
        assert not execution.execute(test.program("    return None\n"), test.exam).passed


def test_solutions_of_humaneval_itself_pass(real_rows: Path) -> None:
    for task, example in examples(real_rows)[::20]:
        test = code_test(task, example)
        assert execution.execute(test.program(example.references[0]), test.exam).passed, example.id
        assert not execution.execute(test.program("    pass\n"), test.exam).passed, example.id


def test_a_cut_prompt_and_worked_examples_do_not_change_the_program() -> None:
    (task, example), *_ = examples("builtin")
    shot = dataclasses.replace(example.prompt, text="other", values={"prompt": "cut"})
    shown = dataclasses.replace(example, prompt=shot)
    assert code_test(task, shown) == code_test(task, example)


# Facts of a sample


def test_outcomes_become_facts_of_the_sample(tmp_path: Path) -> None:
    work = workload(data(tmp_path / "d.jsonl", rows(RIGHT)))
    runs, (item,) = CodeRuns.read(work), items(work)
    right = facts(runs, item, decoded("so it is"))
    assert (right["passed"], right["execution"]) == (True, "passed")
    assert "limits" in right["protection"]
    assert "raised" not in right
    wrong = facts(runs, item, decoded("so it is\nnonsense"))
    assert (wrong["passed"], wrong["execution"]) == (False, "failed")
    assert wrong["raised"] == "NameError"


def test_failed_examples_and_other_tasks_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "execute", pytest.fail)
    work = workload(data(tmp_path / "d.jsonl", rows(RIGHT)))
    runs, (item,) = CodeRuns.read(work), items(work)
    assert facts(runs, item, {"verdict": "failed"}) == {}
    other = dataclasses.replace(item, task=load_task("gsm8k"))
    assert facts(runs, other, decoded("18")) == {}


def test_methods_with_the_same_text_share_one_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []

    def counted(program: str, *_: Any, **__: Any) -> Execution:
        ran.append(program)
        return Execution("passed", ("limits",))

    monkeypatch.setattr(execution, "execute", counted)
    work = workload(data(tmp_path / "d.jsonl", rows(RIGHT)))
    runs, (item,) = CodeRuns.read(work), items(work)
    assert facts(runs, item, decoded("a")) == facts(runs, item, decoded("a"))
    facts(runs, item, decoded("b"))
    assert len(ran) == 2


def test_the_hash_of_the_tests_goes_with_the_data(tmp_path: Path) -> None:
    found = []
    for number, test in enumerate((TEST, TEST, TEST + "    assert True\n")):
        work = workload(data(tmp_path / f"{number}.jsonl", rows(RIGHT, test=test)))
        assert work.sources["humaneval"].tests_sha256 is None
        CodeRuns.read(work)
        found.append(work.sources["humaneval"].tests_sha256)
    assert found[0] == found[1] != found[2]


def test_the_first_tests_of_a_run_have_the_hash_of_a_shorter_one(tmp_path: Path) -> None:
    short, long = (
        workload(data(tmp_path / f"{len(prompts)}.jsonl", rows(*prompts)))
        for prompts in ((RIGHT, WRONG), (RIGHT, WRONG, RIGHT))
    )
    for work in (short, long):
        CodeRuns.read(work)
    ours = long.first("humaneval", 2).tests_sha256
    assert ours == short.sources["humaneval"].tests_sha256 != long.sources["humaneval"].tests_sha256


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": ""}, r"humaneval example T/0: column 'test' must be text that is not empty"),
        ({"entry_point": None}, r"column 'entry_point' must be text .* not null"),
        ({"entry_point": "two(); 1"}, r"entry point 'two\(\); 1' is no name of a function"),
    ],
)
def test_rows_that_cannot_be_tested_are_refused_first(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    work = workload(data(tmp_path / "d.jsonl", rows(RIGHT, **changes)))
    with pytest.raises(DataError, match=message):
        CodeRuns.read(work)


def test_allowing_code_where_there_is_none_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no task of this run has code .* --task humaneval"):
        CodeRuns.read(workload(Path("builtin"), "gsm8k"))


# As it is typed


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    model = model_folder(tmp_path / "model")
    path = data(tmp_path / "d.jsonl", rows(RIGHT, WRONG, RIGHT))
    words = ["decode", "--task", "humaneval", "--model", model, "--data", path, "--warmup", "0"]
    return [*map(str, words), "--max-new-tokens", "1", "--out", "run", "--format", "json"]


ALLOWED = "--allow-code-execution"


def test_pass_at_1_is_stored_and_reading_it_again_runs_nothing(
    asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run([*asked, ALLOWED]) == 0
    captured = capsys.readouterr()
    stored = read_run("run")
    assert [s.passed for s in stored.samples] == [True, False, True]
    assert [s.execution for s in stored.samples] == ["passed", "failed", "passed"]
    assert stored.samples[1].raised == "AssertionError"
    quality = {"humaneval_pass1": pytest.approx(2 / 3), "rouge2": 0}
    assert json.loads(captured.out)["quality"] == quality
    assert f"generated code ran within {', '.join(stored.samples[0].protection)}" in captured.err

    monkeypatch.setattr(execution, "execute", pytest.fail)
    assert summarize(stored.header, add_up(stored.samples))[0]["quality"] == quality
    assert run([*asked, ALLOWED, "--resume"]) == 0
    assert json.loads(capsys.readouterr().out)["quality"] == quality


def test_what_cannot_be_held_is_refused_before_the_model_is_read(
    asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = functools.partial(outside.execute, layers=("limits",))
    monkeypatch.setattr(outside, "execute", bare)
    monkeypatch.setattr(execution, "execute", bare)
    with monkeypatch.context() as early:
        early.setattr("ppdbench.runs.running.load", pytest.fail)
        outside.check_held.cache_clear()
        assert run([*asked, ALLOWED]) == 2
    outside.check_held.cache_clear()
    said = capsys.readouterr().err
    assert "generated programs are not run" in said
    assert "--allow-code-execution=unprotected" in said
    assert run([*asked, f"{ALLOWED}=unprotected"]) == 0
    stored = read_run("run")
    assert stored.header.config.allow_code_execution == "unprotected"
    assert [s.passed for s in stored.samples] == [True, False, True]
    assert {tuple(s.protection) for s in stored.samples} == {("limits",)}
    assert "generated code ran within limits" in capsys.readouterr().err


def test_the_option_is_a_flag_or_takes_one_value(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*asked[:1], ALLOWED, *asked[1:]]) == 0  # with another option behind it
    assert read_run("run").header.config.allow_code_execution is True
    assert run([*asked, f"{ALLOWED}=yes"]) == 2
    assert "'yes' is not one of 'sandboxed', 'unprotected'" in capsys.readouterr().err


def test_programs_that_cannot_be_judged_are_counted(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    test = "def check(candidate):\n    candidate(object())\n"
    data(Path("d.jsonl"), rows(RIGHT, RIGHT, test=test))
    assert run([*asked, ALLOWED]) == 0
    assert [s.execution for s in read_run("run").samples] == ["not judged"] * 2
    assert "2 programs could not be judged and count as failed" in capsys.readouterr().err


def test_without_the_option_nothing_runs_and_a_note_says_so(
    asked: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "execute", pytest.fail)
    assert run(asked) == 0
    captured = capsys.readouterr()
    assert "humaneval_pass1" not in json.loads(captured.out)["quality"]
    assert "humaneval_pass1 needs generated code to run; --allow-code-execution" in captured.err
    assert read_run("run").samples[0].passed is None


def test_a_resumed_run_agrees_with_one_that_was_not_interrupted(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = ("example_id", "output_ids", "passed", "execution", "protection", "raised")
    assert run([*asked, ALLOWED]) == 0
    whole = [{name: getattr(s, name) for name in facts} for s in read_run("run").samples]
    path = Path("run") / "samples.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1][:40])
    assert run([*asked, ALLOWED, "--resume"]) == 0
    assert [{name: getattr(s, name) for name in facts} for s in read_run("run").samples] == whole


def test_resuming_without_the_option_is_refused(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*asked, ALLOWED]) == 0
    assert run([*asked, "--resume"]) == 2
    assert "cannot resume: config.allow_code_execution" in capsys.readouterr().err


def test_other_tests_are_another_run(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*asked, ALLOWED]) == 0
    data(Path("d.jsonl"), rows(RIGHT, WRONG, RIGHT, test=TEST + "    assert True\n"))
    assert run([*asked, ALLOWED, "--resume"]) == 2
    assert "cannot resume: data.humaneval.tests_sha256 (" in capsys.readouterr().err


def test_a_limit_may_be_raised_where_programs_run_and_their_tests_stay(
    asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*asked, ALLOWED, "--limit", "2"]) == 0
    assert run([*asked, ALLOWED, "--limit", "3", "--resume"]) == 0
    stored = read_run("run")
    assert [s.passed for s in stored.samples] == [True, False, True]
    work = workload(Path("d.jsonl"))
    CodeRuns.read(work)
    assert stored.header.data == work.sources
    other = rows(RIGHT, test=TEST + "    assert True\n") + rows(RIGHT, WRONG, RIGHT, RIGHT)[1:]
    data(Path("d.jsonl"), other)
    capsys.readouterr()
    assert run([*asked, ALLOWED, "--limit", "4", "--resume"]) == 2
    assert "cannot resume: data.humaneval.tests_sha256 (" in capsys.readouterr().err


def test_random_weights_run_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(execution, "execute", pytest.fail)
    path = data(tmp_path / "d.jsonl", rows(RIGHT))
    model = "synthetic:layers=2,hidden=32,heads=2,vocab=300"
    words = ["decode", "--task", "humaneval", "--model", model, "--data", str(path), ALLOWED]
    assert run([*words, "--max-new-tokens", "2", "--out", "run"]) == 0
    assert read_run("run").samples[0].passed is None
