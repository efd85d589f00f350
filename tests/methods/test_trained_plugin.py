"""A trained method of another package: nothing in ppdbench names it, and it does all that ours do.

The package is the one in examples/, found through its entry point.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.decoding.decoder import Setup
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.methods import METHODS, method
from ppdbench.methods.plugins import load_plugins
from ppdbench.testing import CAPACITY, MODELS, assert_exact, cases
from ppdbench.training.plans import TRAINABLES
from tests.conftest import ROOT

EXAMPLE = ROOT / "examples" / "ppdbench-repeat"
MODEL = MODELS[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that its training wrote, while the package is installed."""
    home = tmp_path_factory.mktemp("plugin")
    info = home / "ppdbench_repeat-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ppdbench-repeat\nVersion: 1.0\n")
    declared = (EXAMPLE / "pyproject.toml").read_text("utf-8")
    group = '[project.entry-points."ppdbench.strategies"]\n'
    entry = declared.partition(group)[2].splitlines()[0].replace('"', "")
    (info / "entry_points.txt").write_text(f"[ppdbench.strategies]\n{entry}\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(EXAMPLE))
        patched.syspath_prepend(str(home))
        patched.chdir(home)
        assert load_plugins() == {}
        text = "To guess is to look ahead, and to check is to be sure. " * 20
        (home / "text.txt").write_text(text, "utf-8")
        words = ["train", "after-next", "--model", MODEL, "--text", "text.txt", "--sequence", "16"]
        words += ["--batch-size", "4", "--steps", "6", "--learning-rate", "3e-2"]
        assert run([*words, "--held-out", "text.txt", "--out", "after"]) == 0
        yield home / "after"
    for name in ("repeat", "after-next"):
        METHODS._items.pop(name)
    TRAINABLES._items.pop("after-next")
    for name in [n for n in sys.modules if n.startswith("ppdbench_repeat")]:
        del sys.modules[name]


def test_it_is_trained_and_measured(trained: Path) -> None:
    assert json.loads((trained / "training.json").read_text("utf-8"))["kind"] == "after-next"
    lines = (trained / "train.jsonl").read_text("utf-8").splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    (quality,) = json.loads((trained / "quality.json").read_text("utf-8"))
    assert quality["distance"] == 1


def test_what_was_saved_decodes_exactly(trained: Path) -> None:
    loaded = load(ModelSpec(name=MODEL, device="cpu"))
    decoder = method("after-next").build({"addon": str(trained)}).prepare(Setup(loaded, CAPACITY))
    assert decoder.facts["options"] == {"loss": "kl"}
    found = [assert_exact(decoder, case, loaded.staged) for case in cases(loaded.staged)]
    assert sum(sum(one.proposed) for one in found) > len(found)


def test_it_is_listed_and_has_a_command(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "methods", "--format", "json"]) == 0
    entries = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["after-next"]["trained"]
    assert not entries["repeat"]["trained"]
    assert run(["train", "--help"]) == 0
    assert "ppdbench train after-next --model ./my-model" in capsys.readouterr().out


def test_it_is_measured_beside_the_others(trained: Path, tmp_path: Path) -> None:
    words = ["bench", "--model", MODEL, "--task", "gsm8k", "--data", "builtin", "--limit", "2"]
    words += ["--max-new-tokens", "6", "--warmup", "0", "--out", str(tmp_path / "run")]
    named = ["--method", "repeat", "--method", f"after-next:addon={trained}"]
    assert run([*words, *named, "--compile", "off"]) == 0
    lines = (tmp_path / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    samples = [json.loads(line) for line in lines]
    assert {s["method"].partition(":")[0] for s in samples} == {"repeat", "after-next"}
    assert {s["verdict"] for s in samples} == {"identical"}


def test_without_what_was_trained_the_way_there_is_told(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["decode", "--model", MODEL, "--task", "gsm8k", "--data", "builtin", "--limit", "1"]
    words += ["--max-new-tokens", "4", "--out", str(trained / "none")]
    assert run([*words, "--method", "after-next"]) == 2
    assert "train one with `ppdbench train after-next" in capsys.readouterr().err
