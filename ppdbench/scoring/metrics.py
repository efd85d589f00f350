"""The metrics as `evaluate.Metric` classes; loading this module loads `evaluate`.

They are constructed directly: `evaluate.load` would fetch a script from the hub. Their inputs
pass through `datasets` features like those of any other metric, so each can also be used
alone: `Squad(cache_dir=folder).compute(predictions=[...], references=[[...]])`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from decimal import Decimal
from itertools import zip_longest
from statistics import fmean
from typing import ClassVar

import evaluate
from datasets import Features, List, Value

from ppdbench.errors import DataError
from ppdbench.scoring import text

Predictions = list[str]
References = list[list[str]]


class TextMetric(evaluate.Metric):  # type: ignore[misc]
    """Texts compared with one or more reference texts each."""

    source: ClassVar[str] = ""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=inspect.getdoc(type(self)) or "",
            citation=self.source,
            inputs_description="predictions: strings; references: a list of strings for each",
            features=Features(
                {"predictions": Value("string"), "references": List(Value("string"))}
            ),
        )


class Rouge(TextMetric):
    """F-measures of unigrams, bigrams and the longest common subsequence of the whole text.

    Words are stemmed, the usual choice for summaries. The mean is a plain one over examples.
    """

    source = "Lin, 2004, ROUGE: A Package for Automatic Evaluation of Summaries (rouge-score)"
    names: ClassVar[tuple[str, ...]] = ("rouge1", "rouge2", "rougeL")

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer(list(self.names), use_stemmer=True)
        scores = [
            scorer.score_multi(texts, prediction)
            for prediction, texts in zip(predictions, references, strict=True)
        ]
        return {name: fmean(float(each[name].fmeasure) for each in scores) for name in self.names}


class Squad(TextMetric):
    """Exact match and token F1 with SQuAD 1.1's normalisation of answers."""

    source = "Rajpurkar et al., 2016, SQuAD: 100,000+ Questions for Machine Comprehension of Text"

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        return {
            "squad_em": _mean_of_best(text.squad_exact, predictions, references),
            "squad_f1": _mean_of_best(text.squad_f1, predictions, references),
        }


class Bleu(TextMetric):
    """Corpus BLEU, 0..100, as sacrebleu computes it by default (13a tokens, exp smoothing)."""

    source = "Post, 2018, A Call for Clarity in Reporting BLEU Scores (sacrebleu)"

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        from sacrebleu.metrics import BLEU

        # `force` changes no score: it silences a guess that the texts are tokenised.
        found = BLEU(force=True).corpus_score(predictions, _by_position(references))
        return {"bleu": float(found.score)}


class Chrf(TextMetric):
    """Corpus chrF2, 0..100, as sacrebleu computes it by default."""

    source = "Popović, 2015, chrF: character n-gram F-score for automatic MT evaluation (sacrebleu)"

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        from sacrebleu.metrics import CHRF

        found = CHRF().corpus_score(predictions, _by_position(references))
        return {"chrf": float(found.score)}


class Gsm8k(TextMetric):
    """Share of problems whose final number has the reference's value.

    The final number follows the first `####`, or is the last one in a prediction without it.
    """

    source = "Cobbe et al., 2021, Training Verifiers to Solve Math Word Problems"

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        return {"gsm8k_accuracy": _mean_of_best(_same_number, predictions, references)}


class TopV2(TextMetric):
    """Share of parses that equal the reference up to whitespace."""

    source = "Chen et al., 2020, Low-Resource Domain Adaptation for Compositional Task-Oriented SP"

    def _compute(self, predictions: Predictions, references: References) -> dict[str, float]:
        return {"topv2_exact_match": _mean_of_best(_same_words, predictions, references)}


def _mean_of_best(
    measure: Callable[[str, str], float], predictions: Predictions, references: References
) -> float:
    return fmean(
        max(float(measure(prediction, reference)) for reference in texts)
        for prediction, texts in zip(predictions, references, strict=True)
    )


def _by_position(references: References) -> list[tuple[str | None, ...]]:
    """All first references, all second ones and so on; None where an example has fewer."""
    return list(zip_longest(*references))


def _same_words(prediction: str, reference: str) -> bool:
    return text.one_spaced(prediction) == text.one_spaced(reference)


def _same_number(prediction: str, reference: str) -> bool:
    answer = text.marked_number(prediction)
    if answer is None:
        answer = text.last_number(prediction)
    return answer == _expected_number(reference)


def _expected_number(reference: str) -> Decimal:
    number = text.marked_number(reference)
    if number is None:
        raise DataError(f"no number after '####' in the GSM8K reference {reference[-60:]!r}")
    return number
