"""What several commands do alike: words become options, and notes say what a run lacks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ppdbench.cli import common
from ppdbench.errors import ConfigError
from ppdbench.files import resources
from ppdbench.runs.shards import Shard

Capture = pytest.CaptureFixture[str]
ALONE = Shard.launched()


def test_numbers_come_once_and_in_order_unless_they_are_to_stay() -> None:
    assert common.parse_numbers("--layers", "3,1,3") == (1, 3)
    assert common.parse_numbers("--layers", "3,1,3", as_given=True) == (3, 1, 3)
    with pytest.raises(ConfigError, match=r"--layers '1;2': use numbers such as 1,3,5"):
        common.parse_numbers("--layers", "1;2")


def test_options_of_drawing_become_the_targets_and_are_taken() -> None:
    options: dict[str, Any] = {"top_k": 7, "temperature": None, "logit_bias": ("4=-1.5", "5=2")}
    options["seed"] = 3
    first, second = common.chosen_targets(["greedy", "top-k"], options)
    assert (first.kind, second.kind) == ("greedy", "top-k")
    assert (second.top_k, second.logit_bias) == (7, ((4, -1.5), (5, 2.0)))
    assert options == {"seed": 3}


@pytest.mark.parametrize("name", sorted(common.DRAWN_BY))
def test_an_option_of_drawing_needs_a_target_that_draws(name: str) -> None:
    value = ("4=1",) if name == "logit_bias" else 1
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} needs --target .*top-|min"):
        common.chosen_targets(["greedy"], {name: value})


@pytest.mark.parametrize("text", ["42", "x=1", "42=much"])
def test_a_bias_is_a_token_and_a_number(text: str) -> None:
    with pytest.raises(ConfigError, match=r"use a token id and a number, such as 42=-1\.5"):
        common.chosen_targets(["top-k"], {"logit_bias": (text,)})


def test_where_no_model_is_named_the_embedded_one_or_its_stand_in_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    for there, name in ((True, "reference"), (False, "synthetic:")):
        monkeypatch.setattr(resources, "reference_is_there", lambda there=there: there)
        assert common.chosen_model(None).startswith(name)
        assert common.chosen_model("mine") == "mine"
        common.stand_in_note("mine")
        common.stand_in_note(None)
        assert ("random weights" in capsys.readouterr().err) is not there


@pytest.mark.parametrize(
    ("options", "out", "resume", "words"),
    [
        ({"shard": "1/2", "salvage": False}, None, False, "--shard needs --out"),
        ({"shard": None, "salvage": True}, "run", False, "--salvage needs --resume and --out"),
        ({"shard": None, "salvage": True}, None, True, "--salvage needs --resume and --out"),
    ],
)
def test_parts_of_a_run_need_its_folder(
    options: dict[str, Any], out: str | None, resume: bool, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        common.our_shard(options, out, resume)


def test_the_shard_asked_for_is_ours_and_its_options_are_taken() -> None:
    options = {"shard": "2/3", "salvage": False, "seed": 1}
    shard = common.our_shard(options, "run", False)
    assert (shard.index, shard.count, shard.is_job) == (1, 3, True)
    assert options == {"seed": 1}
    assert common.our_shard({"shard": None, "salvage": False}, None, False) == ALONE


@pytest.mark.parametrize(
    ("missing", "shard", "code", "said"),
    [
        (0, ALONE, 0, ""),
        (1, ALONE, 3, "ppdbench: 1 sample missing, a process ended early; continue with --resume"),
        (2, Shard.job("1/2"), 0, "note: 2 samples of other shards are not there yet"),
    ],
)
def test_samples_that_others_owe_are_told_and_count_where_nobody_will_bring_them(
    missing: int, shard: Shard, code: int, said: str, capsys: Capture
) -> None:
    run: Any = SimpleNamespace(missing=missing, shard=shard)
    assert common.left_over(run) == code
    assert capsys.readouterr().err.strip() == said


def test_what_stored_runs_lack_is_a_line_for_each_kind(capsys: Capture) -> None:
    def stored(name: str, torn: bool, unsealed: int) -> Any:
        return SimpleNamespace(path=Path(name), torn=torn, unsealed=unsealed)

    common.reading_notes([stored("a", False, 0)])
    assert capsys.readouterr().err == ""
    common.reading_notes([stored("a", True, 2), stored("b", False, 0), stored("c", False, 1)])
    torn, unsealed = capsys.readouterr().err.splitlines()
    assert torn == "warning: the last line of a is incomplete and left out"
    assert unsealed.startswith("note: samples of a and 1 other runs have no checksums")


def test_files_that_cannot_be_written_are_refused_before_any_work(tmp_path: Path) -> None:
    common.check_pictures(None, str(tmp_path / "a.png"))
    common.check_exports([str(tmp_path / "a.csv")])
    with pytest.raises(ConfigError, match=r"a\.gif"):
        common.check_pictures(None, str(tmp_path / "a.gif"))
    with pytest.raises(ConfigError, match=r"use \.json, \.csv"):
        common.check_exports([str(tmp_path / "a.csv"), str(tmp_path)])
