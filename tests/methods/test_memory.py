"""Methods over layers with a memory of their own: outputs of chains are those of `generate()`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

from benchmarks.families import tiny
from ppdbench.bench.runner import prepare
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Decoder, Request, Setup
from ppdbench.decoding.limits import Limits
from ppdbench.decoding.sampling import Target
from ppdbench.engine.loading import Loaded, ModelSpec
from ppdbench.engine.session import Session
from ppdbench.engine.staged import StagedModel
from ppdbench.errors import UnsupportedModel
from ppdbench.machine.clock import Clock
from ppdbench.methods import method
from ppdbench.methods.speculative import ModelDrafter, Speculative
from tests.decoding.matrix import Oracle
from tests.families import greedy_truth
from tests.helpers import tokens

PROMPT = [*tokens(7), *tokens(7), *tokens(3)]
NEW = 24


@cache
def loaded(family: str) -> Loaded:
    spec = ModelSpec(name=family, device="cpu")
    return Loaded(spec, StagedModel(tiny(family)), None, frozenset(), 0, family)


@cache
def truth(family: str) -> tuple[int, ...]:
    return tuple(greedy_truth(tiny(family), PROMPT, NEW))


def built(name: str, **options: str) -> Callable[[Loaded], Decoder]:
    def make(target: Loaded) -> Decoder:
        return method(name).build(options).prepare(Setup(target, len(PROMPT) + NEW))

    return make


def speculative(target: Loaded) -> Decoder:
    """Drafts of the same model with other weights by a little, which remembers, too."""
    near = tiny(target.spec.name)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in near.parameters():
            parameter += 0.03 * torch.randn_like(parameter)
    drafter = Loaded(target.spec, StagedModel(near), None, frozenset(), 0, "near")
    asked = Speculative(draft_model="near", draft_length=4)
    return ModelDrafter(asked, drafter, Setup(target, len(PROMPT) + NEW))


METHODS: dict[str, Callable[[Loaded], Decoder]] = {
    "greedy": built("greedy"),
    "prompt-lookup": built("prompt-lookup", longest_suffix="1"),
    "speculative": speculative,
    "layerskip": built("layerskip", exit_layer="3"),
    "layerskip, its own cache": built("layerskip", exit_layer="2", reuse="none"),
    "draft-verify": built("draft-verify", draft_length="4", threshold="0"),
    "jacobi": built("jacobi", window="4"),
    "early-exit, never sure": built("early-exit", exit_layer="1", confidence="1"),
    "drafts that are right": lambda target: Oracle(target.staged, 6),
    "drafts that are half right": lambda target: Oracle(target.staged, 5, wrong_from=2),
    "drafts that are wrong": lambda target: Oracle(target.staged, 3, wrong_from=0),
}


# Every method over convolutions and delta nets; over all others those that leave layers out.
WHOLE = ("lfm2", "qwen3_5_text")
OTHERS = (
    *("bamba", "falcon_h1", "granitemoehybrid", "jamba", "mamba2", "nemotron_h"),
    *("qwen3_next", "zamba2", "zaya"),
)
LEAVING_OUT = ("layerskip", "draft-verify", "early-exit, never sure")
# Their layers are one block each, so there is none to leave out of one.
OF_ONE_BLOCK = ("mamba2", "nemotron_h", "zamba2")
TRIED = [(family, name) for family in WHOLE for name in METHODS]
TRIED += [
    (family, name)
    for family in OTHERS
    for name in LEAVING_OUT
    if name != "draft-verify" or family not in OF_ONE_BLOCK
]
TRIED += [(family, "drafts that are half right") for family in ("falcon_h1", "jamba")]


def decoded(family: str, name: str, *, strict: bool = False) -> Decoded:
    target = loaded(family)
    decoder = METHODS[name](target)
    n, rows = len(PROMPT) + NEW, decoder.rows
    session = Session(target.staged, n, spare=rows, fixed_rows=rows if strict else None)
    return decoder.decode(session, Request(PROMPT, Limits(NEW), Clock(torch.device("cpu"))))


@pytest.mark.parametrize(("family", "name"), TRIED)
def test_outputs_are_those_of_generate(family: str, name: str) -> None:
    found = decoded(family, name)
    assert found.output_ids == truth(family)
    if "right" in name:
        assert sum(found.accepted) > NEW // 3


@pytest.mark.parametrize("name", ["layerskip", "drafts that are half right"])
def test_outputs_in_one_fixed_shape_are_those_of_generate(name: str) -> None:
    assert decoded("qwen3_5_text", name, strict=True).output_ids == truth("qwen3_5_text")


@pytest.mark.parametrize("family", OF_ONE_BLOCK)
def test_single_blocks_are_not_left_out_of_layers_that_are_one_block(family: str) -> None:
    with pytest.raises(UnsupportedModel, match="cannot be run without single blocks"):
        METHODS["draft-verify"](loaded(family))


def read_by_the_stock_model(family: str, ids: list[int]) -> torch.Tensor:
    """What each layer of it would say behind every token, [layer, row, vocab], in one pass."""
    ours, states = loaded(family).staged.adapter, list[torch.Tensor]()
    model = tiny(family)

    def see(_: torch.nn.Module, __: object, out: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        states.append(out[0] if isinstance(out, tuple) else out)

    for layer in model.get_submodule(f"{ours.family.body}.{ours.family.layers}"):
        layer.register_forward_hook(see)
    model(torch.tensor([ids]), use_cache=False)
    return torch.cat([ours.logits(state) for state in states])


def exits_of_the_stock_model(family: str, sure: float, n: int) -> tuple[list[int], list[int]]:
    """The tokens of exits that are sure, and their depths: whole passes of the stock model."""
    ids, depths = list(PROMPT), list[int]()
    for _ in range(n):
        read = read_by_the_stock_model(family, ids)[:, -1]
        enough = (read.softmax(-1).amax(-1) > sure).tolist()
        depths.append(enough.index(True) + 1 if any(enough) else len(read))
        ids.append(int(read[depths[-1] - 1].argmax()))
    return ids[len(PROMPT) :], depths


EXITS = 16


@torch.inference_mode()
@pytest.mark.parametrize("family", [*WHOLE, *OTHERS])
def test_exits_that_are_sure_leave_the_layers_above_behind_every_row(family: str) -> None:
    """A layer that a token did not reach reads it later, before the next one that comes so far."""
    below = read_by_the_stock_model(family, PROMPT)[:-1]
    sure = float(below.softmax(-1).amax(-1).quantile(0.8))
    options = {"exit_layer": "1", "confidence": str(sure), "measure": "top"}
    target = loaded(family)
    decoder = built("early-exit", **options)(target)
    session = Session(target.staged, len(PROMPT) + EXITS)
    found = decoder.decode(session, Request(PROMPT, Limits(EXITS), Clock(torch.device("cpu"))))
    output, depths = exits_of_the_stock_model(family, sure, EXITS)
    assert (list(found.output_ids), list(found.exits)) == (output, depths)
    assert len(set(depths)) > 1


@pytest.mark.parametrize("family", [*WHOLE, *OTHERS])
@pytest.mark.parametrize("name", ["lookahead", "ppd"])
def test_methods_that_branch_are_refused_before_anything_runs(name: str, family: str) -> None:
    target = loaded(family)
    strategy = method(name).build({})
    with pytest.raises(
        UnsupportedModel, match=f"{name} drafts trees: layers with a memory"
    ) as said:
        prepare(name, method(name), strategy, Setup(target, 64), Target(), alone=True)
    assert "(draft-verify, jacobi, layerskip, prompt-lookup, speculative)" in str(said.value)
