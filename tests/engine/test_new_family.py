"""A family that this package does not know, added by one entry and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ppdbench.cli import catalog
from ppdbench.cli.main import run
from ppdbench.engine import folders, synthetic
from ppdbench.engine.families import FAMILIES, BlockNames, Family
from ppdbench.engine.flat.choice import FLAT
from ppdbench.engine.known import known
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.engine.skipping import SkippedModel
from ppdbench.engine.staged import StagedModel, eager
from ppdbench.errors import UnsupportedModel
from tests import families, flat_ops
from tests.families import GROUPED, greedy_truth, stock_model
from tests.helpers import assert_near, tokens

# Its layers have one norm for both blocks, so none serves one of them alone.
PHI = Family(
    name="phi",
    members="Phi-1 and Phi-2",
    norm="final_layernorm",
    blocks=BlockNames(attention_norms=(), mlp_norms=()),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of that family as it lies on a disk."""
    settings = {**GROUPED, "num_key_value_heads": 4, "vocab_size": 300}
    monkeypatch.setitem(families.FAMILIES, "phi", ("phi", settings))
    stock_model("phi").save_pretrained(tmp_path / "phi")
    synthetic.tokenizer(300, 96).save_pretrained(tmp_path / "phi")
    return tmp_path / "phi"


@pytest.fixture(autouse=True)
def unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family as if nobody had tried it."""
    others = {name: row for name, row in known().items() if name != "phi"}
    for module in (folders, catalog):
        monkeypatch.setattr(module, "known", lambda: others)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(FAMILIES, "_items", dict(FAMILIES._items))
    FAMILIES.add(PHI.name, PHI)
    yield


def spec(folder: Path) -> ModelSpec:
    return ModelSpec(name=str(folder), dtype="float32", device="cpu")


def test_without_its_entry_it_is_refused_before_anything_is_read(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="family 'phi' is not known; `ppdbench list models`"):
        load(spec(folder))


@pytest.mark.usefixtures("added")
@torch.inference_mode()
def test_with_it_greedy_tokens_are_those_of_generate(folder: Path) -> None:
    stock, model = stock_model("phi"), load(spec(folder)).staged
    stock.generation_config.eos_token_id = None
    session = Session(model, 64)
    prompt = tokens(11)
    session.reset(prompt)
    logits, ours = session.prefill(), []
    for _ in range(12):
        ours.append(int(logits[0, -1].argmax()))
        logits = session.advance(session.ids(ours[-1:]))
    assert ours == greedy_truth(stock, prompt, 12)


@pytest.mark.usefixtures("added", "folder")
@torch.inference_mode()
def test_with_it_passes_run_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    flat_ops.stand_in(monkeypatch)
    model = StagedModel(stock_model("phi"), passes=FLAT)
    assert model.flat is not None, model.path.why
    session = Session(model, 64)
    session.reset(tokens(11))
    session.prefill()
    with eager(model):
        truth = session.advance(session.ids([5]))
    session.cache.truncate(session.cached - 1)
    assert_near(session.advance(session.ids([5])), truth)


@pytest.mark.usefixtures("added", "folder")
@torch.inference_mode()
def test_with_it_single_blocks_can_be_left_out() -> None:
    model = StagedModel(stock_model("phi"))
    session = Session(SkippedModel(model, {1}, {1}), 64)
    session.reset(tokens(11))
    without = StagedModel(stock_model("phi"), packed=False)
    for name in ("self_attn.dense", "mlp.fc2"):
        part = without.model.get_submodule(f"model.layers.1.{name}")
        for parameter in part.parameters():
            parameter.zero_()
    truth = Session(without, 64)
    truth.reset(tokens(11))
    assert_near(session.prefill(), truth.prefill())


@pytest.mark.usefixtures("added")
def test_with_it_the_family_is_listed_and_named_to_those_who_come_with_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["list", "models", "--format", "json"]) == 0
    rows = {entry["family"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert (rows["phi"]["what"], rows["phi"]["runs"]) == (PHI.members, True)
    other = Path(shutil.copytree(folder, folder.parent / "other"))
    settings = json.loads((other / "config.json").read_text("utf-8"))
    (other / "config.json").write_text(json.dumps({**settings, "model_type": "wibble"}), "utf-8")
    with pytest.raises(UnsupportedModel, match=r"family 'wibble' is not known; `ppdbench list"):
        load(spec(other))
