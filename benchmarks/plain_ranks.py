"""Ranks of a stored probe run beside those of plain transformers code, position by position.

The plain way: the stock model, a GGUF file as `from_pretrained` reads it, in float32 with
`output_hidden_states=True` over a prompt and its output at once, each layer's states through the
final norm and the head, and a count of the tokens that score strictly higher. The run should be one
in float32: another type rounds every score, and ranks follow. Ranks that differ are told with what
would explain them: the number of tokens that score within a rounding of the output's.

    ppdbench probe --model smollm2 --dtype float32 --task gsm8k --data builtin --out RUN
    python -m benchmarks.plain_ranks RUN [--positions 5000] [--save FILE.json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.curve import this_machine
from ppdbench.engine.gguf import source
from ppdbench.engine.loading import DTYPES, ModelSpec, load_stock
from ppdbench.engine.quiet import quiet
from ppdbench.files.whole import write_whole
from ppdbench.report.sheet import Sheet
from ppdbench.runs.records import Header, ProbedSample
from ppdbench.runs.store import read_once

ROUNDING = 1e-3  # of logits in float32, in whatever order they were summed


@dataclass(frozen=True, slots=True)
class Difference:
    """A rank that the plain way does not give."""

    where: str
    stored: int
    plain: int
    close: int
    """Tokens whose scores lie within a rounding of the output token's."""

    @property
    def is_rounding(self) -> bool:
        """True if as many tokens as the ranks are apart may stand on either side."""
        return abs(self.stored - self.plain) <= self.close


def plain_model(spec: ModelSpec) -> tuple[Any, Any]:
    """The model and the tokenizer as transformers loads them by itself, from a GGUF file too."""
    if not spec.is_gguf:
        return load_stock(spec)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = source.find(spec.name, spec.gguf, spec.revision, offline=spec.offline)
    here = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**here, dtype=DTYPES[spec.dtype])
    return model.eval(), AutoTokenizer.from_pretrained(**here)


@torch.inference_mode()
def differences(stock: Any, sample: ProbedSample) -> Iterator[Difference]:
    """The ranks of an example that the stock model does not give."""
    prompt, output = list(sample.prompt_ids), list(sample.output_ids)
    ids = torch.tensor([prompt + output[:-1]])
    found = stock.base_model(ids, output_hidden_states=True, use_cache=False)
    states = [layer[:, len(prompt) - 1 :] for layer in found.hidden_states]
    targets = torch.tensor(output)[:, None]
    for layer, stored in sample.ranks.items():
        logits = _read_out(stock, states, int(layer))
        own = logits.gather(1, targets)
        plain = (logits > own).sum(1).tolist()
        close = ((logits - own).abs() < ROUNDING).sum(1).tolist()
        for i, (ours, theirs, near) in enumerate(zip(stored, plain, close, strict=True)):
            if ours != theirs:
                where = f"example {sample.example_id}, layer {layer}, position {i}"
                yield Difference(where, ours, theirs, near - 1)


def _read_out(stock: Any, states: Sequence[Tensor], layer: int) -> Tensor:
    """The logits after so many layers; the last states have passed the final norm already."""
    last = layer == len(states) - 1
    normed = states[layer] if last else stock.base_model.norm(states[layer])
    logits: Tensor = stock.get_output_embeddings()(normed)[0]
    return logits


def sheets(content: Mapping[str, Any]) -> list[Sheet]:
    """One row: how many ranks were looked at, and how many are those of plain code."""
    columns = ("positions", "layers", "ranks", "equal", "differ by rounding", "wrong")
    row = tuple(content[name.replace(" ", "_")] for name in columns)
    notes = (
        f"{content['dtype']}, tasks {', '.join(content['tasks'])}; {content['machine']}.",
        "Differ by rounding: no more tokens lie between both ranks than score within a rounding "
        "of the output's.",
    )
    return [Sheet(f"Ranks of {content['model']} by plain code", columns, (row,), notes)]


@dataclass(slots=True)
class RankCounts:
    """The ranks that were looked at so far, and those that plain code does not give."""

    positions: int = 0
    ranks: int = 0
    tasks: dict[str, None] = field(default_factory=dict)
    layers: set[str] = field(default_factory=set)
    different: list[Difference] = field(default_factory=list)

    @property
    def wrong(self) -> list[Difference]:
        """Those that rounding does not explain."""
        return [one for one in self.different if not one.is_rounding]

    def add(self, sample: ProbedSample, found: Iterable[Difference]) -> None:
        """Count an example."""
        self.positions += len(sample.output_ids)
        self.ranks += sum(map(len, sample.ranks.values()))
        self.tasks[sample.task] = None
        self.layers.update(sample.ranks)
        self.different += found

    def content(self) -> dict[str, Any]:
        """The counts as they are kept."""
        return {
            "tasks": list(self.tasks),
            "positions": self.positions,
            "layers": len(self.layers),
            "ranks": self.ranks,
            "equal": self.ranks - len(self.different),
            "differ_by_rounding": len(self.different) - len(self.wrong),
            "wrong": len(self.wrong),
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Print what differs; the exit code is 1 where rounding does not explain it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_ranks", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a probe run")
    parser.add_argument("--positions", type=int, default=5000, help="output tokens to look at")
    parser.add_argument("--save", type=Path, help="keep the counts, as .json")
    asked = parser.parse_args(argv)
    quiet()
    run = read_once(asked.run)
    machine, counts = this_machine(timed=False), RankCounts()
    stock, _ = plain_model(_spec(run.header))
    about = {"model": run.header.model.name, "dtype": run.header.model.dtype, "machine": machine}
    for sample in run.samples:
        if counts.positions >= asked.positions:
            break
        assert isinstance(sample, ProbedSample)
        counts.add(sample, differences(stock, sample))
        kept = {**about, **counts.content()}
        print(f"{kept['positions']} positions, {kept['ranks']} ranks, {kept['equal']} equal")
        if asked.save is not None:  # each time: an example takes seconds
            write_whole(asked.save, json.dumps(kept, indent=1) + "\n")
    for one in counts.wrong[:20]:
        print(f"{one.where}: rank {one.stored} stored, {one.plain} by plain code")
    found = counts.content()
    print(
        f"{found['positions']} positions, {found['ranks']} ranks: {found['equal']} equal, "
        f"{found['differ_by_rounding']} differ by rounding, {found['wrong']} are wrong"
    )
    return 1 if counts.wrong else 0


def _spec(header: Header) -> ModelSpec:
    """The model of a run, in float32."""
    return ModelSpec(
        name=header.model.name,
        revision=header.model.revision,
        gguf=header.config.model.gguf,
        dtype="float32",
        device="cpu",
    )


if __name__ == "__main__":
    raise SystemExit(main())
