"""A thresholds file: what `check` demands of each metric, for all methods or for one.

version: 1
metrics:
  committed_per_step: exact
  accepted_per_proposed: interval
  speedup: {max_drop: 0.2}
methods:
  ppd: {speedup: ignored}
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ppdbench.check.figures import DECODED, rate
from ppdbench.check.metrics import LIMITS, METRICS, Rule
from ppdbench.check.snapshot import MethodFacts, Snapshot
from ppdbench.errors import ConfigError, UnknownName
from ppdbench.files.keys import Keys
from ppdbench.files.yaml_file import read_yaml

VERSION = 1
Rules = Mapping[str, Rule]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Rules by metric, and by method where one has its own; the rest are the defaults."""

    where: str = "the defaults"
    rules: Rules = field(default_factory=dict)
    of_methods: Mapping[str, Rules] = field(default_factory=dict)

    def rule(self, metric: str, method: str = "") -> Rule:
        """Return the rule for a metric of a method."""
        own = self.of_methods.get(method, {})
        return own.get(metric) or self.rules.get(metric) or METRICS.get(metric).default

    def refuse_misfits(self, baseline: Snapshot) -> None:
        """Refuse rules for what runs like the baseline do not have, or what is never checked."""
        kind, methods = baseline.kind, baseline.subjects
        for rules in (self.rules, *self.of_methods.values()):
            for metric in rules:
                if kind not in METRICS.get(metric).runs:
                    known = [name for name in METRICS if kind in METRICS.get(name).runs]
                    raise ConfigError(
                        f"{self.where}: a {kind} run has no {metric}; it has {', '.join(known)}"
                    )
        for method, rules in self.of_methods.items():
            if method not in methods:
                raise ConfigError(f"{self.where}: {UnknownName('method', method, methods)}")
            for metric in rules:
                if whose := METRICS.get(metric).of.get(kind):
                    raise ConfigError(
                        f"{self.where}: {metric} of a {kind} run is of {whose}, not of {method}; "
                        "give its rule under metrics"
                    )
        for about in baseline.methods:
            for metric in self.of_methods.get(about.label, {}):
                if why := _never_checked(metric, about, baseline):
                    raise ConfigError(
                        f"{self.where}: {metric} of {about.label} is never checked: {why}"
                    )


def _never_checked(metric: str, about: MethodFacts, baseline: Snapshot) -> str | None:
    """Return why a metric of a method is never checked, and what to do; None where it is."""
    if metric in DECODED and about.name == "greedy":
        return "greedy drafts nothing and is what speedups are measured by; leave the rule out"
    if metric == "identity" and not about.exact:
        return (
            "the method is not exact; leave the rule out, or give one for outputs, which are "
            "compared with the baseline's"
        )
    if metric == "identity" and (kind := baseline.drawn):
        return f"outputs are drawn ({kind}), so none has to be greedy's; leave the rule out"
    if metric in DECODED and not any(
        (figure.subject, figure.metric) == (about.label, metric) and rate(figure.parts) is not None
        for figure in baseline.figures
    ):
        return "the method has nothing that counts for it in the baseline; leave the rule out"
    return None


def read_thresholds(path: Path) -> Thresholds:
    """The thresholds in a YAML file; unknown metrics and rules are refused."""
    keys = read_yaml(path, "thresholds")
    version = keys.number("version")
    if version != VERSION:
        raise keys.error(f"version {version}, but this ppdbench reads version {VERSION}")
    rules = _rules(keys.section("metrics")) if "metrics" in keys.names() else {}
    of_methods = {}
    if "methods" in keys.names():
        methods = keys.section("methods")
        of_methods = {name: _rules(methods.section(name)) for name in methods.names()}
    keys.refuse_the_rest()
    return Thresholds(str(path), rules, of_methods)


def _rules(keys: Keys) -> dict[str, Rule]:
    with keys.telling():
        for name in keys.names():
            METRICS.get(name)
    return {name: _rule(keys, name) for name in keys.names()}


def _rule(keys: Keys, metric: str) -> Rule:
    """`exact`, or `{max_drop: 0.2}`; only what makes sense for the metric."""
    allowed = METRICS.get(metric).rules
    if not keys.is_mapping(metric):
        rule = Rule(keys.text(metric))
    else:
        inner = keys.section(metric)
        names = inner.names()
        if len(names) != 1:
            raise keys.error(f"{metric} takes one limit, such as {_shown(allowed)}")
        rule = Rule(names[0], inner.real(names[0]) if names[0] in LIMITS else 0.0)
    if rule.kind not in allowed or keys.is_mapping(metric) != (rule.kind in LIMITS):
        raise keys.error(f"{metric} cannot be {rule.kind}; use {_shown(allowed)}")
    largest = LIMITS.get(rule.kind)
    # Nothing is below nan or above inf: either would switch the check off.
    finite = math.isfinite(rule.amount)
    if not finite or rule.amount < 0 or (largest is not None and rule.amount > largest):
        within = "0 or more, but a finite number" if largest is None else f"0 to {largest:g}"
        raise keys.error(f"{metric}: {rule.kind} {rule.amount:g}; use {within}")
    return rule


def _shown(allowed: Collection[str]) -> str:
    return " or ".join(f"{{{name}: NUMBER}}" if name in LIMITS else name for name in allowed)
