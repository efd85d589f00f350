"""docs/ci.md shows files and commands that work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from ppdbench.check.metrics import IGNORED, METRICS
from ppdbench.check.thresholds import read_thresholds
from ppdbench.cli.main import run
from tests.check.made import bare
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "ci.md").read_text("utf-8")
THRESHOLDS, WORKFLOW = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
TYPED = [line for b in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in b.splitlines()]
STEPS = yaml.safe_load(WORKFLOW)["jobs"]["check"]["steps"]
COMMANDS = [*TYPED, *(s["run"] for s in STEPS if s.get("run", "").startswith("ppdbench"))]


def test_the_thresholds_shown_are_read(tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(THRESHOLDS, "utf-8")
    limits = read_thresholds(tmp_path / "limits.yaml")
    limits.refuse_misfits(bare("bench", "layerskip"))
    assert limits.rule("speedup", "layerskip").kind == IGNORED


def test_every_metric_and_its_default_stand_in_the_table() -> None:
    for name in METRICS:
        default = METRICS.get(name).default
        text = f"{{{default.kind}: {default.amount:g}}}" if default.amount else default.kind
        assert re.search(rf"^\| `{name}` \|[^|]+\| `{re.escape(text)}` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shown_has_only_options_that_exist(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, name, *words = shlex.split(command)
    assert program == "ppdbench"
    assert run([name, "--help"]) == 0
    known = capsys.readouterr().out
    assert all(word in known for word in words if word.startswith("--"))


def test_the_workflow_runs_checks_and_uploads() -> None:
    assert [step.get("name") for step in STEPS[2:]] == [
        "Install",
        "Run",
        "Check",
        "Keep the run and its checks",
    ]
    assert "docs/ci.md" in (ROOT / "README.md").read_text("utf-8")
