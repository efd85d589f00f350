"""What stands beside the code for other programs: it is valid, and calls what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ppdbench import __version__
from tests.conftest import ROOT

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
HOOKS = ROOT / ".pre-commit-config.yaml"
CITATION = ROOT / "CITATION.cff"


def read(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize("path", [WORKFLOW, *FORMS, HOOKS, CITATION], ids=lambda path: path.name)
def test_it_is_yaml(path: Path) -> None:
    assert read(path)


def test_the_workflow_calls_make_targets_and_all_that_must_pass() -> None:
    jobs = read(WORKFLOW)["jobs"].values()
    called = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert all(command.startswith("make ") for command in called)
    for command in called:
        assert re.search(rf"^{command.split()[1]}:", MAKEFILE, flags=re.MULTILINE), command
    own = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    must = {line.partition(" || ")[0] for line in own if line.startswith("make ")}
    assert must <= set(called)


def test_what_make_help_names_are_targets() -> None:
    named = re.findall(r'@echo "make ([a-z0-9-]+)', MAKEFILE)
    phony = set(re.search(r"\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE)[1].replace("\\", " ").split())
    assert len(named) > 10
    for target in named:
        assert re.search(rf"^{target}:", MAKEFILE, flags=re.MULTILINE), target
        assert target in phony, target


def test_a_problem_is_told_with_its_command_and_its_machine() -> None:
    (form,) = (read(path) for path in FORMS if path.name == "problem.yml")
    required = {
        field["id"]: field["attributes"]["label"]
        for field in form["body"]
        if field.get("validations", {}).get("required")
    }
    assert "ppdbench env" in required["environment"]
    assert "command" in required


def test_hooks_call_what_make_check_calls() -> None:
    hooks = [hook for repo in read(HOOKS)["repos"] for hook in repo["hooks"]]
    assert all(repo["repo"] == "local" for repo in read(HOOKS)["repos"])
    assert {hook["entry"].split()[0] for hook in hooks} >= {".venv/bin/ruff", ".venv/bin/mypy"}
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
    assert check is not None
    for hook in hooks:
        words = hook["entry"].removeprefix(".venv/bin/").split()
        assert f"$(BIN)/{' '.join(words[:2])}".split(" --")[0] in check[1], hook["entry"]


def test_the_citation_has_what_the_format_asks_for() -> None:
    content = read(CITATION)
    assert content["cff-version"] == "1.2.0"
    assert content["type"] == "software"
    assert {"title", "message", "abstract", "license"} <= set(content)
    assert content["authors"] == [{"name": "The ppdbench authors"}]
    assert content["version"] == __version__


def test_the_changelog_begins_with_what_is_coming() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    headings = re.findall(r"^## \[(.+?)\]", text, flags=re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__ in text
    kinds = set(re.findall(r"^### (\w+)", text, flags=re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
