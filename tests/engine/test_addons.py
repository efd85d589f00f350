"""Add-ons in a folder: what comes back, and every way in which one is not this model's."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ppdbench.engine import addons
from ppdbench.engine.addons import Addon, Weights, addon_folder, open_addon, read_tensors
from ppdbench.engine.loading import Loaded, ModelSpec, load, load_stock, take_over
from ppdbench.engine.synthetic import tokenizer
from ppdbench.errors import ConfigError
from ppdbench.files import resources

MODEL = "synthetic:layers=2,hidden=32,heads=2,vocab=300"
TENSORS = {"a.weight": torch.arange(6.0).view(2, 3), "b": torch.arange(4)}
OPTIONS = {"heads": 2, "names": ["x"]}


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(ModelSpec(name=MODEL, device="cpu"))


def save(folder: Path, name: str = MODEL, tensors: dict[str, Tensor] = TENSORS) -> Path:
    model, words = load_stock(ModelSpec(name=name, device="cpu"))
    addons.save_addon(folder, "medusa", model, words, tensors, OPTIONS)
    return folder


def edit(folder: Path, **change: Any) -> Path:
    path = folder / "addon.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return folder


# What comes back


def test_an_addon_comes_back_with_its_options_and_tensors(loaded: Loaded, tmp_path: Path) -> None:
    addon = open_addon(save(tmp_path / "new" / "folder"), "medusa", loaded)
    assert addon.options == OPTIONS
    assert addon.names() == ["a.weight", "b"]
    assert torch.equal(addon.take("a.weight", (2, 3)), TENSORS["a.weight"])
    assert addon.names() == ["b"]
    assert torch.equal(addon.take("b", (None,)), TENSORS["b"])
    addon.close()


def test_numbers_take_the_type_of_the_model_and_indices_keep_theirs(tmp_path: Path) -> None:
    half = load(ModelSpec(name=MODEL, device="cpu", dtype="bfloat16"))
    addon = Addon(save(tmp_path, MODEL), {}, half)
    assert addon.take("a.weight", (2, 3)).dtype == torch.bfloat16
    assert addon.take("b", (4,)).dtype == torch.int64


def test_the_header_says_what_the_addon_belongs_to(loaded: Loaded, tmp_path: Path) -> None:
    header = json.loads((save(tmp_path) / "addon.json").read_text())
    assert header.pop("vocabulary")
    assert header == {
        "format": "ppdbench-addon",
        "version": 1,
        "method": "medusa",
        "model": loaded.fingerprint,
        "vocab_size": 300,
        "hidden_size": 32,
        "options": OPTIONS,
    }


def test_the_fingerprint_follows_the_tensors(loaded: Loaded, tmp_path: Path) -> None:
    other = {**TENSORS, "b": torch.arange(4) + 1}
    prints = [
        open_addon(save(tmp_path / name, tensors=tensors), "medusa", loaded).fingerprint
        for name, tensors in (("a", TENSORS), ("b", TENSORS), ("c", other))
    ]
    assert prints[0] == prints[1] != prints[2]


# What is refused


def test_tensors_that_nobody_took_are_named(loaded: Loaded, tmp_path: Path) -> None:
    many = {f"t{i}": torch.zeros(1) for i in range(9)}
    addon = open_addon(save(tmp_path, tensors=many), "medusa", loaded)
    addon.take("t0", (1,))
    with pytest.raises(ConfigError, match="unexpected tensors: t1, t2, t3, t4, t5 and 3 more"):
        addon.close()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("c", (2, 3), r"addon\.safetensors lacks the tensor c"),
        ("a.weight", (3, 2), r"a\.weight has shape \[2, 3\], not \[3, 2\]"),
        ("a.weight", (6,), r"a\.weight has shape \[2, 3\], not \[6\]"),
        ("a.weight", (None, 4), r"a\.weight has shape \[2, 3\], not \[any, 4\]"),
    ],
)
def test_missing_tensors_and_wrong_shapes_are_named(
    loaded: Loaded, tmp_path: Path, name: str, shape: tuple[int | None, ...], message: str
) -> None:
    addon = open_addon(save(tmp_path), "medusa", loaded)
    with pytest.raises(ConfigError, match=message):
        addon.take(name, shape)


HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "other"}, "does not describe trained medusa"),
    "method": ({"method": "eagle"}, "does not describe trained medusa but 'eagle'"),
    "version": ({"version": 2}, "has version 2, this ppdbench reads 1"),
    "another model": ({"model": "feedbeef"}, "another model: their model is feedbeef"),
    "no model": ({"model": None}, "another model: their model is None"),
    "another vocabulary": ({"vocabulary": "feedbeef"}, "their vocabulary is feedbeef"),
    "another vocabulary size": ({"vocab_size": 99}, "their vocab_size is 99, this model's is 300"),
    "another width": ({"hidden_size": 64}, "their hidden_size is 64, this model's is 32"),
    "options as a list": ({"options": [1]}, "options must be an object"),
    "no options": ({"options": None}, "options must be an object"),
    "unknown key": ({"rank": 4}, "unknown key rank; allowed: format, version, method, model"),
}


@pytest.mark.parametrize(("change", "message"), HEADERS.values(), ids=HEADERS)
def test_a_wrong_header_is_refused(
    loaded: Loaded, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_addon(edit(save(tmp_path), **change), "medusa", loaded)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not valid JSON"), ("[]", "does not describe trained medusa")]
)
def test_a_header_that_is_no_object_is_refused(
    loaded: Loaded, tmp_path: Path, text: str, message: str
) -> None:
    (save(tmp_path) / "addon.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        open_addon(tmp_path, "medusa", loaded)


def test_an_addon_of_a_retrained_model_is_refused(tmp_path: Path) -> None:
    model, words = load_stock(ModelSpec(name=MODEL, device="cpu"))
    addons.save_addon(tmp_path, "medusa", model, words, TENSORS, OPTIONS)
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(ConfigError, match="another model: their model"):
        open_addon(tmp_path, "medusa", take_over(ModelSpec(name="again"), model, words))


def test_an_addon_for_other_words_is_refused(tmp_path: Path) -> None:
    model, _ = load_stock(ModelSpec(name=MODEL, device="cpu"))
    addons.save_addon(tmp_path, "medusa", model, tokenizer(290, 64), TENSORS, OPTIONS)
    with pytest.raises(ConfigError, match="another model: their vocabulary"):
        open_addon(tmp_path, "medusa", take_over(ModelSpec(name="x"), model, tokenizer(300, 64)))


# Where it is looked for


def test_a_folder_without_an_addon_names_the_command_that_makes_one(
    loaded: Loaded, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"addon\.json is missing.*`ppdbench train medusa`"):
        open_addon(tmp_path / "nowhere", "medusa", loaded)


def test_without_a_folder_only_the_reference_model_has_an_addon(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PACKAGE", tmp_path)
    reference = Loaded(
        ModelSpec(name="reference"), loaded.staged, None, frozenset(), 0, loaded.fingerprint
    )
    assert addon_folder("reference", "medusa", loaded) == tmp_path / "reference/medusa"
    assert addon_folder("~/mine", "medusa", loaded) == Path.home() / "mine"
    with pytest.raises(ConfigError, match=r"no add-on for reference.*ppdbench train medusa"):
        addon_folder("", "medusa", reference)
    (tmp_path / "reference/medusa").mkdir(parents=True)
    assert addon_folder("", "medusa", reference) == tmp_path / "reference/medusa"
    with pytest.raises(ConfigError, match=r"no add-on for synthetic.*--set addon=DIR"):
        addon_folder("", "medusa", loaded)


def test_parts_of_other_models_of_the_package_are_found_by_name_and_held_against_the_weights(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "PACKAGE", tmp_path)
    smollm2 = replace(loaded, spec=ModelSpec(name="smollm2"))
    with pytest.raises(ConfigError, match=r"^medusa: no add-on for smollm2; train one"):
        open_addon("", "medusa", smollm2)
    own = tmp_path / "smollm2/medusa"
    save(own)
    assert open_addon("", "medusa", smollm2).folder == own
    assert open_addon("smollm2", "medusa", loaded).folder == own
    with pytest.raises(ConfigError, match="trained for another model"):
        open_addon("", "medusa", replace(smollm2, fingerprint="0" * 16))


# Files of tensors


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "w.safetensors"])
def test_tensors_are_read_from_either_kind_of_file(
    loaded: Loaded, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    if name.endswith("safetensors"):
        save_file(TENSORS, path)
    else:
        torch.save(TENSORS, path)
    found = read_tensors(path)
    assert all(torch.equal(found[key], tensor) for key, tensor in TENSORS.items())
    weights = Weights(path, loaded)
    assert torch.equal(weights.take("b", (4,)), TENSORS["b"])


class Harmful:
    """A pickle of it runs a command when it is read carelessly."""

    def __reduce__(self) -> Any:
        return (os.system, ("touch harmed",))


def test_a_pickle_with_code_in_it_is_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.zeros(2), "b": Harmful()}, "w.pt")
    with pytest.raises(ConfigError, match=r"w\.pt is refused.*could run code.*safetensors"):
        read_tensors(Path("w.pt"))
    assert not Path("harmed").exists()


@pytest.mark.parametrize("content", [torch.zeros(3), {"a": 1}, {"a": {"b": torch.zeros(1)}}, [1]])
def test_a_file_that_does_not_hold_tensors_by_name_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ConfigError, match="does not hold tensors by name"):
        read_tensors(tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"junk", b"PK\x03\x04junk"])
def test_files_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{name} (cannot be read|is refused)"):
        read_tensors(tmp_path / name)
