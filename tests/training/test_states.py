"""States of a frozen model on disk: the same as computed, found again, and never half."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ppdbench.cli.main import run
from ppdbench.errors import ConfigError
from ppdbench.files.lock import written_alone
from ppdbench.training.layers import TrainedLayers
from ppdbench.training.plans import TRAINABLES
from ppdbench.training.states import StatesOnDisk
from tests.families import stock_model
from tests.helpers import tokens
from tests.training.made import training

MEDUSA = [*training("medusa"), "--heads", "2", "--rank", "4", "--steps", "4"]


def layers_with(folder: Path, length: int = 16) -> TrainedLayers:
    layers = TrainedLayers(stock_model("llama"), length)
    layers.store = StatesOnDisk.open(folder, {}, length, layers.adapter.hidden_size)
    return layers


def test_states_are_those_of_transformers_to_what_bfloat16_holds(tmp_path: Path) -> None:
    layers, text = layers_with(tmp_path), torch.tensor([tokens(16, 1), tokens(16, 2)])
    truth = stock_model("llama")(text, output_hidden_states=True).hidden_states
    computed, read = (layers.states(text, {1, 3}) for _ in range(2))
    for layer in (1, 3):
        assert torch.equal(computed[layer], read[layer])
        torch.testing.assert_close(read[layer], truth[layer], atol=1e-5, rtol=2**-8)


def test_what_is_kept_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = torch.tensor([tokens(16, 1), tokens(16, 2)])
    first = layers_with(tmp_path).states(text, {2, 4})
    later = layers_with(tmp_path)
    monkeypatch.setattr(later, "_states", None)
    assert torch.equal(later.states(text.flip(0), {4})[4], first[4].flip(0))


def test_a_block_that_a_kill_has_torn_is_computed_again(tmp_path: Path) -> None:
    text = torch.tensor([tokens(16, 1), tokens(16, 2)])
    first = layers_with(tmp_path).states(text, {2})[2]
    states, keys = tmp_path / "after-2.states", tmp_path / "after-2.keys"
    states.write_bytes(states.read_bytes()[:-7])
    keys.write_bytes(keys.read_bytes()[:-5])
    assert torch.equal(layers_with(tmp_path).states(text, {2})[2], first)
    assert torch.equal(layers_with(tmp_path).states(text, {2})[2], first)


def test_states_of_other_lengths_are_refused(tmp_path: Path) -> None:
    layers_with(tmp_path)
    with pytest.raises(ConfigError, match="another model, precision or length of sequences"):
        layers_with(tmp_path, 8)


def test_states_rounded_otherwise_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*MEDUSA, "--states", "states", "--out", "first"]) == 0
    capsys.readouterr()
    other = ["--precision", "bf16", "--states", "states", "--out", "again"]
    assert run([*MEDUSA, *other]) == 2
    assert "another model, precision or length of sequences" in capsys.readouterr().err


def test_two_at_once_do_not_share_a_folder(tmp_path: Path) -> None:
    with (
        written_alone(tmp_path),
        pytest.raises(ConfigError, match=r"being written by another process.* another --states"),
    ):
        layers_with(tmp_path)
    layers_with(tmp_path)


def test_trainings_with_kept_states_end_with_the_same_weights(home: Path) -> None:
    for out in ("first", "again"):
        assert run([*MEDUSA, "--states", "states", "--out", out]) == 0
    first, again = (load_file(home / n / "addon.safetensors") for n in ("first", "again"))
    assert all(torch.equal(again[name], first[name]) for name in first)
    assert sorted(path.name for path in (home / "states" / "0").iterdir()) == [
        *(".lock", "after-4.keys", "after-4.states", "states.json")
    ]


@pytest.mark.parametrize("name", sorted(TRAINABLES))
def test_states_are_offered_where_nothing_else_is_read(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [*training(name), "--steps", "1", "--states", "states", "--out", "out", "--dry-run"]
    offered = name in {"heads", "medusa", "eagle"}
    assert run(asked) == (0 if offered else 2)
    assert ("No such option '--states'" in capsys.readouterr().err) != offered
