"""Quality of generated texts against reference texts, without fetching anything.

| metric | what | scale |
|---|---|---|
| rouge1, rouge2, rougeL | rouge-score's F-measure, Porter stemmer on, mean over examples | 0..1 |
| squad_em, squad_f1 | SQuAD 1.1's exact match and token F1, mean over examples | 0..1 |
| gsm8k_accuracy | share of problems whose final number is right | 0..1 |
| topv2_exact_match | share of parses equal up to whitespace | 0..1 |
| bleu, chrf | sacrebleu's corpus scores with its default settings | 0..100 |

An example may have several references; except for bleu and chrf, which use all of them
together, the best one counts. Importing this module is cheap: the libraries behind the
metrics load with the first score.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from tempfile import TemporaryDirectory

from ppdbench.errors import DataError, UnknownName

# Metrics that run generated code: not scored here, because that needs a sandbox.
NEEDS_EXECUTION = frozenset({"humaneval_pass1"})

# Which class of `ppdbench.scoring.metrics` computes a metric.
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
    for class_name in dict.fromkeys(_CLASSES[name] for name in names):
        values |= _compute(class_name, predictions, references)
    return {name: values[name] for name in names}


def _compute(
    class_name: str, predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    from ppdbench.scoring import metrics

    # `evaluate` creates its cache folder even when it keeps everything in memory.
    with TemporaryDirectory(prefix="ppdbench-") as folder:
        metric = getattr(metrics, class_name)(keep_in_memory=True, cache_dir=folder)
        try:
            found: dict[str, float] = metric.compute(
                predictions=list(predictions), references=[list(texts) for texts in references]
            )
        except UnicodeEncodeError as error:
            raise DataError(f"a text to score is not valid Unicode: {error}") from error
    return found


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
