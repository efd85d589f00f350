"""The metrics that are checked, what may be demanded of each, and what is by default.

`exact` means the same counts in every example. On the machine of the baseline that is a fair
demand: decoding draws nothing that its seed does not fix. Another processor, thread count or
version of torch rounds matrix products differently, and where two tokens are almost equally
likely that turns one into the other, in the output or in a draft. There, and only there, a
figure that is not the same must be no lower than the interval of its change allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ppdbench.registry import Registry

DECODING = ("decode", "bench")
KINDS = ("probe", *DECODING)
IGNORED = "ignored"
# Rules that come with a number, and the largest that makes sense.
LIMITS: dict[str, float | None] = {
    "max_drop": 1.0,
    "max_rise": None,
    "max_ties": None,
    "other_machines": 1.0,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A demand: `exact`, `interval`, `ignored`, or a limit and its number."""

    kind: str
    amount: float = 0.0


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that is checked; `form` is how its values are written.

    `of` says by kind of run what it is of where that is no single method.
    """

    meaning: str
    runs: tuple[str, ...]
    default: Rule
    rules: tuple[str, ...]
    form: str = "{:.4f}"
    of: Mapping[str, str] = field(default_factory=dict)

    def text(self, value: float | None) -> str:
        """A value as people read it."""
        return "-" if value is None else self.form.format(value)


METRICS: Registry[Metric] = Registry("metric")

RATES = ("exact", "interval", "max_drop", IGNORED)
EXACT = Rule("exact")

METRICS.add(
    "identity",
    Metric(
        "outputs that are not greedy's; ties from rounding count only against max_ties",
        DECODING,
        Rule("no_mismatch"),
        ("no_mismatch", "max_ties"),
        "{:.0f}",
    ),
)
METRICS.add(
    "outputs",
    Metric(
        "outputs that are not the baseline's; the share of them that another machine may have",
        KINDS,
        Rule("other_machines", 0.25),
        ("other_machines", IGNORED),
        "{:.0f}",
    ),
)
METRICS.add(
    "match_rate",
    Metric(
        "matches of a layer, or of ppd's candidates", KINDS, EXACT, RATES, of={"probe": "layers"}
    ),
)
METRICS.add(
    "committed_per_step", Metric("tokens per verifying pass", DECODING, EXACT, RATES, "{:.3f}")
)
METRICS.add("accepted_per_proposed", Metric("drafted tokens kept", DECODING, EXACT, RATES))
METRICS.add(
    "speedup",
    Metric(
        "greedy's time over the method's, paired by example",
        DECODING,
        Rule("max_drop", 0.1),
        ("interval", "max_drop", IGNORED),
        "{:.2f}x",
    ),
)
METRICS.add(
    "peak_memory",
    Metric(
        "the most memory that the process had, in MiB",
        DECODING,
        Rule("max_rise", 0.2),
        ("max_rise", IGNORED),
        "{:.0f} MiB",
        of=dict.fromkeys(DECODING, "the process"),
    ),
)
