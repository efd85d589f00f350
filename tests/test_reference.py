"""The embedded model: whole, loadable by anyone, exact, and as good as its README says."""

from __future__ import annotations

import json
import re

import pytest
import torch

from ppdbench.decoding.decoder import Setup
from ppdbench.decoding.limits import Limits
from ppdbench.engine.heads import load_heads
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.files.resources import reference_model
from ppdbench.methods import METHODS
from ppdbench.testing import Case, decode_case, reference

HOME = reference_model()
PROMPTS = (
    "Question: Tom has 3 apples and buys 4 more. How many apples does he have?\nAnswer:",
    "The old man walked slowly down to the river. He",
)
ADDONS = ("medusa", "hidden-transfer", "prompt-tokens", "eagle", "datastore")
OPTIONS = {
    "layerskip": {"exit_layer": "2"},
    "speculative": {"draft_model": "reference-draft"},
    "prompt-lookup": {},
    "hybrid": {},
    "lookahead": {},
    "jacobi": {},
    "draft-verify": {},
    "rest": {"datastore": "reference"},
    "medusa": {},
    "hidden-transfer": {},
    "prompt-tokens": {},
    "eagle": {},
}
GUESSING = ("medusa", "hidden-transfer", "prompt-tokens", "eagle")


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(ModelSpec(offline=True, device="cpu"))


def test_it_is_small_enough_to_travel_and_runs_in_float32(loaded: Loaded) -> None:
    added = {path for part in ADDONS for path in (HOME / part).rglob("*")}
    files = {path for path in HOME.rglob("*") if path.suffix in (".safetensors", ".json", ".bin")}
    assert sum(path.stat().st_size for path in files - added) < 20e6
    assert sum(path.stat().st_size for path in files & added) < 20e6
    assert 8 <= loaded.staged.n_layers <= 12
    assert loaded.staged.dtype == torch.float32
    assert loaded.max_positions >= 2048


def test_transformers_alone_loads_it(loaded: Loaded) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(HOME, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(HOME, local_files_only=True)
    assert 5e6 <= model.num_parameters() <= 10e6
    for text in PROMPTS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        with torch.inference_mode():
            truth = model.generate(
                torch.tensor([ids]), max_new_tokens=24, do_sample=False, pad_token_id=0
            )
        case = Case(text, ids, _limits(24, loaded))
        assert list(reference(case, loaded.staged).output_ids) == truth[0, len(ids) :].tolist()


@pytest.mark.parametrize("method", sorted(OPTIONS))
def test_every_method_gives_the_greedy_output(method: str, loaded: Loaded) -> None:
    setup = Setup(loaded, 64)
    decoder = METHODS.get(method).build(OPTIONS[method]).prepare(setup)
    decoder.begin()
    for text in PROMPTS:
        ids = loaded.tokenizer(text, add_special_tokens=False).input_ids
        case = Case(text, ids, _limits(64 - len(ids), loaded))
        ours = decode_case(decoder, case, loaded.staged)
        assert ours.output_ids == reference(case, loaded.staged).output_ids


@pytest.mark.parametrize("method", GUESSING)
def test_what_was_trained_beside_it_guesses_tokens_right(method: str, loaded: Loaded) -> None:
    decoder = METHODS.get(method).build({}).prepare(Setup(loaded, 64))
    decoder.begin()
    accepted = 0
    for text in PROMPTS:
        ids = loaded.tokenizer(text, add_special_tokens=False).input_ids
        case = Case(text, ids, _limits(64 - len(ids), loaded))
        accepted += sum(decode_case(decoder, case, loaded.staged).accepted)
    assert accepted >= 5


@pytest.mark.parametrize("method", GUESSING)
def test_the_readme_quotes_the_accuracy_of_what_was_trained_beside_it(method: str) -> None:
    readme = (HOME / "README.md").read_text("utf-8")
    for entry in json.loads((HOME / method / "quality.json").read_text("utf-8")):
        assert f"{100 * entry['top1']:.1f}%" in readme


def test_its_heads_and_its_draft_model_belong_to_it(loaded: Loaded) -> None:
    assert sorted(load_heads("reference", loaded)[0]) == list(range(1, loaded.staged.n_layers))
    words = [(HOME / part / "tokenizer.json").read_bytes() for part in ("", "draft")]
    assert words[0] == words[1]


def test_greedy_prose_is_made_of_english_words(loaded: Loaded) -> None:
    text = "The old man walked slowly down to the river. He"
    ids = loaded.tokenizer(text, add_special_tokens=False).input_ids
    case = Case(text, ids, _limits(40, loaded))
    said = loaded.tokenizer.decode(list(reference(case, loaded.staged).output_ids))
    words = re.findall(r"[a-z]+", said.lower())
    common = {"the", "and", "he", "was", "a", "to", "of", "his", "in", "had", "it", "that"}
    assert len(words) >= 10
    assert len(common & set(words)) >= 3


def test_the_readme_quotes_what_was_measured() -> None:
    readme = (HOME / "README.md").read_text("utf-8")
    quality = json.loads((HOME / "quality.json").read_text("utf-8"))
    for name in ("reference", "twin"):
        for entry in quality[name]:
            assert f"{entry['perplexity']:.2f}" in readme


def test_the_recipe_makes_the_middle_readable_and_costs_little_at_the_end() -> None:
    quality = json.loads((HOME / "quality.json").read_text("utf-8"))
    ours, twin = ([q["perplexity"] for q in quality[name]] for name in ("reference", "twin"))
    assert twin[3] / ours[3] > 3
    assert ours[7] / twin[7] < 1.05


def test_trained_heads_match_more_than_the_models_own_on_held_out_text() -> None:
    quality = json.loads((HOME / "quality.json").read_text("utf-8"))["heads"]
    rates = {(q["head"], q["layer"]): (q["top1"], q["top3"]) for q in quality}
    for layer in range(1, 6):  # below the last third
        for trained, own in zip(rates["Y", layer], rates["N", layer], strict=True):
            assert trained > own


def _limits(n: int, loaded: Loaded) -> Limits:
    return Limits(n, loaded.eos_ids)
