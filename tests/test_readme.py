"""Every command that the README and the answers to questions show runs as it stands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks.readme import BLOCK, rendered
from ppdbench.cli.main import run
from ppdbench.files import papers
from tests.conftest import ROOT
from tests.families import stock_model

README = (ROOT / "README.md").read_text("utf-8")
FAQ = (ROOT / "docs" / "faq.md").read_text("utf-8")


def commands(text: str) -> list[str]:
    """What a reader is told to type."""
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


COMMANDS = commands(README)
SHORT = {
    "probe": ["--max-new-tokens", "8"],
    "decode": ["--max-new-tokens", "8"],
    "bench": ["--max-new-tokens", "8", "--limit", "2"],
    "sweep": ["--max-new-tokens", "8"],
    "train": ["--steps", "2"],
    "env --baseline": ["--prompt-tokens", "4", "--new-tokens", "4", "--rounds", "1"],
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, data and a task of the reader's own."""
    from ppdbench.engine.synthetic import tokenizer

    stock_model("llama", vocab_size=300, max_position_embeddings=600).save_pretrained(
        tmp_path / "my-model"
    )
    tokenizer(300, 600).save_pretrained(tmp_path / "my-model")
    rows = (ROOT / "ppdbench/builtin/squad/validation.jsonl").read_text("utf-8")
    (tmp_path / "my-data.jsonl").write_text(rows, "utf-8")
    (tmp_path / "corpus.txt").write_text(README, "utf-8")
    (tmp_path / "unseen.txt").write_text((ROOT / "docs/cpu.md").read_text("utf-8"), "utf-8")
    files = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    for content in files:
        name = "suite.yaml" if "methods:" in content else "my-task.yaml"
        (tmp_path / name).write_text(content, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_commands() -> None:
    assert len([c for c in COMMANDS if c.startswith("ppdbench")]) > 10


@pytest.mark.parametrize("text", [README, FAQ], ids=["readme", "faq"])
def test_every_command_runs(text: str, stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in commands(text):
        program, *words = shlex.split(command)
        if program == "make":
            continue
        assert program == "ppdbench", command
        # Fewer tokens or steps, nothing else.
        words += SHORT.get(words[0], []) or SHORT.get(" ".join(words[:2]), [])
        code = run(words)
        captured = capsys.readouterr()
        assert code == 0, f"{command}\n{captured.err}"
        assert captured.out.strip() or words[0] == "train", command
        if "json" in words:
            json.loads(captured.out)


def test_nothing_is_measured_on_the_text_it_was_trained_on() -> None:
    trained = [shlex.split(c) for c in COMMANDS if "--held-out" in c]
    assert len(trained) > 3
    for words in trained:
        assert words[words.index("--held-out") + 1] != words[words.index("--text") + 1]


def test_a_dozen_questions_are_answered() -> None:
    assert FAQ.count("\n## ") >= 12
    assert len(commands(FAQ)) >= 8
    for link in re.findall(r"\]\(([a-z-]+\.md)\)", FAQ):
        assert (ROOT / "docs" / link).is_file()


def test_the_lines_that_switch_completion_on_do_so() -> None:
    for shell in ("bash", "zsh", "fish"):
        assert f"_PPDBENCH_COMPLETE={shell}_source ppdbench" in FAQ


def test_every_paper_is_named_with_its_link() -> None:
    works = {work.link for works in papers.BEHIND.values() for work in works}
    assert {link for link in works if f"]({link})" not in README} == set()
    for work in papers.TABLED.values():
        assert f"[{work.title}]({work.link})" in " ".join(README.split())


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {command.split()[1] for command in COMMANDS if command.startswith("make")}
    assert {"demo", "test", "check"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_every_table_of_the_readme_is_what_its_run_says() -> None:
    assert len(BLOCK.findall(README)) > 4
    assert rendered(README) == README, "write it anew with `make readme`"


def test_no_measured_number_stands_outside_these_tables() -> None:
    prose = BLOCK.sub("", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    found = re.findall(r"\d[\d.,]*\s?(?:[x×%]|[mµ]?s|tokens/s|[KMG]i?B)(?!\w)", prose)
    assert sorted(found) == ["59 MB", "95 %"]  # how much text was trained on; of an interval


def test_pictures_of_the_readme_exist() -> None:
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", README)
    assert pictures
    assert all((ROOT / picture).is_file() for picture in pictures)
