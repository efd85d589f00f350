"""The cost of sampled verification beside the pass whose rows it judges, for trees of 32 nodes.

    python -m benchmarks.sampled_cost [--model smollm2] [--dtype float32,bfloat16] [--threads 2]
        [--nodes 32] [--limit 4] [--save FILE.json]

EAGLE's trees are drafted, run and judged as in any drawn output; the rule is timed apart from the
rest of each step. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import torch

from benchmarks.curve import this_machine
from benchmarks.measured import keep
from ppdbench.bench.runner import Choice
from ppdbench.decoding.decoded import Decoded
from ppdbench.decoding.decoder import Request, Setup
from ppdbench.decoding.draft import Draft
from ppdbench.decoding.sampling import Chooser, Target, generator_for
from ppdbench.decoding.verify import Outcome, accept_sampled
from ppdbench.engine.loading import ModelSpec, load
from ppdbench.engine.quiet import quiet
from ppdbench.engine.session import Session
from ppdbench.machine import environment
from ppdbench.machine.clock import Clock
from ppdbench.report.export import emit
from ppdbench.report.sheet import Sheet
from ppdbench.runs.workload import Item, RunConfig, Workload, capacity, limits_of

TARGETS = {
    "top-p 0.9": Target(kind="top-p", top_p=0.9),
    "top-p 0.9, temperature 0.6": Target(kind="top-p", top_p=0.9, temperature=0.6),
    "top-k 20": Target(kind="top-k", top_k=20),
    "min-p 0.05": Target(kind="min-p", min_p=0.05),
    "whole distribution": Target(kind="top-p", top_p=1.0),
}
DEPTH, TOP = 5, 8  # of the trees, so that they find room for so many nodes
SIBLINGS = {"drawn": True, "chosen": False}


class JudgedStep(msgspec.Struct, frozen=True):
    """A step whose pass ran over a whole tree: the rule's time, that of the rest without drafting.

    `accepted` of the tree's tokens were kept.
    """

    rule_ms: float
    pass_ms: float
    accepted: int


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one way to draw, with siblings that are drawn or chosen."""

    dtype: str
    target: str
    siblings: str
    steps: list[JudgedStep]

    @property
    def rule_ms(self) -> float:
        """The median time of the rule."""
        return median(step.rule_ms for step in self.steps)

    @property
    def pass_ms(self) -> float:
        """The median time of a pass, with what is done after every pass."""
        return median(step.pass_ms for step in self.steps)


class MeasuredCosts(msgspec.Struct, frozen=True, kw_only=True):
    """The costs for a model, and the machine that they are from."""

    machine: str
    model: str
    threads: int
    nodes: int
    costs: list[Cost]


class TimedRule:
    """The exact rule, with the time that each draft took it."""

    def __init__(self) -> None:
        self.ms: list[float] = []

    def __call__(self, draft: Draft, *given: Any) -> Outcome:
        before = time.perf_counter()
        outcome = accept_sampled(draft, *given)
        self.ms.append(1e3 * (time.perf_counter() - before))
        return outcome


def judged(decoded: Decoded, rule_ms: Sequence[float], nodes: int) -> list[JudgedStep]:
    """The steps that verified so many nodes; near the end of an output trees are smaller."""
    return [
        JudgedStep(ms, step.ms - (step.draft_ms or 0.0) - ms, step.accepted)
        for step, ms in zip(decoded.steps, rule_ms, strict=True)
        if step.proposed == nodes
    ]


def measured(asked: argparse.Namespace) -> MeasuredCosts:
    """Decode the same examples for every way to draw, in each number type."""
    environment.set_threads(asked.threads)
    return MeasuredCosts(
        machine=this_machine(),
        model=asked.model,
        threads=torch.get_num_threads(),
        nodes=asked.nodes,
        costs=[cost for dtype in asked.dtype.split(",") for cost in _in_type(asked, dtype)],
    )


def _in_type(asked: argparse.Namespace, dtype: str) -> Iterator[Cost]:
    config = RunConfig(
        model=ModelSpec(name=asked.model, dtype=dtype, device="cpu", offline=True),
        tasks=("gsm8k",),
        data="builtin",
        limit=asked.limit,
        max_new_tokens=asked.max_new_tokens,
    )
    work = Workload.read(config)
    loaded = load(config.model, context=work.context())
    items = work.encode(loaded)
    yield from _each(Setup(loaded, capacity(items)), items, dtype, asked.nodes)


def _each(setup: Setup, items: Sequence[Item], dtype: str, nodes: int) -> Iterator[Cost]:
    loaded = setup.target
    clock = Clock(loaded.staged.device)
    for siblings, is_drawn in SIBLINGS.items():
        sizes = {"nodes": nodes, "depth": DEPTH, "top_k": TOP, "drawn": is_drawn}
        options = {name: str(value) for name, value in sizes.items()}
        _, strategy = Choice(name="eagle", options=options).build()
        decoder = strategy.prepare(setup)
        session = Session(loaded.staged, setup.capacity, spare=decoder.rows)
        for name, target in TARGETS.items():
            steps: list[JudgedStep] = []
            for item in [items[0], *items]:  # once to warm up
                rule = TimedRule()
                chooser = Chooser(target, generator_for(0, item.example.id, name), rule)
                request = Request(list(item.ids), limits_of(item, loaded), clock, chooser)
                steps += judged(decoder.decode(session, request), rule.ms, nodes)
            yield Cost(dtype=dtype, target=name, siblings=siblings, steps=steps)


def stored(path: Path) -> MeasuredCosts:
    """Read what `--save` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=MeasuredCosts)


def sheets(found: MeasuredCosts) -> list[Sheet]:
    """A row for each way to draw."""
    rows = tuple(
        (
            cost.dtype,
            cost.target,
            cost.siblings,
            len(cost.steps),
            mean(step.accepted for step in cost.steps),
            cost.rule_ms,
            cost.pass_ms,
            cost.rule_ms / cost.pass_ms,
        )
        for cost in found.costs
        if cost.steps
    )
    note = (
        f"medians over steps that verified {found.nodes} nodes, {found.threads} threads; the pass "
        f"with what is done after every pass; {found.machine}"
    )
    return [
        Sheet(
            f"Sampled verification of {found.nodes} nodes, {found.model}",
            ("dtype", "target", "siblings", "steps", "kept", "rule ms", "pass ms", "share"),
            rows,
            (note,),
            digits={"kept": 2, "rule ms": 3, "pass ms": 2},
            percent=frozenset({"share"}),
        )
    ]


def main() -> None:
    """Measure or read, show and keep."""
    quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="one that has an EAGLE network")
    parser.add_argument("--dtype", default="float32,bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--limit", type=int, default=4, help="examples")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--save", type=Path, help="keep what was measured, as .json")
    asked = parser.parse_args()
    found = measured(asked)
    emit(sheets(found), None, "markdown")
    keep(found, asked.save)


if __name__ == "__main__":
    main()
