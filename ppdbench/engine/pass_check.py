"""Fast passes held against the truth: over real tokens, in every layer, chains and trees.

A fast pass (captured, or flat) sums in another order than an eager one and
rounds elsewhere, so neither is the truth about the other. The truth is the same model in a wider
type. How far eager passes lie from it is what this model makes of rounding, and a fast pass may
lie a little further. Real models amplify: over random states their eager passes are off by
several percent, over the tokens of a text they are not.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ppdbench.engine.nearness import distance, gap
from ppdbench.engine.reading import most_likely
from ppdbench.errors import NumericalError

if TYPE_CHECKING:
    from ppdbench.engine.masks import Step
    from ppdbench.engine.staged import StagedModel

# What is encoded where a tokenizer is at hand: any plain text will do.
TEXT = """\
Question: A farmer picks 48 apples on Monday and half as many on Tuesday. How many apples does he
have to sell? Answer: On Tuesday he picks 48 / 2 = 24 apples, so he has 48 + 24 = 72 apples.
Summarise the article in one sentence. The town council said on Thursday that the old bridge over
the river will stay closed until the spring, because engineers found cracks in two of its pillars.
Drivers have to take the road through the village of Milton, which adds about ten minutes.
Write a function that returns the largest of three numbers. def top(a, b, c): return max(a, b, c)
Translate into French: The children are playing in the garden. Les enfants jouent dans le jardin."""

PROMPT = 48  # tokens before the first pass, fewer where a model has no room for them
IGNORED = 8  # of them, on which many models spend states of a size of their own
FEWEST = 4  # rows of chains at least, whatever the number of rows in a pass
# What a fast pass may lie from the truth, as a multiple of what eager ones do.
WORST, MEAN = 5.0, 2.5
# Of a state's length and of the largest logit: what no sum in another order exceeds by itself.
FLOOR = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """One pass behind the first `start` rows; of a tree its `parents`, which a chain has not."""

    rows: range
    start: int
    parents: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PassPlan:
    """Tokens, and the passes over them for each number of rows that is checked.

    All rows form one tree, which one pass in the wider type runs over: a prompt, a chain behind
    it, and trees that hang on the chain.
    """

    tokens: list[int]
    parents: list[int]
    prompt: int
    passes: dict[int, list[PlannedPass]]

    @classmethod
    def over(cls, text: Sequence[int], counts: Collection[int], room: int, seed: int) -> PassPlan:
        """Draw the passes over `text` that fit into `room` positions."""
        draw = random.Random(seed)
        chains = {n: _chain_widths(n, counts) for n in sorted(counts)}
        longest = max(sum(widths) for widths in chains.values())
        prompt = max(1, min(PROMPT, room - longest - max(counts)))
        at = draw.randrange(len(text))
        tokens = list(islice(cycle(text), at, at + prompt + longest))
        parents = list(range(-1, prompt + longest - 1))
        passes: dict[int, list[PlannedPass]] = {}
        for n, widths in chains.items():
            start, planned = prompt, list[PlannedPass]()
            for width in widths:
                planned.append(PlannedPass(range(start, start + width), start))
                start += width
            if n > 1:
                tree = (-1, *(draw.randrange(max(-1, i - 3), i) for i in range(1, n)))
                first = len(tokens)
                planned.append(PlannedPass(range(first, first + n), start, tree))
                tokens += draw.choices(text, k=n)
                parents += [start - 1 if up < 0 else first + up for up in tree]
            passes[n] = planned
        return cls(tokens, parents, prompt, passes)

    def rows(self, n: int) -> list[int]:
        """List the rows of all passes of `n` rows."""
        return [row for each in self.passes[n] for row in each.rows]

    @property
    def longest(self) -> int:
        """The most rows that the chain and one tree behind it take."""
        return max(p.start + len(p.rows) for planned in self.passes.values() for p in planned)


def _chain_widths(n: int, counts: Collection[int]) -> list[int]:
    """List the rows of chains: `n` each, then one fewer where those are filled up to `n`."""
    full = [n] * max(2, -(-FEWEST // n))
    smaller = max((count for count in counts if count < n), default=0)
    return [*full, n - 1] if n - 1 > smaller else full


@dataclass(frozen=True, slots=True)
class PassOutputs:
    """The outputs of passes: states [row, hidden] by layers run, logits and likeliest by row."""

    states: list[Tensor]
    logits: Tensor
    likeliest: Tensor

    def of(self, rows: Sequence[int]) -> PassOutputs:
        """Return what was given for some rows."""
        chosen = list(rows)
        states = [layer[chosen] for layer in self.states]
        return PassOutputs(states, self.logits[chosen], self.likeliest[chosen])

    @classmethod
    def joined(cls, parts: Sequence[PassOutputs]) -> PassOutputs:
        """Put the rows of several passes one behind the other."""
        layers = zip(*(part.states for part in parts), strict=True)
        return cls(
            [torch.cat(layer) for layer in layers],
            torch.cat([part.logits for part in parts]),
            torch.cat([part.likeliest for part in parts]),
        )


class PassRun:
    """A model's passes over a plan, its prompt run once."""

    def __init__(self, model: StagedModel, plan: PassPlan) -> None:
        self.model, self.plan = model, plan
        # Behind all others there is room for the rows of every tree at once, and for idle ones.
        self.cache, self.steps = model.new_cache(plan.longest, spare=len(plan.tokens))

    def prompt(self) -> PassOutputs:
        """Run the prompt."""
        return self._run(range(self.plan.prompt), self.steps.prefill(self.plan.prompt))

    def passes(self, n: int, *, whole: bool = False) -> PassOutputs:
        """Run the passes of `n` rows behind the prompt; `whole` ones are never looked into."""
        self.cache.truncate(self.plan.prompt)
        return PassOutputs.joined([self._one(each, whole) for each in self.plan.passes[n]])

    def everything(self) -> PassOutputs:
        """Run all rows of the plan in one pass over an empty cache."""
        return self._run(range(len(self.plan.tokens)), self.steps.tree(0, self.plan.parents))

    def _one(self, each: PlannedPass, whole: bool) -> PassOutputs:
        if each.parents is None:
            step = self.steps.chain(each.start, len(each.rows))
        else:
            step = self.steps.tree(each.start, each.parents)
        return self._run(each.rows, step, whole)

    @torch.inference_mode()
    def _run(self, rows: range, step: Step, whole: bool = False) -> PassOutputs:
        ids = torch.tensor([[self.plan.tokens[row] for row in rows]], device=self.model.device)
        states: list[Tensor] = []
        tap = None if whole else lambda _, hidden: states.append(hidden[0].clone())
        hidden = self.model.forward(ids, step, self.cache, tap=tap)
        read = self.model.read(hidden)
        return PassOutputs(states, read.logits[0], read.likeliest[0])


@dataclass(frozen=True, slots=True)
class Noise:
    """The distance of eager passes from the truth, after each layer and, last, in the logits."""

    worst: list[float]
    mean: list[float]

    @classmethod
    def of(cls, eager: PassOutputs, truth: PassOutputs) -> Noise:
        """Measure it over all rows that were run."""
        found = list(_distances(eager, truth))
        return cls([float(off.max()) for off in found], [float(off.mean()) for off in found])


@dataclass(frozen=True, slots=True)
class PassTruth:
    """The outputs of a plan without rounding, and the distance of eager passes from them."""

    plan: PassPlan
    outputs: PassOutputs
    noise: Noise

    @classmethod
    def of(cls, plan: PassPlan, wide: StagedModel, eager: StagedModel) -> PassTruth:
        """Run the plan in the wider type, and eagerly."""
        truth = PassRun(wide, plan).everything()
        run = PassRun(eager, plan)
        rows = list(range(min(IGNORED, plan.prompt - 1), plan.prompt))
        ours, true = [run.prompt().of(rows)], [truth.of(rows)]
        for n in plan.passes:
            ours.append(run.passes(n))
            true.append(truth.of(plan.rows(n)))
        noise = Noise.of(PassOutputs.joined(ours), PassOutputs.joined(true))
        return cls(plan, truth, noise)

    def hold(self, run: PassRun, n: int, what: str, remedy: str) -> None:
        """Refuse fast passes of `n` rows that are further off than eager ones explain.

        Each is run twice, looked into and not: the two may be different programs. The prompt has
        been run.
        """
        true = self.outputs.of(self.plan.rows(n))
        for whole in (False, True):
            self._hold_outputs(run.passes(n, whole=whole), true, what, remedy)

    def _hold_outputs(self, found: PassOutputs, true: PassOutputs, what: str, remedy: str) -> None:
        floor = FLOOR[found.logits.dtype]
        offs = list(_distances(found, true))
        layers = len(self.outputs.states)
        # Passes that were not looked into have no states.
        for depth, off in enumerate(offs, start=len(self.noise.worst) + 1 - len(offs)):
            worst, mean = float(off.max()), float(off.mean())
            noise = self.noise.worst[depth - 1], self.noise.mean[depth - 1]
            if not (worst <= max(floor, WORST * noise[0]) and mean <= max(floor, MEAN * noise[1])):
                where = f"after {depth} layers" if depth <= layers else "in its logits"
                raise NumericalError(
                    f"{what} is off by {worst:.1e} {where}, where eager ones are by "
                    f"{noise[0]:.1e}; {remedy}"
                )
        if not torch.equal(found.likeliest, most_likely(found.logits)):
            # Whatever the logits are, other tokens would come of them.
            raise NumericalError(f"{what} is off in the tokens that it finds likeliest; {remedy}")


def _distances(found: PassOutputs, truth: PassOutputs) -> Iterator[Tensor]:
    """Measure how far each row is off after each layer and in its logits, of their size."""
    for ours, true in zip(found.states, truth.states, strict=bool(found.states)):
        yield gap(ours, true)
    largest = truth.logits.abs().amax(-1)
    yield distance(found.logits, truth.logits) / largest
    # Whatever block of a vocabulary a kernel gets wrong, a logit there is wrong.
    yield (found.logits.to(truth.logits) - truth.logits).abs().amax(-1) / largest
