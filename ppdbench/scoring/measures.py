"""What each metric computes, one prediction per example, in plain Python.

Stored runs are scored with these: `evaluate`, whose classes in `ppdbench.scoring.metrics` call
them too, would take seconds to import and bring torch along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache, lru_cache
from itertools import zip_longest
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from ppdbench.errors import DataError
from ppdbench.scoring import text

Texts = Sequence[str]
References = Sequence[Sequence[str]]

ROUGES = ("rouge1", "rouge2", "rougeL")


def rouge(
    predictions: Texts, references: References, names: Sequence[str] = ROUGES
) -> dict[str, float]:
    """F-measures with the best reference of each example; words are stemmed."""
    wanted = tuple(names)
    scores = [
        _rouge_of(prediction, tuple(texts), wanted)
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return {
        name: fmean(values) for name, values in zip(wanted, zip(*scores, strict=True), strict=True)
    }


# Kept, because exact methods give the same outputs.
@lru_cache(maxsize=1 << 14)
def _rouge_of(prediction: str, texts: tuple[str, ...], names: tuple[str, ...]) -> tuple[float, ...]:
    found = _scorer(names).score_multi(texts, prediction)
    return tuple(float(found[name].fmeasure) for name in names)


@cache
def _scorer(names: tuple[str, ...]) -> Any:
    """rouge-score's own, except that it stems no word twice: that is most of its time."""
    from nltk.stem.porter import PorterStemmer
    from rouge_score import rouge_scorer, tokenize, tokenizers

    stem = cache(PorterStemmer().stem)

    class Words(tokenizers.Tokenizer):  # type: ignore[misc]
        def tokenize(self, text: str) -> list[str]:
            words: list[str] = tokenize.tokenize(text, SimpleNamespace(stem=stem))
            return words

    return rouge_scorer.RougeScorer(list(names), tokenizer=Words())


def squad(predictions: Texts, references: References) -> dict[str, float]:
    """Exact match and token F1."""
    return {
        "squad_em": _mean_of_best(text.squad_exact, predictions, references),
        "squad_f1": _mean_of_best(text.squad_f1, predictions, references),
    }


def bleu(predictions: Texts, references: References) -> dict[str, float]:
    """Of the whole corpus, with sacrebleu's defaults."""
    from sacrebleu.metrics import BLEU

    # `force` changes no score: it silences a guess that the texts are tokenised.
    found = BLEU(force=True).corpus_score(predictions, _by_position(references))
    return {"bleu": float(found.score)}


def chrf(predictions: Texts, references: References) -> dict[str, float]:
    """Of the whole corpus, with sacrebleu's defaults."""
    from sacrebleu.metrics import CHRF

    found = CHRF().corpus_score(predictions, _by_position(references))
    return {"chrf": float(found.score)}


def gsm8k(predictions: Texts, references: References) -> dict[str, float]:
    """Share of problems whose final number is right."""
    return {"gsm8k_accuracy": _mean_of_best(_same_number, predictions, references)}


def topv2(predictions: Texts, references: References) -> dict[str, float]:
    """Share of parses that are right."""
    return {"topv2_exact_match": _mean_of_best(_same_words, predictions, references)}


def _mean_of_best(
    measure: Callable[[str, str], float], predictions: Texts, references: References
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
