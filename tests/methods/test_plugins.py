"""Strategies of other packages: found, listed, proved exact, and harmless when broken."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ppdbench import methods
from ppdbench.cli.main import run
from ppdbench.errors import ConfigError
from ppdbench.methods import METHODS, method
from ppdbench.methods.plugins import load_plugins
from ppdbench.testing import MODELS, exactness_tests

PLUGIN = '''
from dataclasses import dataclass
from ppdbench.decoding.draft import Draft
from ppdbench.methods import Proposer, option, strategy


@strategy("repeat-last")
@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatLast:
    """The newest token again and again."""

    times: int = option(3, "how often")

    def prepare(self, setup):
        return Repeater(self.times)


class Repeater(Proposer):
    def __init__(self, times):
        self.times = times
        self.rows = 1 + times

    def propose(self, session, room):
        return Draft.chain(session.tokens[-1:] * self.times)
'''


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Two installed packages with strategies, one of which cannot be imported."""
    (tmp_path / "repeating.py").write_text(PLUGIN)
    (tmp_path / "breaking.py").write_text("raise OSError('no licence file')\n")
    info = tmp_path / "repeating-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: repeating\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[ppdbench.strategies]\nrepeat-last = repeating\nbreaks = breaking\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    broken = load_plugins()
    monkeypatch.setattr(methods, "BROKEN_PLUGINS", broken)
    yield broken
    METHODS._items.pop("repeat-last", None)
    sys.modules.pop("repeating", None)


def test_a_plugin_is_a_method_like_any_other(plugins: dict[str, str]) -> None:
    found = method("repeat-last")
    assert (found.exact, found.summary) == (True, "The newest token again and again.")
    assert [(o.name, o.default) for o in found.options()] == [("times", 3)]


def test_a_broken_plugin_is_reported_and_takes_nothing_with_it(
    plugins: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert plugins == {"breaks": "OSError: no licence file"}
    with pytest.raises(ConfigError, match="'breaks' cannot be loaded: OSError: no licence file"):
        method("breaks")
    assert run(["list", "methods"]) == 0
    captured = capsys.readouterr()
    assert "repeat-last" in captured.out
    assert "'breaks' cannot be loaded" in captured.err


def test_the_exactness_tests_run_on_a_plugin(plugins: dict[str, str]) -> None:
    proof = exactness_tests("repeat-last", times=2)()
    for model in MODELS:
        proof.test_outputs_are_those_of_greedy(model)  # type: ignore[attr-defined]
        proof.test_in_one_fixed_shape_too(model)  # type: ignore[attr-defined]
        proof.test_the_order_of_examples_changes_nothing(model)  # type: ignore[attr-defined]
        proof.test_beside_other_sequences_too(model)  # type: ignore[attr-defined]


def test_the_exactness_tests_fail_on_a_plugin_that_is_not_exact(
    plugins: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ppdbench.decoding import loop, verify

    def accept(draft: object, predictions: tuple[int, ...]) -> verify.Outcome:
        return verify.Outcome((), (predictions[0] + 1) % 300)

    monkeypatch.setattr(loop, "accept_greedy", accept)
    proof = exactness_tests("repeat-last")()
    with pytest.raises(AssertionError, match="plain 0"):
        proof.test_outputs_are_those_of_greedy(MODELS[0])  # type: ignore[attr-defined]
    with pytest.raises(AssertionError, match="plain 0"):
        proof.test_beside_other_sequences_too(MODELS[0])  # type: ignore[attr-defined]


def test_packages_that_declare_no_strategy_are_not_read_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text("[console_scripts]\nother = other:main\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr("importlib.metadata.entry_points", None)
    assert load_plugins() == {}
    (info / "entry_points.txt").write_text("[ppdbench.strategies]\nother = other\n")
    with pytest.raises(TypeError):
        load_plugins()
