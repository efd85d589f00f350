"""The builtin example data: columns, internal consistency and originality."""

import ast
import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILTIN = ROOT / "ppdbench" / "builtin"
REAL_DATA = ROOT.parent / "shared" / "data"
NGRAM = 10

Row = dict[str, Any]

COLUMNS: dict[str, tuple[str, set[str]]] = {
    "squad": ("validation", {"id", "title", "context", "question", "answers"}),
    "wmt_en_fr": ("test", {"translation"}),
    "cnn_dailymail": ("validation", {"article", "highlights", "id"}),
    "xsum": ("test", {"document", "summary", "id"}),
    "gsm8k": ("test", {"question", "answer"}),
    "humaneval": ("test", {"task_id", "prompt", "canonical_solution", "test", "entry_point"}),
    "mt_bench": (
        "train",
        {"category", "prompt", "reference", "prompt_id", "question_id", "turns"},
    ),
    "topv2": ("test", {"domain", "utterance", "semantic_parse"}),
    "alpaca": ("train", {"instruction", "input", "output", "text"}),
    "spec_bench": ("test", {"question_id", "category", "turns", "reference"}),
}
ID_COLUMN = {
    "squad": "id",
    "cnn_dailymail": "id",
    "xsum": "id",
    "humaneval": "task_id",
    "mt_bench": "question_id",
    "spec_bench": "question_id",
}
PROMPT: dict[str, Callable[[Row], str]] = {
    "squad": lambda row: row["context"] + "\n" + row["question"],
    "wmt_en_fr": lambda row: row["translation"]["en"],
    "cnn_dailymail": lambda row: row["article"],
    "xsum": lambda row: row["document"],
    "gsm8k": lambda row: row["question"],
    "humaneval": lambda row: row["prompt"],
    "mt_bench": lambda row: row["prompt"][0],
    "topv2": lambda row: row["utterance"],
    "alpaca": lambda row: row["instruction"] + "\n" + row["input"],
    "spec_bench": lambda row: row["turns"][0],
}
MT_BENCH_CATEGORIES = {
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
}
SPEC_BENCH_CATEGORIES = MT_BENCH_CATEGORIES | {
    "translation",
    "summarization",
    "qa",
    "math_reasoning",
    "rag",
}
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def read_jsonl(path: Path) -> list[Row]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


@cache
def load(task: str) -> list[Row]:
    return read_jsonl(BUILTIN / task / f"{COLUMNS[task][0]}.jsonl")


def evaluate(expression: str) -> float:
    def visit(node: ast.expr) -> float:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](visit(node.left), visit(node.right))
        assert isinstance(node, ast.Constant) and isinstance(node.value, int | float), expression
        return float(node.value)

    return visit(ast.parse(expression, mode="eval").body)


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def ngrams(value: Any) -> Iterator[str]:
    """The sequences of NGRAM words, lower-cased and without punctuation, of every string."""
    for text in strings(value):
        words = re.sub(r"[^\w\s]", "", text.lower()).split()
        for start in range(len(words) - NGRAM + 1):
            yield " ".join(words[start : start + NGRAM])


def check_worked_answer(answer: str) -> None:
    lines = answer.split("\n")
    final = re.fullmatch(r"#### (-?\d+(?:\.\d+)?)", lines[-1])
    assert final, lines[-1]
    annotations = re.findall(r"<<([^<>=]+)=([^<>=]+)>>(-?\d+(?:\.\d+)?)", answer)
    assert len(annotations) >= 2
    assert len(annotations) == answer.count("<<") == answer.count(">>")
    for expression, result, shown in annotations:
        assert evaluate(expression) == pytest.approx(float(result)), expression
        assert result == shown, expression
    assert annotations[-1][1] == final[1]


def test_readme_lists_the_row_counts_and_columns() -> None:
    readme = (BUILTIN / "README.md").read_text(encoding="utf-8")
    for task, (split, columns) in COLUMNS.items():
        line = next(line for line in readme.splitlines() if line.startswith(f"| `{task}` "))
        assert f"| `{task}/{split}.jsonl` | {len(load(task))} |" in line
        assert all(f"`{column}`" in line for column in columns)


@pytest.mark.parametrize("task", COLUMNS)
def test_rows_and_columns(task: str) -> None:
    rows = load(task)
    assert len(rows) >= 16
    for row in rows:
        assert set(row) == COLUMNS[task][1]


@pytest.mark.parametrize("task", COLUMNS)
def test_no_duplicates(task: str) -> None:
    rows = load(task)
    prompts = [PROMPT[task](row).strip().lower() for row in rows]
    assert all(prompts)
    assert len(set(prompts)) == len(rows)
    if task in ID_COLUMN:
        assert len({row[ID_COLUMN[task]] for row in rows}) == len(rows)


def test_squad_spans() -> None:
    rows = load("squad")
    assert len({row["context"] for row in rows}) >= 8
    for row in rows:
        assert 60 <= len(row["context"].split()) <= 140
        answers = row["answers"]
        assert set(answers) == {"text", "answer_start"}
        assert len(answers["text"]) == len(answers["answer_start"]) >= 1
        for text, start in zip(answers["text"], answers["answer_start"], strict=True):
            assert text and row["context"][start : start + len(text)] == text


def test_wmt_sides() -> None:
    for row in load("wmt_en_fr"):
        pair = row["translation"]
        assert set(pair) == {"en", "fr"}
        assert pair["en"].strip() and pair["fr"].strip()
        assert pair["en"] != pair["fr"]


def test_summaries() -> None:
    for row in load("cnn_dailymail"):
        assert 130 <= len(row["article"].split()) <= 260
        highlights = row["highlights"].split("\n")
        assert len(highlights) == 3 and all(line.endswith(".") for line in highlights)
    for row in load("xsum"):
        assert 100 <= len(row["document"].split()) <= 180
        assert "\n" not in row["summary"] and row["summary"].endswith(".")


def test_gsm8k_arithmetic() -> None:
    for row in load("gsm8k"):
        check_worked_answer(row["answer"])


def test_humaneval_solutions_pass() -> None:
    for number, row in enumerate(load("humaneval")):
        assert row["task_id"] == f"PpdBuiltin/{number}"
        assert f"def {row['entry_point']}(" in row["prompt"]
        namespace: dict[str, Any] = {}
        exec(row["prompt"] + row["canonical_solution"] + row["test"], namespace)
        namespace["check"](namespace[row["entry_point"]])


def test_mt_bench_turns() -> None:
    rows = load("mt_bench")
    assert Counter(row["category"] for row in rows) == dict.fromkeys(MT_BENCH_CATEGORIES, 2)
    for row in rows:
        assert len(row["prompt"]) == 2
        assert row["turns"] == row["prompt"]
        assert isinstance(row["prompt_id"], int) and row["prompt_id"] == row["question_id"]
        expected = 2 if row["category"] in {"math", "reasoning", "coding"} else 0
        assert len(row["reference"]) == expected


def test_topv2_parses() -> None:
    for row in load("topv2"):
        depth = 0
        words = []
        tokens = row["semantic_parse"].split()
        for position, token in enumerate(tokens):
            if token.startswith("["):
                assert re.fullmatch(r"\[(IN|SL):[A-Z_]+", token), token
                assert depth > 0 or position == 0
                depth += 1
            elif token == "]":
                depth -= 1
                assert depth > 0 or position == len(tokens) - 1
            else:
                words.append(token)
        assert depth == 0
        assert tokens[0].startswith("[IN:")
        assert " ".join(words) == row["utterance"]


def test_alpaca_text() -> None:
    rows = load("alpaca")
    assert {bool(row["input"]) for row in rows} == {True, False}
    for row in rows:
        assert row["output"]
        head = "Below is an instruction that describes a task"
        body = f"### Instruction:\n{row['instruction']}\n\n"
        if row["input"]:
            head += ", paired with an input that provides further context"
            body += f"### Input:\n{row['input']}\n\n"
        head += ". Write a response that appropriately completes the request.\n\n"
        assert row["text"] == f"{head}{body}### Response:\n{row['output']}"


def test_spec_bench_categories() -> None:
    rows = load("spec_bench")
    assert {row["category"] for row in rows} == SPEC_BENCH_CATEGORIES
    for row in rows:
        assert isinstance(row["question_id"], int)
        assert len(row["turns"]) == (2 if row["category"] in MT_BENCH_CATEGORIES else 1)
        assert all(isinstance(text, str) and text for text in row["turns"] + row["reference"])
        if row["category"] == "math_reasoning":
            check_worked_answer(row["reference"][0])


@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the real data sets are not here")
def test_shares_no_text_with_real_data() -> None:
    ours = {gram for task in COLUMNS for row in load(task) for gram in ngrams(row)}
    shared = {
        gram
        for task in COLUMNS
        for path in sorted((REAL_DATA / task).glob("*.jsonl"))
        for row in read_jsonl(path)
        for gram in ngrams(row)
        if gram in ours
    }
    assert not shared
