"""The cost of a pass by its rows: ours, transformers' own, and reading the weights once.

Speculation pays as far as a pass of many rows costs little more than one of one row, and no pass
of one row is faster than the memory delivers its weights. A small model may lie in the caches
from one pass to the next, which a draft network's own weights spoil: that is timed too. Sizes and
sides take turns, so that what else the machine does meets all alike.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from ppdbench.bench.baseline import weight_bytes_read
from ppdbench.decoding.stock import StockModel
from ppdbench.engine.experts import experts_of_a_layer, watched
from ppdbench.engine.flat.choice import PassPath
from ppdbench.engine.loading import Loaded, ModelSpec, load
from ppdbench.engine.session import Session
from ppdbench.errors import ConfigError
from ppdbench.machine.bandwidth import measure_bandwidth
from ppdbench.machine.clock import Clock
from ppdbench.machine.threads import threads
from ppdbench.runs.workload import Report
from ppdbench.stats import mean, median
from ppdbench.tasks.passages import pseudo_prompts

ROWS = (1, 2, 3, 5, 9, 16, 32)
CONTEXT = 128
ROUNDS = 5

IN_A_TURN = 3  # passes that are timed, as in decoding right behind others of their kind
# Threads of the side before wait awake for more to do, and take cores meanwhile.
SETTLING_S = 0.03
BANDWIDTH_S = 0.3  # in every round: what the memory delivers drifts
UNSTEADY = 1.5  # from the lower quartile of a size's times to the upper one
# Read before a pass that is to find the caches as a draft network leaves them.
OTHER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class SideTimes:
    """Milliseconds of every timed pass of one size and side."""

    ms: tuple[float, ...]

    @property
    def median(self) -> float:
        """The pass in the middle of all times."""
        return median(self.ms)

    @property
    def spread(self) -> float:
        """The upper quartile over the lower one."""
        low, high = np.quantile(self.ms, (0.25, 0.75))
        return float(high / low)

    def by_round(self, rounds: int) -> list[float]:
        """The pass in the middle of each round."""
        n = len(self.ms) // rounds
        return [median(self.ms[i : i + n]) for i in range(0, n * rounds, n)]


@dataclass(frozen=True, slots=True)
class PassPoint:
    """Passes of so many rows, ours and transformers' own.

    `behind_other` are ours with other memory read before each, as a draft network's weights are;
    runs of earlier versions have none. `experts` are the different ones that a layer reads in ours,
    on average, in models that have them.
    """

    rows: int
    ours: SideTimes
    stock: SideTimes
    behind_other: SideTimes | None = None
    experts: float | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the medians for JSON."""
        found = {"rows": self.rows, "ms": self.ours.median, "generate_ms": self.stock.median}
        if self.behind_other is not None:
            found["behind_other_ms"] = self.behind_other.median
        if self.experts is not None:
            found["experts"] = self.experts
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCurve:
    """The curve of a model on this machine; the first point has one row.

    `weight_bytes` are those that a pass reads. `same_tokens` are the rows of the widest pass for
    which both sides find the same token the likeliest. `experts_of_a_layer` are those that it
    holds, where some of them are chosen for each token. `reading_shares` are the times of reading
    the weights over our passes of one row right behind it, round by round: what memory delivers may
    change within seconds. Curves of earlier versions have none.
    """

    model: str
    is_synthetic: bool
    dtype: str
    device: str
    threads: int
    context: int
    rounds: int
    points: tuple[PassPoint, ...]
    same_tokens: int
    weight_bytes: int
    bandwidth_bytes_per_s: float
    path: PassPath
    experts_of_a_layer: int | None = None
    reading_shares: tuple[float, ...] = ()

    @property
    def reading_share(self) -> float:
        """The share of our pass of one row that reading the weights takes."""
        if not self.reading_shares:
            return self.reading_ms / self.points[0].ours.median
        return median(self.reading_shares)

    def over_one(self, point: PassPoint) -> list[float]:
        """Our passes of a size over those of one row, round by round."""
        many, one = (each.ours.by_round(self.rounds) for each in (point, self.points[0]))
        return [a / b for a, b in zip(many, one, strict=True)]

    @property
    def reading_ms(self) -> float:
        """The time of reading the weights of a pass once."""
        return 1e3 * self.weight_bytes / self.bandwidth_bytes_per_s

    @property
    def unsteady(self) -> PassPoint | None:
        """The point whose times differ most, if they differ widely."""
        worst = max(self.points, key=_spread)
        return worst if _spread(worst) > UNSTEADY else None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        found: dict[str, Any] = {
            "model": self.model,
            "synthetic": self.is_synthetic,
            "dtype": self.dtype,
            "device": self.device,
            "threads": self.threads,
            "context": self.context,
            "rounds": self.rounds,
            "curve": [point.to_dict() for point in self.points],
            "reading_ms": self.reading_ms,
            "reading_share": self.reading_share,
            "path": self.path.kernels,
            "why": self.path.why,
            "prepared_s": self.path.prepared_s,
            "same_tokens": self.same_tokens,
            "weight_bytes": self.weight_bytes,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
        }
        if self.experts_of_a_layer is not None:
            found["experts_of_a_layer"] = self.experts_of_a_layer
        return found


def _spread(point: PassPoint) -> float:
    return max(point.ours.spread, point.stock.spread)


def measure_curve(
    spec: ModelSpec,
    *,
    rows: Collection[int] = ROWS,
    context: int = CONTEXT,
    rounds: int = ROUNDS,
    progress: Report | None = None,
) -> PassCurve:
    """Load the model twice, ours and stock, and time passes of these rows, and of one, of both.

    Memory for two copies of the weights is needed.
    """
    _check_numbers(rows, context, rounds)
    ours = load(spec)
    return time_curve(
        ours, StockModel.beside(ours), rows=rows, context=context, rounds=rounds, progress=progress
    )


def time_curve(
    ours: Loaded,
    stock: StockModel,
    *,
    rows: Collection[int],
    context: int,
    rounds: int,
    progress: Report | None = None,
    clock: Clock | None = None,
    bandwidth: float | None = None,
) -> PassCurve:
    """Time passes of both, taking turns."""
    _check_numbers(rows, context, rounds)
    staged, sizes = ours.staged, sorted({1, *rows})
    _check_room(ours, sizes[-1], context)
    (tokens,) = pseudo_prompts(ours.tokenizer, 1, context + sizes[-1])
    prompt, following = tokens[:context], tokens[context:]
    clock = clock or Clock(staged.device)
    speeds: list[float] = []
    weights = weight_bytes_read(staged)
    with torch.inference_mode():
        passes = OurPasses(ours, prompt, sizes[-1])
        sides = passes, StockPasses(stock, prompt), BehindOther(passes)
        times: dict[tuple[int, int], list[float]] = {}
        for number in range(rounds):
            if progress is not None:
                progress("timing passes", number, rounds)
            forward = number % 2 == 0
            for size in sizes if forward else sizes[::-1]:
                if size == 1:
                    speeds.append(
                        bandwidth or measure_bandwidth(staged.device, staged.readers, BANDWIDTH_S)
                    )
                for side in range(len(sides))[:: 1 if forward else -1]:
                    took = _turn(sides[side], following[:size], clock)
                    times.setdefault((size, side), []).extend(took)
        found = [_once(side, following) for side in sides[:2]]
        experts = {n: _experts_read(passes, following[:n]) for n in sizes}
    points = tuple(
        PassPoint(
            n,
            *(SideTimes(tuple(times[n, side])) for side in range(len(sides))),
            experts=experts[n],
        )
        for n in sizes
    )
    single = points[0].ours.by_round(rounds)
    return PassCurve(
        model=ours.spec.name,
        is_synthetic=ours.spec.is_synthetic,
        dtype=staged.precision,
        device=str(staged.device),
        threads=torch.get_num_threads(),
        context=context,
        rounds=rounds,
        points=points,
        same_tokens=sum(a == b for a, b in zip(*found, strict=True)),
        weight_bytes=weights,
        bandwidth_bytes_per_s=median(speeds),
        path=staged.path,
        experts_of_a_layer=experts_of_a_layer(staged),
        reading_shares=tuple(
            1e3 * weights / speed / ms for speed, ms in zip(speeds, single, strict=True)
        ),
    )


def _check_numbers(rows: Collection[int], context: int, rounds: int) -> None:
    for name, value in (("--rows", min(rows)), ("--context", context), ("--rounds", rounds)):
        if value < 1:
            raise ConfigError(f"{name} {value}: use 1 or more")


def _check_room(ours: Loaded, most: int, context: int) -> None:
    if context + most > ours.max_positions:
        raise ConfigError(
            f"--context {context} and a pass of {most} rows, but {ours.spec.name} runs "
            f"{ours.max_positions} tokens at most; lower --context or --rows"
        )


# Passes of both sides


class PassSide(Protocol):
    """Passes over the same cached tokens, again and again."""

    def in_turn(self) -> AbstractContextManager[None]:
        """Have threads meanwhile as runs of this side have them."""

    def before(self) -> None:
        """Leave the caches as they are to be found; not timed."""

    def run(self, tokens: Sequence[int]) -> list[int]:
        """Run one; return the likeliest token after each row."""

    def forget(self) -> None:
        """Drop the rows of the pass from the cache."""


class OurPasses:
    """Chains of our engine, over the path that runs take."""

    def __init__(self, loaded: Loaded, prompt: list[int], most: int) -> None:
        self.session = Session(loaded.staged, len(prompt) + most)
        self.session.reset(prompt)
        self.session.prefill()

    def in_turn(self) -> AbstractContextManager[None]:
        """Keep torch's threads out of the way of flat passes, as loops of methods do."""
        return nullcontext() if self.session.model.flat is None else threads.lent()

    def before(self) -> None:
        """Nothing: they hold what the pass before has left."""

    def run(self, tokens: Sequence[int]) -> list[int]:
        """Run one; return the likeliest token after each row."""
        _, reading = self.session.run_and_read(tokens)
        return reading.tokens

    def forget(self) -> None:
        """Drop the rows of the pass from the cache."""
        self.session.cache.truncate(len(self.session.tokens))


class BehindOther:
    """Our passes, each right after other memory was read.

    Weights that fit into a cache come from there as long as nothing else is read between two
    passes; what drafts reads weights of its own.
    """

    def __init__(self, passes: OurPasses) -> None:
        self.in_turn, self.run, self.forget = passes.in_turn, passes.run, passes.forget
        self._other = torch.zeros(OTHER_BYTES // 4)

    def before(self) -> None:
        """Read the other memory."""
        self._other.sum()


class StockPasses:
    """Calls of transformers' own model with its own attention and cache."""

    def __init__(self, stock: StockModel, prompt: list[int]) -> None:
        self.model = stock.model
        self._before = self.model(self._ids(prompt), use_cache=True).past_key_values
        self.forget()

    def in_turn(self) -> AbstractContextManager[None]:
        """Leave all threads to torch."""
        return nullcontext()

    def before(self) -> None:
        """Nothing: they hold what the pass before has left."""

    def run(self, tokens: Sequence[int]) -> list[int]:
        """Run one; return the likeliest token after each row."""
        out = self.model(self._ids(tokens), past_key_values=self._cache, use_cache=True)
        likeliest: list[int] = out.logits[0].argmax(-1).tolist()
        return likeliest

    def forget(self) -> None:
        """Drop the rows of the pass from the cache."""
        self._cache = copy.deepcopy(self._before)  # caches of windows cannot be cut back

    def _ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return torch.tensor([tokens], device=self.model.device)


def _once(side: PassSide, tokens: Sequence[int]) -> list[int]:
    found = side.run(tokens)
    side.forget()
    return found


def _experts_read(side: OurPasses, tokens: Sequence[int]) -> float | None:
    """The different experts that a layer reads in one pass, on average; None without experts."""
    model = side.session.model
    if experts_of_a_layer(model) is None:
        return None
    with watched(model) as calls:
        _once(side, tokens)
    return mean([call.touched for call in calls])


def _turn(side: PassSide, tokens: Sequence[int], clock: Clock) -> list[float]:
    """Milliseconds of some passes, once those before them have set in."""
    with side.in_turn():
        settled = clock.now() + SETTLING_S
        _once(side, tokens)
        while clock.now() < settled:
            _once(side, tokens)
        return [_timed(side, tokens, clock) for _ in range(IN_A_TURN)]


def _timed(side: PassSide, tokens: Sequence[int], clock: Clock) -> float:
    side.before()
    clock.synchronize()
    began = clock.now()
    side.run(tokens)
    took = 1e3 * (clock.now() - began)
    side.forget()
    return took
