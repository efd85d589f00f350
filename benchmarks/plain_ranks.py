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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from ppdbench.runs.records import ProbedSample
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


def main(argv: Sequence[str] | None = None) -> int:
    """Print what differs; the exit code is 1 where rounding does not explain it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_ranks", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a probe run")
    parser.add_argument("--positions", type=int, default=5000, help="output tokens to look at")
    parser.add_argument("--save", type=Path, help="keep the counts, as .json")
    asked = parser.parse_args(argv)
    quiet()
    run = read_once(asked.run)
    about = run.header.model
    stock, _ = plain_model(
        ModelSpec(
            name=about.name,
            revision=about.revision,
            gguf=run.header.config.model.gguf,
            dtype="float32",
            device="cpu",
        )
    )
    positions, ranks, found, tasks = 0, 0, list[Difference](), dict[str, None]()
    for sample in run.samples:
        if positions >= asked.positions:
            break
        assert isinstance(sample, ProbedSample)
        found += differences(stock, sample)
        positions += len(sample.output_ids)
        ranks += sum(map(len, sample.ranks.values()))
        tasks[sample.task] = None
        print(f"{positions} positions, {ranks} ranks, {len(found)} differ", flush=True)
    wrong = [one for one in found if not one.is_rounding]
    for one in wrong[:20]:
        print(f"{one.where}: rank {one.stored} stored, {one.plain} by plain code")
    print(
        f"{positions} positions, {ranks} ranks: {ranks - len(found)} equal, "
        f"{len(found) - len(wrong)} differ by rounding, {len(wrong)} are wrong"
    )
    if asked.save is not None:
        content = {
            "model": about.name,
            "dtype": about.dtype,
            "machine": this_machine(timed=False),
            "tasks": list(tasks),
            "positions": positions,
            "layers": about.n_layers,
            "ranks": ranks,
            "equal": ranks - len(found),
            "differ_by_rounding": len(found) - len(wrong),
            "wrong": len(wrong),
        }
        write_whole(asked.save, json.dumps(content, indent=1) + "\n", make_folder=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
