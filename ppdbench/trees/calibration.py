"""How often a method's guesses are right, by distance and rank: what trees are grown from.

`probe --what drafts --calibration FILE` measures it on the model's own greedy continuations.
The guesses of one distance exclude each other, so that the accuracy of rank r is top-(r+1)
accuracy less top-r accuracy. Those of different distances count as independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ppdbench.bench.stats import wilson
from ppdbench.errors import ConfigError
from ppdbench.jsonfile import read_versioned, write_versioned
from ppdbench.yamlfile import kind

FORMAT, VERSION = "ppdbench-calibration", 1

# From here on a likely guess's accuracy is known to 3 points or better.
ENOUGH_TOKENS = 1000


@dataclass(frozen=True)
class Accuracies:
    """`hits[j][r]`: how often, of `n` times, rank r at distance j + 1 was the model's token."""

    method: str
    hits: tuple[tuple[int, ...], ...]
    n: int

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
        """How far ahead there are guesses."""
        return len(self.hits)

    def p(self, j: int, r: int) -> float:
        """The probability that rank r is right at distance j + 1."""
        return self.hits[j][r] / self.n

    def interval(self, j: int, r: int) -> tuple[float, float]:
        """Its 95% interval."""
        return wilson(self.hits[j][r], self.n)

    def doubt(self) -> str:
        """What to say of a calibration on too few tokens; nothing of any other."""
        if self.n >= ENOUGH_TOKENS:
            return ""
        low, high = self.interval(0, 0)
        return (
            f"calibrated on only {self.n} tokens: the first guess is right {100 * self.p(0, 0):.1f}"
            f"% of the time, anything from {100 * low:.1f}% to {100 * high:.1f}% (95%); use "
            f"{ENOUGH_TOKENS} tokens or more"
        )

    @classmethod
    def load(cls, path: str | Path) -> Accuracies:
        """What `save` wrote."""
        path = Path(path).expanduser()
        missing = "`ppdbench probe --what drafts --calibration FILE` makes one"
        keys = read_versioned(path, "calibration file", missing, FORMAT, VERSION)
        method, n, hits = keys.text("method"), keys.number("n"), keys.items("hits")
        keys.refuse_the_rest()
        for ranks in hits:
            if not isinstance(ranks, list):
                raise keys.error(f"hits holds {kind(ranks)}; use a list of counts per distance")
        with keys.telling():
            return cls(method, tuple(map(tuple, hits)), n)

    def save(self, path: str | Path) -> None:
        """Write what `load` reads."""
        hits = [list(ranks) for ranks in self.hits]
        content = {"method": self.method, "n": self.n, "hits": hits}
        write_versioned(Path(path), FORMAT, VERSION, content)
