"""Quality of generated texts against reference texts, without fetching anything.

| metric | what | scale |
|---|---|---|
| rouge1, rouge2, rougeL | rouge-score's F-measure, Porter stemmer on, mean over examples | 0..1 |
| squad_em, squad_f1 | SQuAD 1.1's exact match and token F1, mean over examples | 0..1 |
| gsm8k_accuracy | share of problems whose final number is right | 0..1 |
| topv2_exact_match | share of parses equal up to whitespace | 0..1 |
| bleu, chrf | sacrebleu's corpus scores with its default settings | 0..100 |
| humaneval_pass1 | share of programs that pass their tests, where running them was allowed | 0..1 |

An example may have several references; except for bleu and chrf, which use all of them
together, the best one counts. Importing this module is cheap: the libraries behind the
metrics load with the first score, and none of them is torch. Each metric also exists as an
`evaluate.Metric`, in `ppdbench.scoring.metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

from ppdbench.errors import DataError, UnknownName
from ppdbench.scoring import measures

# Metrics that run generated code: not scored here, but when a sample is made, where allowed.
NEEDS_EXECUTION = frozenset({"humaneval_pass1"})


def available_metrics() -> list[str]:
    """Names that `score` knows."""
    return [*measures.ROUGES, *measures.BEST, *measures.CORPUS]


def score(
    metric_names: Iterable[str],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Score one prediction per example against that example's references."""
    names = list(metric_names)
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions but {len(references)} sets of references; "
            f"give one set for each prediction"
        )
    pairs = enumerate(zip(predictions, references, strict=True))
    for reference in chain(*references):
        for name in names:
            measures.check_reference(name, reference)
    return _together(names, [score_parts(names, *pair, which=f"example {i}") for i, pair in pairs])


class Scored(Protocol):
    """An output that was decoded, as it is stored."""

    @property
    def example_id(self) -> str:
        """The id of the example."""

    @property
    def text(self) -> str:
        """The text of the output."""

    @property
    def references(self) -> Sequence[str]:
        """Right answers."""

    @property
    def scores(self) -> Mapping[str, Any] | None:
        """Parts that it adds to each metric; outputs of earlier versions do not say."""


def unscored(metric_names: Iterable[str], references: Sequence[str]) -> list[str]:
    """The metrics that find nothing to compare with in any of an example's references."""
    return [
        name
        for name in metric_names
        if references and not any(measures.can_score(name, one) for one in references)
    ]


def score_samples(metric_names: Iterable[str], samples: Sequence[Scored]) -> dict[str, float]:
    """Score stored samples by the parts that they keep; earlier versions kept none of them."""
    names = list(metric_names)
    return _together(names, [_stored(names, sample) for sample in samples])


def score_parts(
    metric_names: Iterable[str],
    prediction: str,
    references: Sequence[str],
    *,
    which: str = "the example",
) -> dict[str, measures.Part]:
    """Return what one example adds to each metric, for its sample to keep."""
    names = list(metric_names)
    known = available_metrics()
    for name in names:
        if name not in known:
            raise UnknownName("metric", name, known)
    _check(prediction, references, which)
    return {name: measures.part(name, prediction, references) for name in names}


def _stored(names: Sequence[str], sample: Scored) -> Mapping[str, Any]:
    kept = sample.scores or {}
    if all(name in kept for name in names):
        return kept
    which = f"example {sample.example_id}"
    return score_parts(names, sample.text, sample.references, which=which)


def _together(names: Sequence[str], found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    if not found:
        raise DataError("nothing to score: there are no predictions")
    kept = {name: [of[name] for of in found if of[name] is not None] for name in names}
    return {name: measures.together(name, kept[name]) for name in names if kept[name]}


def _check(prediction: str, references: Sequence[str], which: str) -> None:
    if not isinstance(prediction, str):
        raise DataError(f"the prediction of {which} is {type(prediction).__name__}; give a string")
    if isinstance(references, str) or not all(isinstance(text, str) for text in references):
        raise DataError(f"references of {which} must be a list of strings")
    if not references:
        raise DataError(f"{which} has no reference; give one or more")
    try:
        for text in (prediction, *references):
            text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a text to score is not valid Unicode: {error}") from error
