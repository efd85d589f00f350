"""L_fp(n): how long a pass over n rows takes on this machine.

Passes go through the loop's own verifier, as in decoding: tree masks, all layers, the head
over every row and the host waiting for the predictions. One row is a step of greedy decoding,
so that a predicted speedup is one over that. Sizes take turns, and the median over the rounds
is kept, so that what else the machine does for a while meets all sizes alike.

Medians are kept as they were measured and read through an isotonic regression. A pass has no
need to take longer than a larger one, which it could be filled up to, so dips are noise, and
noise is what a maximum over sizes would pick out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ppdbench.decoding.draft import Draft
from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_versioned, write_versioned
from ppdbench.files.keys import Keys
from ppdbench.stats import median
from ppdbench.tasks.passages import pseudo_prompts

if TYPE_CHECKING:
    from ppdbench.engine.loading import Loaded
    from ppdbench.machine.clock import Clock
    from ppdbench.runs.workload import Report

FORMAT, VERSION = "ppdbench-latency", 1
WARMUP = 3  # rounds that do not count
ENDS = {"device": ":", "dtype": ","}  # what stands between a name and more about it
LONG = 1 / 16  # of the time that there is: such a pass needs no second one


@dataclass(frozen=True)
class PassTime:
    """The median time of a pass of so many rows, and between what half of the times lie."""

    rows: int
    seconds: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if self.rows < 1 or not all(0 < t < math.inf for t in (self.seconds, self.low, self.high)):
            raise ConfigError("a pass must have rows, and times above 0")


@dataclass(frozen=True, kw_only=True)
class Latency:
    """The time of a pass by its rows, and where it was measured; the first has one row.

    `settings` are the options of the measurement that no other field tells, by their names.
    """

    model: str
    synthetic: bool
    weight_hash: str
    dtype: str
    device: str
    threads: int
    context: int
    rounds: int
    passes: tuple[PassTime, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if list(self.sizes) != sorted({1, *self.sizes}):
            raise ConfigError(f"passes of {list(self.sizes)} rows; they begin with 1 and rise")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each pass."""
        return tuple(each.rows for each in self.passes)

    @cached_property
    def smooth(self) -> tuple[float, ...]:
        """The medians without dips."""
        return isotonic([each.seconds for each in self.passes])

    def at(self, rows: int) -> float:
        """Seconds of a pass; on the line between the two nearest sizes that were measured."""
        if not 1 <= rows <= self.sizes[-1]:
            raise ConfigError(
                f"a pass of {rows} rows, but passes were timed up to {self.sizes[-1]}; use a "
                "smaller size or measure again"
            )
        return float(np.interp(rows, self.sizes, self.smooth))

    @property
    def label(self) -> str:
        """A description of what was measured, with a warning where its weights are random."""
        random = ", random weights" if self.synthetic else ""
        return f"{self.model} ({self.dtype}{random})"

    def other(self, name: str, asked: Any) -> str | None:
        """Say how it was measured, if not with an option as it is asked for."""
        if name in self.settings or not hasattr(self, name):
            held = self.settings.get(name)
            return None if asked == held else _set(name, held)
        held = getattr(self, name)
        # A device has a number behind its name, and numbers have the type of weights.
        whole = str(held).partition(ENDS.get(name, "\0"))[0]
        return None if asked in ("auto", held, whole) else _set(name, held)

    @classmethod
    def load(cls, path: str | Path) -> Latency:
        """Read what `save` wrote."""
        missing = "`ppdbench tree build --latency FILE` measures one"
        keys = read_versioned(Path(path), "latency file", missing, FORMAT, VERSION)
        passes = tuple(_pass(section) for section in keys.sections("passes", "pass"))
        facts: dict[str, Any] = {"synthetic": keys.flag("synthetic")}
        facts |= {name: keys.text(name) for name in ("model", "weight_hash", "dtype", "device")}
        facts |= {name: keys.number(name) for name in ("threads", "context", "rounds")}
        if "settings" in keys.names():  # earlier versions wrote none
            facts["settings"] = keys.mapping("settings")
        keys.refuse_the_rest()
        with keys.telling():
            return cls(**facts, passes=passes)

    def save(self, path: str | Path) -> None:
        """Write what `load` reads."""
        content = {**asdict(self), "passes": [asdict(each) for each in self.passes]}
        write_versioned(Path(path), FORMAT, VERSION, content)


def _set(name: str, held: Any) -> str:
    return f"without --{name.replace('_', '-')}" if held is None else f"with {name} {held}"


def _pass(keys: Keys) -> PassTime:
    rows = keys.number("rows")
    times = [keys.real(name) for name in ("seconds", "low", "high")]
    with keys.telling():
        made = PassTime(rows, *times)
    keys.refuse_the_rest()
    return made


def isotonic(values: Sequence[float]) -> tuple[float, ...]:
    """The nearest sequence, by least squares, that never falls (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []  # mean, length
    for value in values:
        mean, length = value, 1
        while blocks and blocks[-1][0] >= mean:
            before, longer = blocks.pop()
            mean = (before * longer + mean * length) / (longer + length)
            length += longer
        blocks.append((mean, length))
    return tuple(mean for mean, length in blocks for _ in range(length))


def measure_latency(
    loaded: Loaded,
    sizes: Iterable[int],
    *,
    context: int,
    rounds: int,
    warmup: int = WARMUP,
    most_s: float = math.inf,
    clock: Clock | None = None,
    report: Report | None = None,
) -> Latency:
    """Time passes of these sizes, and steps of greedy decoding, behind `context` tokens.

    After `most_s` seconds no further round begins, but for the first that counts; passes that take
    a `LONG` share of it are timed once.
    """
    import torch

    wanted = sorted({1, *sizes})
    _check(loaded, wanted, context, rounds)
    passes = _TimedPasses(loaded, context, wanted[-1], clock)
    times: dict[int, list[float]] = {size: [] for size in wanted}
    until = perf_counter() + most_s
    for number in range(-warmup, rounds):
        if number > 0 and perf_counter() > until:
            break
        if report is not None:
            report("timing passes", max(0, number), rounds)
        for size in wanted if number % 2 else reversed(wanted):
            if times[size] and times[size][0] > LONG * most_s:
                continue
            seconds = passes.time(size)
            if number >= 0 or seconds > LONG * most_s:
                times[size].append(seconds)
    staged = loaded.staged
    return Latency(
        model=loaded.spec.name,
        synthetic=loaded.spec.is_synthetic,
        weight_hash=loaded.fingerprint,
        dtype=staged.precision,
        device=str(staged.device),
        threads=torch.get_num_threads(),
        context=context,
        rounds=len(times[1]),
        passes=tuple(_middle(size, times[size]) for size in wanted),
    )


def _middle(rows: int, seconds: Sequence[float]) -> PassTime:
    low, high = np.quantile(seconds, (0.25, 0.75))
    return PassTime(rows, median(seconds), float(low), float(high))


def _check(loaded: Loaded, sizes: Sequence[int], context: int, rounds: int) -> None:
    for name, value in (("size", sizes[0]), ("--context", context), ("--rounds", rounds)):
        if value < 1:
            raise ConfigError(f"{name} {value}: use 1 or more")
    capacity = loaded.max_positions
    if context + sizes[-1] > capacity:
        raise ConfigError(
            f"{context} tokens of context and a pass of {sizes[-1]} rows, but {loaded.spec.name} "
            f"has a cache of {capacity} at most; lower --context or the sizes"
        )


class _TimedPasses:
    """Passes of any size over the same context, whose buffers are allocated once."""

    def __init__(self, loaded: Loaded, context: int, most: int, clock: Clock | None) -> None:
        import torch

        from ppdbench.decoding.loop import Verifier
        from ppdbench.decoding.sampling import GREEDY
        from ppdbench.engine.session import Session
        from ppdbench.machine.clock import Clock

        self.context, self.chooser = context, GREEDY
        self.clock = clock or Clock(loaded.staged.device)
        self.vocab_size = loaded.staged.vocab_size
        self.session = Session(loaded.staged, context + most)
        self.verifier = Verifier(self.session, GREEDY)
        with torch.inference_mode():
            (prompt,) = pseudo_prompts(loaded.tokenizer, 1, context)
            self.session.reset(prompt)
            self.session.tokens.append(self.verifier.first())

    def time(self, rows: int) -> float:
        """Seconds of one pass, after which the cache is as before."""
        import torch

        run = self._step() if rows == 1 else self._drafted(rows - 1)
        with torch.inference_mode():
            self.clock.synchronize()
            before = self.clock.now()
            run()
            seconds = self.clock.now() - before
        self.session.cache.truncate(self.context)
        return seconds

    def _step(self) -> Callable[[], object]:
        """Return the work that greedy decoding does for a token."""
        newest = self.session.ids(self.session.tokens[-1:])
        return lambda: int(self.chooser.choose(self.session.advance(newest)[:, -1]))

    def _drafted(self, nodes: int) -> Callable[[], object]:
        """The verification of a tree of which every node has two children.

        Models with a memory of their own are given a chain, which is all that they take.
        """
        tokens = [node % self.vocab_size for node in range(nodes)]
        tree = Draft.tree(tokens, [(node - 2) // 2 for node in range(nodes)])
        draft = Draft.chain(tokens) if self.session.model.remembers else tree
        return lambda: self.verifier.verify(draft, 1)
