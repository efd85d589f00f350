"""Normalisation of answers, and the comparison of one text with one other.

Sources: SQuAD 1.1's evaluation script (`normalize_answer`, `f1_score`) and GSM8K's answer
format, `#### ` before the final number.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from decimal import Decimal

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)

# A minus after a digit, a word or a bracket subtracts; elsewhere it is a sign. Unicode has its own.
# Commas part groups of digits, and a dot that begins a decimal has nothing in front of it.
_GROUPED = r"[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}(?![0-9])"
_DIGITS = rf"(?:{_GROUPED}|[0-9]+)(?:\.[0-9]+)?|(?<![\w.)])\.[0-9]+"
_NUMBER = rf"(?:(?<![\w.)])[-\u2212])?(?:\\?\$)?(?:{_DIGITS})"
_PLAIN = str.maketrans("\u2212", "-", ",$\\")
_ANY_NUMBER = re.compile(_NUMBER)
_MARKED_NUMBER = re.compile(r"####\s*(\$?" + _NUMBER + ")")


def one_spaced(text: str) -> str:
    """The words of `text`, one space apart."""
    return " ".join(text.split())


def squad_normalised(text: str) -> str:
    """Lower case, without punctuation, articles and extra whitespace."""
    bare = text.lower().translate(_PUNCTUATION)
    return one_spaced(_ARTICLES.sub(" ", bare))


def squad_exact(prediction: str, reference: str) -> bool:
    """True if two answers are the same after SQuAD's normalisation."""
    return squad_normalised(prediction) == squad_normalised(reference)


def squad_f1(prediction: str, reference: str) -> float:
    """Harmonic mean of token precision and recall, repeated tokens counted."""
    predicted, expected = (squad_normalised(text).split() for text in (prediction, reference))
    shared = (Counter(predicted) & Counter(expected)).total()
    # As in SQuAD 1.1, two answers that are empty once normalised share nothing.
    return 2 * shared / (len(predicted) + len(expected)) if shared else 0.0


def marked_number(text: str) -> Decimal | None:
    """The number after the first `####`, without commas and dollar signs."""
    found = _MARKED_NUMBER.search(text)
    return _value(found.group(1)) if found else None


def last_number(text: str) -> Decimal | None:
    """The last number written in digits, without commas and dollar signs."""
    found = numbers_in(text)
    return found[-1] if found else None


def numbers_in(text: str) -> list[Decimal]:
    """All numbers written in digits, without commas and dollar signs."""
    return [_value(found) for found in _ANY_NUMBER.findall(text)]


def _value(number: str) -> Decimal:
    return Decimal(number.translate(_PLAIN))
