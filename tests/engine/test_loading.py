"""Loading: good models as they are, everything else as one line that helps."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ppdbench.decoding.decoder import Request
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.loop import autoregressive
from ppdbench.engine import loading, synthetic
from ppdbench.engine.loading import ModelSpec, load, resolve_device, weight_fingerprint
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError, PpdbenchError, UnsupportedModel
from ppdbench.machine.clock import Clock
from tests.families import greedy_truth, stock_model
from tests.helpers import save_synthetic

CPU = torch.device("cpu")
VOCAB = 300


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete model folder."""
    spec = f"layers=2,hidden=32,vocab={VOCAB},context=64"
    return save_synthetic(tmp_path_factory.mktemp("model"), spec, words=VOCAB)


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(good, tmp_path / "copy"))


def edit_json(path: Path, **changes: object) -> None:
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, **changes}), "utf-8")


def refused(
    spec: ModelSpec, message: str, kind: type[PpdbenchError] = ConfigError
) -> PpdbenchError:
    with pytest.raises(kind, match=message) as caught:
        load(spec)
    assert "\n" not in str(caught.value)
    return caught.value


# Folders that lack something, and what is none


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny.gguf", "tiny.gguf is cut off or damaged: its header goes on at byte 8"),
        ("model.safetensors", "is a file; give --model the folder that holds config.json"),
    ],
)
@pytest.mark.parametrize("typed", ["{}", "./{}"])
def test_a_file_is_said_to_be_one(
    name: str, words: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"GGUF")
    refused(ModelSpec(name=typed.format(name)), words)


def test_an_adapter_beside_the_weights_is_not_passed_over(folder: Path) -> None:
    edit = {"peft_type": "LORA", "base_model_name_or_path": "base"}
    (folder / "adapter_config.json").write_text(json.dumps(edit), "utf-8")
    refused(ModelSpec(name=str(folder)), r"LoRA \(adapter_config.json\), .* will merge it")


def test_the_folder_that_the_tests_below_spoil_loads(folder: Path) -> None:
    loaded = load(ModelSpec(name=str(folder)))
    assert loaded.staged.n_layers == 2
    assert loaded.staged.dtype == torch.float32
    assert loaded.max_positions == 64


@pytest.mark.parametrize("name", ["./no-such-folder", "/no/such/folder", "../no-such", "a/b/c"])
def test_a_path_that_is_not_there_is_called_a_missing_folder(name: str) -> None:
    refused(ModelSpec(name=name), f"model folder {name} does not exist")


def test_a_folder_without_a_configuration_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(ModelSpec(name=str(folder)), "is no model folder: it has no config.json")


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(ModelSpec(name=str(folder)), r"holds no weights; expected \*\.safetensors")


def test_a_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    for part in folder.glob("tokenizer*"):
        part.unlink()
    refused(ModelSpec(name=str(folder)), "holds no tokenizer; expected one of tokenizer.json")


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def emptied(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def pickled_nonsense(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"nonsense")


def shards_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def configuration_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{not json")


def configuration_without_family(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def family_of_nobody(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="wibble")


def heads_that_do_not_divide(folder: Path) -> None:
    edit_json(folder / "config.json", num_attention_heads=5)


def wrong_shapes(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=64)


def tokenizer_is_no_json(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def tokenizer_is_half_there(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    "spoil",
    [
        truncated,
        emptied,
        pickled_nonsense,
        shards_missing,
        configuration_is_no_json,
        configuration_without_family,
        heads_that_do_not_divide,
        wrong_shapes,
        tokenizer_is_no_json,
        tokenizer_is_half_there,
    ],
    ids=lambda f: f.__name__,
)
def test_a_spoilt_folder_is_one_line_that_names_it(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(folder)
    refused(ModelSpec(name=str(folder)), f"model {folder} does not load: .")


def test_an_interrupt_that_a_library_took_for_an_error_of_its_own_is_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def importing(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise ModuleNotFoundError("Could not import a module") from error

    monkeypatch.setattr(loading, "_from_pretrained", importing)
    with pytest.raises(KeyboardInterrupt):
        load(ModelSpec(name=str(folder)))


def test_a_family_of_nobody_is_named(folder: Path) -> None:
    family_of_nobody(folder)
    with pytest.raises(UnsupportedModel, match=r"does not load: family 'wibble' is not known"):
        load(ModelSpec(name=str(folder)))


def test_weights_that_lack_a_tensor_are_refused_and_not_made_up(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.down_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    refused(ModelSpec(name=str(folder)), r"model\.layers\.1\.mlp\.down_proj\.weight")


def test_a_configuration_with_more_layers_than_weights_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)
    refused(ModelSpec(name=str(folder)), r"model\.layers\.2\.")


def test_a_tied_head_is_not_a_missing_tensor(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    stock_model("llama-mha-tied", vocab_size=VOCAB).save_pretrained(tmp_path)
    synthetic.tokenizer(VOCAB, 64).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert load(ModelSpec(name=str(tmp_path))).staged.vocab_size == VOCAB


@pytest.mark.parametrize("vocab", [300, 301])
def test_a_tokenizer_may_not_reach_beyond_the_vocabulary(folder: Path, vocab: int) -> None:
    synthetic.tokenizer(vocab, 64).save_pretrained(folder)
    if vocab <= VOCAB:
        load(ModelSpec(name=str(folder)))
    else:
        refused(ModelSpec(name=str(folder)), r"tokenizer has ids up to 300.*ends at 299")


def test_an_added_token_that_text_never_turns_into_is_no_mismatch(folder: Path) -> None:
    """Gemma 3 1B ships one: an image placeholder, one id past its text model's vocabulary."""
    words = synthetic.tokenizer(VOCAB, 64)
    words.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    assert words.convert_tokens_to_ids("<image_soft_token>") == VOCAB
    words.save_pretrained(folder)
    assert load(ModelSpec(name=str(folder))).staged.vocab_size == VOCAB


def test_a_family_without_an_adapter_is_refused_before_weights_are_read(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="rwkv")
    (folder / "model.safetensors").write_bytes(b"not read")
    refused(
        ModelSpec(name=str(folder)),
        r"family rwkv does not run: layers with a memory",
        UnsupportedModel,
    )


# Names that are not folders


def test_a_hub_name_that_is_not_here_is_refused_when_offline() -> None:
    refused(
        ModelSpec(name="nobody-here/no-such-model", offline=True),
        r"'nobody-here/no-such-model' is not on this machine.*\(offline\).*local folder",
    )


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoConfig

    def fail(*_: object, **__: object) -> None:
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(AutoConfig, "from_pretrained", fail)
    refused(
        ModelSpec(name="nobody-here/no-such-model"),
        r"is no local folder and could not be fetched.*check the name and the connection",
    )


def test_a_copy_without_the_reference_model_says_what_to_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "reference_is_there", lambda: False)
    refused(ModelSpec(), "carries no trained reference model; use --model synthetic:demo")


# Devices and types


def test_an_unknown_type_is_refused(folder: Path) -> None:
    message = "dtype 'int8' is not known; use auto, float32, bfloat16, float16"
    refused(ModelSpec(name=str(folder), dtype="int8"), message)
    refused(ModelSpec(name="synthetic:layers=1,hidden=32,vocab=300", dtype="int8"), message)


@pytest.mark.parametrize("device", ["tpu", "gpu", "", "cuda:x"])
def test_an_unknown_device_is_refused(folder: Path, device: str) -> None:
    refused(ModelSpec(name=str(folder), device=device), "is not known; use auto, cpu, cuda")


def test_a_device_of_another_kind_is_refused(folder: Path) -> None:
    refused(ModelSpec(name=str(folder), device="meta"), "'meta' is not supported; use auto, cpu")


@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:0", 0), ("cuda:2", 2)])
def test_a_gpu_that_is_not_there_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, count: int
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    refused(ModelSpec(name=str(folder), device=device), f"this machine has {count} CUDA GPUs")


def test_auto_takes_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert resolve_device("auto").type == expected


@pytest.mark.parametrize(
    ("stored", "asked", "used"),
    [
        ("float32", "auto", torch.float32),
        ("bfloat16", "auto", torch.bfloat16),
        ("float16", "auto", torch.float32),  # a CPU has no kernels for it
        ("float32", "bfloat16", torch.bfloat16),
        ("bfloat16", "float32", torch.float32),
        ("float32", "float16", torch.float16),
    ],
)
def test_the_stored_type_is_kept_unless_another_is_asked_for(
    folder: Path, stored: str, asked: str, used: torch.dtype
) -> None:
    edit_json(folder / "config.json", dtype=stored)
    loaded = load(ModelSpec(name=str(folder), dtype=asked, device="cpu"))
    assert loaded.staged.dtype == used
    assert loaded.staged.cache_shape.dtype == used


# What a model declares


@pytest.mark.parametrize(
    ("declared", "eos", "pad"),
    [
        ({"eos_token_id": [5, 7], "pad_token_id": 9}, {5, 7}, 9),
        ({"eos_token_id": 5}, {5}, 5),
        ({"eos_token_id": 5, "pad_token_id": 0}, {5}, 0),
        ({}, {2}, 2),  # the configuration's
    ],
)
def test_eos_and_pad_are_those_of_the_generation_configuration(
    folder: Path, declared: dict[str, Any], eos: set[int], pad: int
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(declared))
    loaded = load(ModelSpec(name=str(folder)))
    assert loaded.eos_ids == eos
    assert loaded.pad_id == pad


# Fingerprints


def test_changing_one_weight_changes_the_fingerprint() -> None:
    model = stock_model("llama")
    before = weight_fingerprint(model)
    assert weight_fingerprint(stock_model("llama")) == before
    for name, parameter in model.named_parameters():
        flat = parameter.data.view(-1)
        kept = flat[-1].clone()
        flat[-1] += 0.5
        assert weight_fingerprint(model) != before, name
        flat[-1] = kept
    assert weight_fingerprint(model) == before


def test_another_type_or_seed_has_another_fingerprint() -> None:
    prints = [
        weight_fingerprint(stock_model("llama")),
        weight_fingerprint(stock_model("llama").to(torch.bfloat16)),
        weight_fingerprint(stock_model("llama", seed=1)),
        weight_fingerprint(stock_model("qwen2")),
    ]
    assert len(set(prints)) == 4


def test_large_tensors_are_sampled_from_end_to_end() -> None:
    model = torch.nn.Linear(1000, 20, bias=False)
    before = weight_fingerprint(model)
    with torch.no_grad():
        model.weight.add_(1e-3)
    assert weight_fingerprint(model) != before


# A real model, where the checkout has one beside it


def test_a_real_model_writes_the_tokens_that_generate_writes(stories: Path) -> None:
    loaded = load(ModelSpec(name=str(stories)))
    stock, words = loading.load_stock(ModelSpec(name=str(stories)))
    session = Session(loaded.staged, 160)
    prompts = ["Once upon a time", "Lily and Tom went to the park.", "The dog", "Yes! \n Why?"]
    for prompt in [[1], *map(words.encode, prompts)]:
        limits = Limits(40, loaded.eos_ids)
        ours = autoregressive(session, Request(prompt, limits, Clock(CPU))).output_ids
        assert list(ours) == greedy_truth(stock, prompt, 40)
        assert len(ours) > 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of its pages")
def test_no_page_of_the_weights_file_is_held_beside_the_packed_weights(tmp_path: Path) -> None:
    name = "synthetic:layers=2,hidden=128,vocab=4096,tie=true"
    model, words = loading.load_stock(ModelSpec(name=name, dtype="float32", device="cpu"))
    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    loaded = load(ModelSpec(name=str(tmp_path), device="cpu"))
    embedding = loaded.staged.adapter.embedding.weight
    held = [f for f in _mapped(tmp_path) if f["at"] <= embedding.data_ptr() < f["end"]]
    if not held:
        pytest.skip("this version of transformers copies")
    assert [f["rss"] for f in held] == [0]
    assert torch.equal(embedding, model.get_input_embeddings().weight)


def _mapped(folder: Path) -> list[dict[str, int]]:
    """The parts of memory that are pages of files in a folder, and how much of each is there."""
    found: list[dict[str, int]] = []
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            here = str(folder) in line
            if here:
                low, _, high = first.partition("-")
                found.append({"at": int(low, 16), "end": int(high, 16)})
        elif here and first == "Rss:":
            found[-1]["rss"] = int(rest[0])
    return found
