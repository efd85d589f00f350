"""Every command of the README and of the pages runs as it stands, and every table is its run's."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.readme import BLOCK, rendered
from ppdbench.cli.main import run
from ppdbench.files.publications import TABLED
from ppdbench.methods import METHODS
from tests.adapters import adapter, factors, for_module
from tests.conftest import ROOT
from tests.families import stock_model
from tests.pages import DOCS, PAGES, README, blocks, commands, name, scripts
from tests.processes import ranks

FAQ = (DOCS / "faq.md").read_text("utf-8")
# Pages whose only measured numbers are tables made of runs.
OF_RUNS = [README, *(DOCS / f"{name}.md" for name in (
    "methods", "measuring", "ppd", "models", "training", "runs", "tables", "extending",
    "architecture", "faq",
))]  # fmt: skip
SHORT = {
    "probe": ["--max-new-tokens", "8"],
    "decode": ["--max-new-tokens", "8", "--limit", "2"],
    "bench": ["--max-new-tokens", "8", "--limit", "2"],
    "sweep": ["--max-new-tokens", "8"],
    "train": ["--steps", "2"],
    "env --curve": ["--context", "8", "--rounds", "1"],
    "env --baseline": ["--prompt-tokens", "4", "--new-tokens", "4", "--rounds", "1"],
}
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}-{% endif %}"
)
WRITES = {"--out", "--export", "--plot", "--timeline", "--answers", "--calibration", "--update"}
FIRST = {command: page for page in reversed(PAGES) for command in commands(page)}
SPEEDUPS = [  # commands after which a reader looks for a speedup
    words
    for page in PAGES
    for words in map(shlex.split, [*commands(page), *scripts(page)])
    if words[:2] in (["ppdbench", "decode"], ["ppdbench", "bench"])
    and not any(word.startswith("--shard") for word in words)
]


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, data and a task of the reader's own."""
    from ppdbench.engine.synthetic import tokenizer

    stock_model("llama", vocab_size=300, max_position_embeddings=600).save_pretrained(
        tmp_path / "my-model"
    )
    words = tokenizer(300, 600)
    words.chat_template = CHAT
    words.save_pretrained(tmp_path / "my-model")
    adapter(tmp_path / "my-lora", for_module("model.layers.0.mlp.up_proj", *factors(32, 48)))
    rows = (ROOT / "ppdbench/builtin/squad/validation.jsonl").read_text("utf-8")
    (tmp_path / "my-data.jsonl").write_text(rows, "utf-8")
    (tmp_path / "corpus.txt").write_text((DOCS / "records.md").read_text("utf-8"), "utf-8")
    (tmp_path / "unseen.txt").write_text((DOCS / "cpu.md").read_text("utf-8"), "utf-8")
    for content in (block for page in PAGES for block in blocks(page, "yaml")):
        for file, key in (("suite.yaml", "tasks:"), ("my-task.yaml", "prompt_text:")):
            if re.search(f"^{key}", content, flags=re.MULTILINE):
                (tmp_path / file).write_text(content, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_commands() -> None:
    assert len([c for c in FIRST if c.startswith("ppdbench")]) > 60


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=name)
def test_every_command_runs(page: Path, stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(page):
        program, *words = shlex.split(command)
        if FIRST[command] != page and not WRITES & set(words):
            continue
        # Fewer tokens or steps, nothing else.
        if program == "ppdbench":
            words += _shortened(words)
            _run(command, words, capsys)
        elif program == "torchrun":
            _launch(words, stranger)
        else:
            assert _exists(program, words), command


def _shortened(words: list[str]) -> list[str]:
    """The options that make a command quick; a batch needs its examples."""
    short = SHORT.get(words[0], []) or SHORT.get(" ".join(words[:2]), [])
    return short[:2] if "--batch" in words else short


def _run(command: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(words)
    captured = capsys.readouterr()
    if "--quantize" in words and importlib.util.find_spec("bitsandbytes") is None:
        assert (code, "ppdbench[quantized]" in captured.err) == (2, True), captured.err
        return
    assert code == 0, f"{command}\n{captured.err}"
    assert captured.out.strip() or words[0] == "train", command
    if "json" in words:
        json.loads(captured.out)


def _launch(words: list[str], place: Path) -> None:
    """What torchrun would start, without its imports."""
    option, count, module, package, *rest = words
    assert (option, module, package) == ("--nproc-per-node", "-m", "ppdbench")
    with ranks([*rest, *SHORT[rest[0]]], place / "said", int(count)) as started:
        for one in started:
            assert one.wait() == 0, one.said()


def _exists(program: str, words: list[str]) -> bool:
    """That there is what another program is asked for."""
    if program == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        return re.search(rf"^{words[0]}:", makefile, flags=re.MULTILINE) is not None
    if program == "python":
        return words[0] == "-m" and importlib.util.find_spec(words[1]) is not None
    extra = re.fullmatch(r"ppdbench\[([a-z]+)\]", words[-1]) if program == "pip" else None
    declared = (ROOT / "pyproject.toml").read_text("utf-8")
    return extra is not None and f"\n{extra[1]} = [\n" in declared


@pytest.mark.parametrize("command", sorted({c for page in PAGES for c in scripts(page)}))
def test_scripts_and_workflows_have_only_options_that_exist(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *words = shlex.split(command)
    named = itertools.takewhile(lambda word: not word.startswith("--"), words)
    assert run([*named, "--help"]) == 0
    known = capsys.readouterr().out
    assert all(word in known for word in words if word.startswith("--"))


def test_modules_that_pages_name_are_there() -> None:
    for page in PAGES:
        for module in re.findall(r"python\s-m\s([\w.]+)", page.read_text("utf-8")):
            assert importlib.util.find_spec(module) is not None, f"{page.name}: {module}"


def test_where_a_speedup_is_looked_for_there_are_examples_enough() -> None:
    assert len(SPEEDUPS) > 20
    for words in SPEEDUPS:
        if "--limit" in words:
            assert int(words[words.index("--limit") + 1]) >= 5, " ".join(words)


def test_nothing_is_measured_on_the_text_it_was_trained_on() -> None:
    trained = [words for words in map(shlex.split, FIRST) if "--held-out" in words]
    assert len(trained) > 3
    for words in trained:
        assert words[words.index("--held-out") + 1] != words[words.index("--text") + 1]


def test_a_dozen_questions_are_answered() -> None:
    assert FAQ.count("\n## ") >= 12
    assert len(commands(DOCS / "faq.md")) >= 8


def test_the_lines_that_switch_completion_on_do_so() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert f"_PPDBENCH_COMPLETE={shell}_source ppdbench" in FAQ


def test_every_paper_is_named_with_its_link() -> None:
    works = [work for name in METHODS for work in METHODS.get(name).papers]
    readme, methods = (p.read_text("utf-8") for p in (README, DOCS / "methods.md"))
    tables = " ".join((DOCS / "tables.md").read_text("utf-8").split())
    assert {work.link for work in works if f"]({work.link})" not in readme} == set()
    for work in works:
        assert f"[{work.title}]({work.link})" in methods
    for work in TABLED.values():
        assert f"[{work.title}]({work.link})" in tables


def test_every_make_target_of_the_pages_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {command.split()[1] for command in FIRST if command.startswith("make")}
    for page in PAGES:
        targets |= set(re.findall(r"`make\s([a-z0-9-]+)", page.read_text("utf-8")))
    assert {"demo", "test", "check"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_every_table_of_the_pages_is_what_its_run_says() -> None:
    texts = {page: page.read_text("utf-8") for page in PAGES}
    assert sum(len(BLOCK.findall(text)) for text in texts.values()) > 4
    for page, text in texts.items():
        assert rendered(text) == text, f"write {page.name} anew with `make readme`"


def test_no_measured_number_stands_outside_these_tables() -> None:
    found = []
    for page in OF_RUNS:
        prose = BLOCK.sub("", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL))
        found += re.findall(r"\d[\d.,]*\s?(?:[x×%]|[mµ]?s|tokens/s|[KMG]i?B)(?!\w)", prose)
    # Values of an option; how large texts to train on are; of intervals.
    assert sorted(found) == ["20GB", "540 MB", "59 MB", "59 MB", "64GB", "95 %", "95 %"]
