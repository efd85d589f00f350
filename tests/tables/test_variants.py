"""What a probe keeps of the add-ons it probed is enough to know them again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ppdbench.cli.main import run
from ppdbench.engine.addons import RECORD
from ppdbench.engine.synthetic import tokenizer
from ppdbench.training.trainer import STATE
from tests.conftest import ROOT
from tests.families import stock_model
from tests.tables.stored import table

TRAIN = (
    "train prompt-tokens --model ./model --text text.txt --sequence 16 --batch-size 4 "
    "--insertions 4 --steps 2"
)
PROBE = "probe --what drafts --model ./model --data builtin --task alpaca --limit 2 --out probe"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a text."""
    stock_model("llama-mha-tied", vocab_size=300, max_position_embeddings=900).save_pretrained(
        tmp_path / "model"
    )
    tokenizer(300, 900).save_pretrained(tmp_path / "model")
    (tmp_path / "text.txt").write_text((ROOT / "README.md").read_text("utf-8")[:4000], "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_trained_and_probed_variants_find_their_rows(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options in (("one", "--loss ce"), ("two", "--loss ce --epts 2"), ("kd", "")):
        assert run([*TRAIN.split(), *options.split(), "--out", name]) == 0
    (home / "two" / RECORD).unlink()  # as where an add-on was published without it
    methods = [f"--method=prompt-tokens:addon=./{name}" for name in ("one", "two", "kd")]
    assert run([*PROBE.split(), "--max-new-tokens", "8", *methods]) == 0
    header = json.loads((home / "probe" / "run.json").read_text("utf-8"))
    one, two = (header["facts"][f"prompt-tokens:addon=./{name}"] for name in ("one", "two"))
    assert (one["options"]["epts"], two["options"]["epts"]) == (1, 2)
    assert one["training"]["steps"] == 2
    assert two["training"] is None
    assert (one["added_parameters"], two["added_parameters"]) == (3 * 32, 6 * 32)
    parameters = stock_model("llama-mha-tied", vocab_size=300).num_parameters()
    assert one["model_parameters"] == parameters
    capsys.readouterr()
    rows = {row["ept"]: row for row in table(capsys, "prompt_ppd/2", "probe")["rows"]}
    assert rows[1]["ours"] == "1 EPT, 0k"
    assert rows[2]["ours"] == "2 EPT"
    assert rows[1]["@1 top 5"] is not None
    assert rows[10]["@1 top 5"] is None


def test_a_training_is_recorded_where_addons_look_for_it() -> None:
    assert RECORD == STATE
