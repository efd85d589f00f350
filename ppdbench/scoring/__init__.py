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

from collections.abc import Iterable, Sequence

from ppdbench.errors import DataError, UnknownName
from ppdbench.scoring import measures

# Metrics that run generated code: not scored here, but when a sample is made, where allowed.
NEEDS_EXECUTION = frozenset({"humaneval_pass1"})

# Which class of `ppdbench.scoring.metrics`, and measure of the same name, computes a metric.
_CLASSES = {
    "rouge1": "Rouge",
    "rouge2": "Rouge",
    "rougeL": "Rouge",
    "squad_em": "Squad",
    "squad_f1": "Squad",
    "bleu": "Bleu",
    "chrf": "Chrf",
    "gsm8k_accuracy": "Gsm8k",
    "topv2_exact_match": "TopV2",
}


def available_metrics() -> list[str]:
    """Names that `score` knows."""
    return list(_CLASSES)


def score(
    metric_names: Iterable[str],
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
) -> dict[str, float]:
    """Score one prediction per example against that example's references."""
    names = list(metric_names)
    for name in names:
        if name not in _CLASSES:
            raise UnknownName("metric", name, _CLASSES)
    _check(predictions, references)
    values: dict[str, float] = {}
    rouges = [name for name in names if name in measures.ROUGES]
    if rouges:  # the one measure whose parts cost something each
        values |= measures.rouge(predictions, references, rouges)
    for measure in dict.fromkeys(_CLASSES[name].lower() for name in names if name not in rouges):
        values |= getattr(measures, measure)(predictions, references)
    return {name: values[name] for name in names}


def _check(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if len(predictions) != len(references):
        raise DataError(
            f"{len(predictions)} predictions but {len(references)} sets of references; "
            f"give one set for each prediction"
        )
    if not predictions:
        raise DataError("nothing to score: there are no predictions")
    for i, (prediction, texts) in enumerate(zip(predictions, references, strict=True)):
        if not isinstance(prediction, str):
            raise DataError(f"prediction {i} is {type(prediction).__name__}; give a string")
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise DataError(f"references of example {i} must be a list of strings")
        if not texts:
            raise DataError(f"example {i} has no reference; give one or more")
        _check_unicode(prediction, *texts)


def _check_unicode(*texts: str) -> None:
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"a text to score is not valid Unicode: {error}") from error
