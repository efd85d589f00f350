"""Calibration: how often a method's guesses are right, by distance and rank, to grow trees from.

`probe --what drafts --calibration FILE` measures it on the model's own greedy continuations.
The guesses of one distance exclude each other, so that the accuracy of rank r is top-(r+1)
accuracy less top-r accuracy.

A file holds the ranks of every output, place by place. Trees are grown from the accuracies over
all places, as if those of different distances were independent of each other: counting whole
paths fits the outputs at hand better and others worse. What a tree is worth is found by decoding
the outputs with it (`walk`). Files of version 1 have counts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdbench.errors import ConfigError
from ppdbench.files.json_file import read_versioned, write_versioned
from ppdbench.files.keys import Keys, kind
from ppdbench.stats import clustered_wilson, wilson
from ppdbench.trees.guessing import guessing_of
from ppdbench.trees.record import RankedOutput

FORMAT, VERSION = "ppdbench-calibration", 2
COUNTS_ALONE = 1  # the version without outputs

# A first guess's accuracy should be known to so many points, up and down.
CLOSE = 0.05


@dataclass(frozen=True)
class Accuracies:
    """`hits[j][r]`: how often, of `n` times, rank r at distance j + 1 was the model's token.

    `outputs` say where, unless counts are all there is. `model` and `weights` say whose they are,
    but in files of earlier versions.
    """

    method: str
    hits: tuple[tuple[int, ...], ...]
    n: int
    outputs: tuple[RankedOutput, ...] = ()
    model: str | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n={self.n} positions were measured; use 1 or more")
        if not self.hits or not all(self.hits):
            raise ConfigError("hits must have a list for each distance, none of them empty")
        for j, ranks in enumerate(self.hits):
            if not all(type(hit) is int and hit >= 0 for hit in ranks):
                raise ConfigError(f"hits at distance {j + 1} must be whole numbers from 0")
            if sum(ranks) > self.n:
                raise ConfigError(
                    f"{sum(ranks)} hits at distance {j + 1} of only {self.n} positions"
                )

    @property
    def distances(self) -> int:
        """The number of distances for which there are guesses."""
        return len(self.hits)

    @property
    def unguided(self) -> int:
        """Steps at the start of an output that have no guesses yet."""
        return guessing_of(self.method).unguided_steps

    def p(self, j: int, r: int) -> float:
        """The probability that rank r is right at distance j + 1."""
        return self.hits[j][r] / self.n

    def interval(self, j: int, r: int) -> tuple[float, float]:
        """Return its 95% interval: by output, or by token where the outputs are not known."""
        if not self.outputs:
            return wilson(self.hits[j][r], self.n)
        rows = [(output.counts[j][r], len(output.ranks[-1])) for output in self.outputs]
        low, high, _ = clustered_wilson(rows)
        return low, high

    def doubt(self) -> str:
        """Return a warning about a calibration on too few tokens; nothing about any other."""
        low, high = self.interval(0, 0)
        if high - low <= 2 * CLOSE:
            return ""
        return (
            f"calibrated on only {self.n} tokens: the first guess is right {100 * self.p(0, 0):.1f}"
            f"% of the time, anything from {100 * low:.1f}% to {100 * high:.1f}% (95%); use more "
            f"until that is {100 * CLOSE:.0f} points up and down"
        )

    def check_model(self, model: str, weights: str) -> None:
        """Refuse another model than the one that guessed; in another type its weights differ."""
        if self.model is not None and self.model != model and self.weights != weights:
            raise ConfigError(
                f"guesses were measured with {self.model}, passes with {model}, but a tree is for "
                f"one model; give --model {self.model}, or another --calibration or --latency"
            )

    @classmethod
    def counted(
        cls,
        method: str,
        outputs: Sequence[RankedOutput],
        model: str | None = None,
        weights: str | None = None,
    ) -> Accuracies:
        """Count the hits of outputs at the places where every distance has a token to guess."""
        if not outputs:
            raise ConfigError("there are no outputs; list one or more")
        reaches = {len(output.ranks) for output in outputs}
        if len(reaches) > 1:
            raise ConfigError(f"outputs with {min(reaches)} and {max(reaches)} distances")
        n = sum(len(output.ranks[-1]) for output in outputs)
        by_distance = zip(*(output.counts for output in outputs), strict=True)
        hits = tuple(tuple(map(sum, zip(*each, strict=True))) for each in by_distance)
        return cls(method, hits, n, tuple(outputs), model, weights)

    @classmethod
    def load(cls, path: str | Path) -> Accuracies:
        """Read what `save` wrote."""
        path = Path(path).expanduser()
        missing = "`ppdbench probe --what drafts --calibration FILE` makes one"
        keys = read_versioned(
            path, "calibration file", missing, FORMAT, VERSION, oldest=COUNTS_ALONE
        )
        method = keys.text("method")
        if keys.number("version") > COUNTS_ALONE:
            outputs = [_output(section) for section in keys.sections("outputs", "output")]
            whose = [keys.optional_text(name, None) for name in ("model", "weights")]
            keys.refuse_the_rest()
            with keys.telling():
                return cls.counted(method, outputs, *whose)
        n, hits = keys.number("n"), keys.items("hits")
        keys.refuse_the_rest()
        for ranks in hits:
            if not isinstance(ranks, list):
                raise keys.error(f"hits holds {kind(ranks)}; use a list of counts per distance")
        with keys.telling():
            return cls(method, tuple(map(tuple, hits)), n)

    def save(self, path: str | Path) -> None:
        """Write what `load` reads, in the version that has room for what there is."""
        content: dict[str, Any] = {"method": self.method}
        if self.outputs:
            whose = {"model": self.model, "weights": self.weights}
            content |= {name: text for name, text in whose.items() if text is not None}
            content["outputs"] = [{"task": o.task, "ranks": list(o.ranks)} for o in self.outputs]
        else:
            content |= {"n": self.n, "hits": [list(ranks) for ranks in self.hits]}
        version = VERSION if self.outputs else COUNTS_ALONE
        write_versioned(Path(path), FORMAT, version, content)


def _output(keys: Keys) -> RankedOutput:
    task, ranks = keys.text("task"), keys.texts("ranks")
    keys.refuse_the_rest()
    with keys.telling():
        return RankedOutput(task, ranks)
