"""The parts of metrics: what one prediction adds to each, in plain Python.

Most metrics are means over examples: the part of one is its own score. BLEU and chrF are of a
whole corpus: the part of one is the counts that sacrebleu adds up. Stored runs keep these parts,
so that reading a run again scores nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from ppdbench.errors import DataError
from ppdbench.scoring import text

Part = float | list[int] | None  # none where no reference can be scored

ROUGES = ("rouge1", "rouge2", "rougeL")
CORPUS = {"bleu": "BLEU", "chrf": "CHRF"}  # and sacrebleu's class


def part(name: str, prediction: str, references: Sequence[str]) -> Part:
    """Return what an example adds to a metric."""
    if name in ROUGES:
        return _rouge_of(prediction, tuple(references))[ROUGES.index(name)]
    if name in CORPUS:
        # Its own split of `corpus_score`, which every metric of sacrebleu has to provide.
        counts = _corpus(name)._extract_corpus_statistics([prediction], [[r] for r in references])
        return [int(count) for count in counts[0]]
    measure = BEST[name]
    usable = [reference for reference in references if can_score(name, reference)]
    return max((float(measure(prediction, reference)) for reference in usable), default=None)


def can_score(name: str, reference: str) -> bool:
    """True if a metric finds in a reference what it compares with."""
    return name != "gsm8k_accuracy" or text.marked_number(reference) is not None


def together(name: str, parts: Sequence[Any]) -> float:
    """The metric over all examples that have a score: a mean, or what the counts of all give."""
    if name in CORPUS:
        return float(_corpus(name)._aggregate_and_compute(parts).score)
    return fmean(parts)


# Kept, because exact methods give the same outputs.
@lru_cache(maxsize=1 << 10)
def _rouge_of(prediction: str, references: tuple[str, ...]) -> tuple[float, ...]:
    """F-measures with the best reference; words are stemmed."""
    found = _rouge().score_multi(references, prediction)
    return tuple(float(found[name].fmeasure) for name in ROUGES)


@cache
def _rouge() -> Any:
    """rouge-score's own, except that it stems no word twice: that is most of its time."""
    from nltk.stem.porter import PorterStemmer
    from rouge_score import rouge_scorer, tokenize, tokenizers

    stem = cache(PorterStemmer().stem)

    class Words(tokenizers.Tokenizer):  # type: ignore[misc]
        def tokenize(self, text: str) -> list[str]:
            words: list[str] = tokenize.tokenize(text, SimpleNamespace(stem=stem))
            return words

    return rouge_scorer.RougeScorer(list(ROUGES), tokenizer=Words())


@cache
def _corpus(name: str) -> Any:
    """sacrebleu's metric with its defaults."""
    from sacrebleu import metrics

    return getattr(metrics, CORPUS[name])()


def _same_words(prediction: str, reference: str) -> bool:
    return text.one_spaced(prediction) == text.one_spaced(reference)


def _same_number(prediction: str, reference: str) -> bool:
    answer = text.marked_number(prediction)
    if answer is None:
        answer = text.last_number(prediction)
    return answer == text.marked_number(reference)


def check_reference(name: str, reference: str) -> None:
    """Refuse a reference that the metric cannot score."""
    if not can_score(name, reference):
        raise DataError(f"no number after '####' in the GSM8K reference {reference[-60:]!r}")


# Metrics of one prediction and one reference, of which the best counts.
BEST: Mapping[str, Callable[[str, str], float]] = {
    "squad_em": text.squad_exact,
    "squad_f1": text.squad_f1,
    "gsm8k_accuracy": _same_number,
    "topv2_exact_match": _same_words,
}
